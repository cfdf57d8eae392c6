"""Instants as `datetime`s, and their times on the clock of the event loop."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import anyio


def instant(seconds: float) -> datetime | None:
    """Return a time in seconds since the epoch as a `datetime` in UTC; None after the year 9999, which is never."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def instant_of(loop_time: float) -> datetime | None:
    """Return the instant of a time on the event loop's clock; None after the year 9999."""
    return instant(time.time() + loop_time - _now())


def loop_time(instant: datetime) -> float:
    """Return the time of an instant on the event loop's clock."""
    return _now() + (instant - datetime.now(UTC)).total_seconds()


def _now() -> float:
    """Return the time of the event loop; without one, as in a worker thread, that of asyncio's."""
    try:
        return anyio.current_time()
    except RuntimeError:
        return time.monotonic()
