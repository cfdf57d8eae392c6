"""Retention by age and size, in small steps within the transactions of writers."""

from __future__ import annotations

import math
import sqlite3
import time
from typing import Final

INTERVAL: Final = 60
"""Seconds between two checks, by any process."""

MOST_ROWS: Final = 6_000
"""Maximum number of rows of a table that one step deletes: more than a transaction writes, so that it keeps up."""

_MOST_RUNS: Final = 500
_MOST_PAGES: Final = 256
_RECENT: Final = 600
"""Seconds for which unused large texts stay: a process may be about to refer to one that it has written."""


class Retention:
    """Deletes what is too old, and the oldest runs of a store that is too large; nothing if nothing is ever too old."""

    def __init__(self, max_age: float, max_bytes: int) -> None:
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._next = math.inf if max_age == math.inf else time.monotonic()

    def is_due(self) -> bool:
        """Return whether `step` has something to do, as far as this process knows."""
        return time.monotonic() >= self._next

    def step(self, connection: sqlite3.Connection) -> None:
        """Take one step in the current transaction, if it is due."""
        if not self.is_due():
            return
        (retained_at,) = connection.execute("SELECT value FROM counters WHERE name = 'retained_at'").fetchone()
        now = int(time.time())
        if 0 <= now - retained_at < INTERVAL:  # another process has just looked
            self._next = time.monotonic() + INTERVAL
        elif not self.sweep(connection):
            connection.execute("UPDATE counters SET value = ? WHERE name = 'retained_at'", (now,))
            self._next = time.monotonic() + INTERVAL

    def sweep(self, connection: sqlite3.Connection) -> bool:
        """Delete some of what is to be deleted; return whether there may be more."""
        oldest = round(max(0.0, time.time_ns() - self._max_age * 1e9))
        deleted = _delete_before(connection, oldest)
        if not deleted and content_bytes(connection) > self._max_bytes:
            deleted = _delete_before(connection, _oldest_share(connection))
        connection.execute(f"PRAGMA incremental_vacuum({_MOST_PAGES})").fetchall()
        return deleted


def content_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of a store without its free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _delete_before(connection: sqlite3.Connection, time_: int) -> bool:
    """Delete some of what is older than a time in nanoseconds; return whether anything was deleted."""
    before = connection.total_changes
    runs = connection.execute("SELECT key FROM runs WHERE last < ? ORDER BY last LIMIT ?", (time_, _MOST_RUNS))
    for (key,) in runs.fetchall():
        _delete_run(connection, key)
        if connection.total_changes - before > MOST_ROWS:
            break
    keyed = "DELETE FROM {0} WHERE ({1}) IN (SELECT {1} FROM {0} WHERE {2} LIMIT {3})"
    seconds, minute = time_ // 10**9, time_ // (60 * 10**9)
    for table, key, condition, limit in (
        ("spans", "run, start, span_id", "run = 0 AND start < ?", time_),
        ("events", "run, time, process, number", "run = 0 AND time < ?", time_),
        ("starts", "trace_id, span_id", "run = 0 AND start < ?", time_),
        ("hub_minutes", "minute, provider_id, cache, bucket", "minute < ?", minute),
        ("hub_requests", "minute, provider_id, outcome, bucket", "minute < ?", minute),
        ("bodies", "digest", "used < ?", min(seconds, int(time.time()) - _RECENT)),
        ("catalogs", "digest", "used < ?", min(seconds, int(time.time()) - _RECENT)),
    ):
        connection.execute(keyed.format(table, key, condition, MOST_ROWS), (limit,))
    return connection.total_changes > before


def _delete_run(connection: sqlite3.Connection, key: int) -> None:
    """Delete a run, or as much of it as one step may."""
    for table, columns in (("spans", "run, start, span_id"), ("log_lines", "run, time, process, number")):
        deleted = connection.execute(
            f"DELETE FROM {table} WHERE run = :key AND ({columns}) IN "
            f"(SELECT {columns} FROM {table} WHERE run = :key LIMIT :most)",
            {"key": key, "most": MOST_ROWS},
        ).rowcount
        if deleted == MOST_ROWS:
            return
    for table in ("starts", "events", "parts", "responses"):
        connection.execute(f"DELETE FROM {table} WHERE run = ?", (key,))
    connection.execute("DELETE FROM runs WHERE key = ?", (key,))


def _oldest_share(connection: sqlite3.Connection) -> int:
    """Return the time before which some runs, or spans without a run, are the oldest of the store."""
    quarter = f"max(1, (SELECT count(*) FROM (SELECT 1 FROM runs LIMIT {4 * _MOST_RUNS})) / 4)"  # not all of a few
    for query in (
        f"SELECT max(last) FROM (SELECT last FROM runs ORDER BY start LIMIT {quarter})",
        f"SELECT max(start) FROM (SELECT start FROM spans WHERE run = 0 ORDER BY start LIMIT {MOST_ROWS})",
    ):
        (found,) = connection.execute(query).fetchone()
        if found is not None:
            return int(found) + 1
    return 0
