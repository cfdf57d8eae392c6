"""Rows of runs, as readers of the store get them, and the processes that wrote them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from pellucid_exporters.local import searches
from pellucid_exporters.local.processes import is_alive
from pellucid_exporters.local.score_rows import newest_scores
from pellucid_exporters.stored.rows import INTERRUPTED, RUNNING, RunRow


class Processes:
    """Times at which processes that are gone were last seen, by their ids in the store, each looked up once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[int, int | None] = {}

    def __call__(self, process: int) -> int | None:
        """Return when a process was last seen; None if it is alive."""
        if process not in self._known:
            query = "SELECT host, pid, started, heartbeat, ended FROM processes WHERE id = ?"
            row = self._connection.execute(query, (process,)).fetchone()
            self._known[process] = _seen_until(row) if row is not None else 0
        return self._known[process]


def _seen_until(process: sqlite3.Row) -> int | None:
    if process["ended"] is None and is_alive(*tuple(process)[:4]):
        return None
    return int(process["ended"] or process["heartbeat"])


def run_row(connection: sqlite3.Connection, row: sqlite3.Row, seen_until: Callable[[int], int | None]) -> RunRow:
    """Return a run; `seen_until` says when a process that is gone was last seen."""
    seen = seen_until(row["process"]) if row["outcome"] is None else None
    parts: Mapping[str, Sequence[str]] = searches.parts_of(connection, row["key"])
    return RunRow(
        run_id=row["run_id"],
        trace_id=row["trace_id"].hex(),
        parent_run_id=row["parent_run_id"],
        agent=row["agent"] or "",
        service=row["service"] or "",
        status=row["outcome"] or (RUNNING if seen is None else INTERRUPTED),
        start=row["start"],
        end=row["ended"],
        iterations=row["iterations"],
        error_type=row["error_type"],
        error=row["error"],
        **searches.usage_of(row),
        total=searches.total(connection, row["run_id"]),
        models=tuple(parts["model"]),
        tools=tuple(parts["tool"]),
        hubs=tuple(parts["hub"]),
        tags=tuple(parts["tag"]),
        spans=row["spans"] + row["open_spans"],
        replay_of=row["replay_of"],
        seen_until=max(seen, row["last"]) if seen is not None else None,
        stop_reason=searches.stop_reason(row),
        **{name: row[name] for name in searches.PLAIN},
        scores=newest_scores(connection, [row["run_id"]]).get(row["run_id"], ()),
    )
