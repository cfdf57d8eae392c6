"""Runs of spans whose run began in another process: that of their parent, else the first of their trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

_RUNS: Final = "SELECT key, run_id FROM runs WHERE trace_id = ? ORDER BY start"
_STARTED: Final = "SELECT run FROM starts WHERE trace_id = ? AND span_id = ?"
_ENDED: Final = "SELECT 1 FROM spans WHERE run = ? AND span_id = ?"


class OfRun(Protocol):
    """A span whose run may be unknown: an empty text."""

    run_id: str
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes | None


def find_runs(connection: sqlite3.Connection, records: Iterable[OfRun]) -> None:
    """Set the runs of spans that have none, if the store knows their trace."""
    foreign = {record.span_id: record for record in records if not record.run_id and record.parent_span_id is not None}
    traces: dict[bytes, Sequence[tuple[int, str]]] = {}
    parents: dict[bytes, str] = {}
    for record in foreign.values():
        if record.trace_id not in traces:
            traces[record.trace_id] = connection.execute(_RUNS, (record.trace_id,)).fetchall()
        runs = traces[record.trace_id]
        if len(runs) < 2:  # noqa: PLR2004  (there is nothing to choose)
            record.run_id = runs[0][1] if runs else ""
            continue
        parent = _outermost(record, foreign).parent_span_id
        assert parent is not None  # only such spans are foreign
        if parent not in parents:
            parents[parent] = _run_of(connection, record.trace_id, parent, runs)
        record.run_id = parents[parent]


def _outermost(record: OfRun, foreign: Mapping[bytes, OfRun]) -> OfRun:
    """Return the last ancestor that is foreign, too."""
    seen = {record.span_id}
    while (parent := foreign.get(record.parent_span_id or b"")) is not None and parent.span_id not in seen:
        seen.add(parent.span_id)
        record = parent
    return record


def _run_of(connection: sqlite3.Connection, trace_id: bytes, span_id: bytes, runs: Sequence[tuple[int, str]]) -> str:
    """Return the run of a span; the first of its trace if the store does not have the span."""
    started = connection.execute(_STARTED, (trace_id, span_id)).fetchone()
    for key, run_id in runs:
        if started == (key,) or connection.execute(_ENDED, (key, span_id)).fetchone():
            return run_id
    return runs[0][1]
