"""Reliability rules around the operations of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pellucid.run.state import Run
from pellucid.telemetry import Boundary

if TYPE_CHECKING:
    from pellucid.reliability import Gate, Reaction, Reliability, Subject


def gate_of(
    run: Run,
    reliability: Reliability,
    subject: Subject,
    obstacle: Callable[[Reaction, BaseException | None], str | None],
    enclosing: Boundary | None = None,
) -> Gate:
    """Return the gate of the reliability rules for one operation."""
    from pellucid.reliability import Gate

    usage, stop_cause = lambda: run.nesting.spent, run.stop_cause
    return Gate(reliability, run.scope, subject, usage, stop_cause, obstacle, enclosing)
