"""Runs of a window of time, counted by what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = ("agent", "version", "user", "tenant", "conversation")
PARTS: Final = ("model", "tool", "hub", "tag")
DIMENSIONS: Final = (*COLUMNS, *PARTS)
"""Names by which runs are counted: facts, models, tools, hubs and tags. A run of two models counts for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with one name that started in one step of time. Nested runs count as runs of their own.

    Attributes:
        name: The name; of a version, behind that of its agent. Empty if runs are not counted by names.
        step: Number of the step of time.
        runs: Number of runs.
        failed: Number of those that failed, timed out or were lost.
        faulty: Number of those in which a boundary failed.
        tokens, cost: Sums of what is known; so far, of runs that have not ended.
        cached, sent: Tokens of input of model calls: those from a prompt cache, and all.
        durations: Seconds that each run took that has ended, ascending.
        first, last: Start of the first and of the last of them.
    """

    name: str
    step: int = 0
    runs: int
    failed: int = 0
    faulty: int = 0
    tokens: int | None = None
    cost: float | None = None
    cached: int | None = None
    sent: int | None = None
    durations: Sequence[float] = ()
    first: int = 0
    last: int = 0
