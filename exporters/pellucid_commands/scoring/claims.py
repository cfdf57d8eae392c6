"""Claims: which process scores which run of a store, in a small database beside it.

A claim keeps others from doing the same work. It does not keep scores from being written twice; the store does.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pellucid_exporters.local.database import create
from pellucid_exporters.local.processes import is_alive, this_process

WAIT: Final = 30.0
"""Seconds to wait for another process that writes claims."""

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS claims (
        scorers TEXT, run_id TEXT, start INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, started INTEGER,
        until REAL NOT NULL, done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (scorers, run_id)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS watched (scorers TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID",
)


class ClaimsFile:
    """The database beside a store. Args: store: its path; schema: statements that create what is missing."""

    def __init__(self, store: Path, schema: Iterable[str]) -> None:
        path = store.with_name(f"{store.name}-scoring")
        create(path)
        self._connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._lock = threading.Lock()
        with self._writing() as connection:
            for statement in schema:
                connection.execute(statement)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise


class Claims(ClaimsFile):
    """Claims of the processes that score the runs of a store with the same scorers.

    Args:
        store: Path of the store.
        scorers: Name of the scorers.
        lease: Seconds for which a claim holds, if its process lives.
    """

    def __init__(self, store: Path, scorers: str, lease: float) -> None:
        super().__init__(store, _SCHEMA)
        self._scorers, self._lease, self._own = scorers, lease, this_process()

    def since(self, since: int | None = None) -> int:
        """Return the time since which runs are scored: that of the first call, unless one is given."""
        with self._writing() as connection:
            if since is not None:
                connection.execute("INSERT OR REPLACE INTO watched VALUES (?, ?)", (self._scorers, since))
            connection.execute("INSERT OR IGNORE INTO watched VALUES (?, ?)", (self._scorers, time.time_ns()))
            [(found,)] = connection.execute("SELECT since FROM watched WHERE scorers = ?", (self._scorers,))
        return int(found)

    def forget(self, before: int) -> None:
        """Say that all runs that started before a time are scored."""
        with self._writing() as connection:
            facts = (before, self._scorers)
            connection.execute("UPDATE watched SET since = max(since, ?) WHERE scorers = ?", facts)
            connection.execute("DELETE FROM claims WHERE done AND start < ? AND scorers = ?", facts)

    def done(self) -> set[str]:
        """Return the ids of runs that are scored, of those that are not forgotten."""
        with self._writing() as connection:
            query = "SELECT run_id FROM claims WHERE done AND scorers = ?"
            return {run_id for (run_id,) in connection.execute(query, (self._scorers,))}

    def take(self, runs: Mapping[str, int], most: int) -> list[str]:
        """Claim the first runs that nobody has or has scored; return their ids.

        Args:
            runs: Starts of runs by their ids.
            most: Number of runs that are claimed at most.
        """
        own = self._own
        with self._writing() as connection:
            query = "SELECT run_id, host, pid, started, until, done FROM claims WHERE scorers = ?"
            held = {run_id: facts for run_id, *facts in connection.execute(query, (self._scorers,))}
            free = [run_id for run_id in runs if run_id not in held or _is_over(*held[run_id])][:most]
            until = time.time() + self._lease
            rows = [(self._scorers, run_id, runs[run_id], own.host, own.pid, own.started, until) for run_id in free]
            connection.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, 0)", rows)
        return free

    def finish(self, run_id: str) -> None:
        """Say that a run is scored."""
        with self._writing() as connection:
            connection.execute("UPDATE claims SET done = 1 WHERE scorers = ? AND run_id = ?", (self._scorers, run_id))

    def release(self, run_id: str) -> None:
        """Let others score a run."""
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE scorers = ? AND run_id = ?", (self._scorers, run_id))


def _is_over(host: str, pid: int, started: int | None, until: float, is_done: int) -> bool:
    """Return whether a claim no longer holds: its process has ended, or is too late."""
    return not is_done and (until < time.time() or not is_alive(host, pid, started, round(until * 1e9)))
