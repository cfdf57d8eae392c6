"""Durations of runs and spans; of those without an end, until now or until their process was last seen."""

from __future__ import annotations

import time

from pellucid_exporters.stored import text
from pellucid_exporters.stored.rows import INTERRUPTED, RUNNING, RunRow, SpanRow


def end_of(row: RunRow | SpanRow, now: int) -> int:
    """Return the end of a run or span, or the time until which it is known to have lasted."""
    if row.end is not None:
        return row.end
    return max(row.start, now if row.status == RUNNING else row.seen_until or 0)


def took(row: RunRow | SpanRow) -> str:
    """Return the duration as text, such as `24 s`; `≥ 24 s` if the process ended first, `24 s …` while it goes on."""
    if row.status == INTERRUPTED and row.seen_until is None:
        return text.UNKNOWN
    lasted = text.duration(end_of(row, time.time_ns()) - row.start)
    if row.end is not None:
        return lasted
    return f"≥ {lasted}" if row.status == INTERRUPTED else f"{lasted} …"
