"""Faults of the instrumentation: counted, and never raised into the instrumented code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from pellucid.telemetry import shared_scope

P = ParamSpec("P")
T = TypeVar("T")

PART: Final = "instrumentation"
"""Value of `pellucid.telemetry.part`."""

_log: Final = logging.getLogger("pellucid")


def guarded(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Call a function and return its result; None if it fails, which is counted."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (instrumentation never changes what it observes)
        _count(error)
        return None


def _count(error: Exception) -> None:
    try:
        shared_scope().fault(PART, error)
    except Exception:  # noqa: BLE001  (telemetry is set up wrongly)
        _log.warning("telemetry of MCP requests failed", exc_info=True)
