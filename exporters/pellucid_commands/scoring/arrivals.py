"""Traces that arrive by OTLP: when nothing more of them is waited for, and which runs then are to be scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from pellucid_commands.scoring.claims import ClaimsFile

QUIET: Final = 10.0
"""Seconds without a span of a trace after which its runs are scored: twice the delay of batches of most senders."""

LONGEST: Final = 60.0
"""Seconds after the end of a run has arrived in which it is scored, also if spans of its trace keep arriving."""

_MOST: Final = 10_000
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS traces (trace_id TEXT PRIMARY KEY, last REAL NOT NULL, ended REAL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS arrived (scorers TEXT, run_id TEXT, PRIMARY KEY (scorers, run_id)) WITHOUT ROWID",
)
_NOTE: Final = """
INSERT INTO traces VALUES (?, ?, ?)
ON CONFLICT (trace_id) DO UPDATE SET last = excluded.last, ended = coalesce(ended, excluded.ended)
"""
_SETTLED: Final = "SELECT trace_id FROM traces WHERE last <= :quiet OR ifnull(ended <= :longest, FALSE)"
_UNSETTLED: Final = "SELECT trace_id FROM traces WHERE last > :quiet AND ifnull(ended > :longest, TRUE)"
_FORGET: Final = "DELETE FROM traces WHERE trace_id = :trace AND (last <= :quiet OR ifnull(ended <= :longest, FALSE))"


class Arrivals(ClaimsFile):
    """Arrivals at a store, in the file of its claims.

    Args:
        store: Path of the store.
        scorers: Name of the scorers.
        clock: Seconds since the epoch.
    """

    def __init__(self, store: Path, scorers: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(store, _SCHEMA)
        self._scorers, self._clock = scorers, clock

    def note(self, traces: Collection[str], runs: Mapping[str, str]) -> None:
        """Note that spans of traces arrive, and runs whose end does, which are to be scored, with their traces."""
        now, ended = self._clock(), set(runs.values())
        with self._writing() as connection:
            connection.executemany(_NOTE, [(each, now, now if each in ended else None) for each in traces])
            connection.executemany(
                "INSERT OR IGNORE INTO arrived VALUES (?, ?)", [(self._scorers, run) for run in runs]
            )

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._clock()

    def unsettled(self, now: float) -> set[str]:
        """Return the traces of which more may arrive."""
        return self._traces(_UNSETTLED, now)

    def settled(self, now: float) -> set[str]:
        """Return the traces of which nothing more is waited for, and that are not forgotten."""
        return self._traces(_SETTLED, now)

    def forget(self, traces: Iterable[str], now: float) -> None:
        """Forget traces that are settled, unless more has arrived since."""
        with self._writing() as connection:
            connection.executemany(_FORGET, [{"trace": trace, **_limits(now)} for trace in traces])

    def waiting(self) -> list[str]:
        """Return the first runs whose end has arrived, and that are not scored."""
        with self._writing() as connection:
            rows = connection.execute("SELECT run_id FROM arrived WHERE scorers = ? LIMIT ?", (self._scorers, _MOST))
            return [run_id for (run_id,) in rows]

    def finish(self, runs: Iterable[str]) -> None:
        """Say that runs are scored, or are not to be."""
        with self._writing() as connection:
            query = "DELETE FROM arrived WHERE scorers = ? AND run_id = ?"
            connection.executemany(query, [(self._scorers, run_id) for run_id in runs])

    def _traces(self, query: str, now: float) -> set[str]:
        with self._writing() as connection:
            return {trace_id for (trace_id,) in connection.execute(query, _limits(now))}


def _limits(now: float) -> dict[str, float]:
    return {"quiet": now - QUIET, "longest": now - LONGEST}
