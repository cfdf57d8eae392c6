"""Spans and scores of other processes, which come in any order, and maybe twice."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from pellucid import semconv
from pellucid_exporters.local.foreign_spans import find_runs
from pellucid_exporters.local.records import EventRecord, SpanRecord
from pellucid_exporters.local.score_rows import run_of_score
from pellucid_exporters.local.writer import count_change

_NEAR: Final = 60 * 10**9
"""Nanoseconds before and after a run in which spans of its trace that name none are looked for."""

_HAS_SPAN: Final = """
SELECT 1 FROM spans WHERE start = :start AND span_id = :span AND run IN (
    SELECT 0 UNION SELECT key FROM runs WHERE trace_id = :trace UNION SELECT key FROM runs WHERE run_id = :run)
"""
_HAS_SCORE: Final = """
SELECT 1 FROM scores WHERE run_id = :run AND name = :score AND (:run <> '' OR trace_id IS :trace)
AND (value, label, judge, error_type, span_id) IS (:value, :label, :by, :error_type, nullif(:span, zeroblob(8)))
"""
_FACTS: Final = ("score", "value", "label", "by", "error_type")

_RUNS: Final = "SELECT key, run_id, start, last, parent_run_id FROM runs WHERE trace_id = ? ORDER BY start"
_STRAYS: Final = """
SELECT start, span_id, parent_span_id, duration FROM spans
WHERE run = 0 AND start BETWEEN ? AND ? AND trace_id = ? ORDER BY start
"""
_MOVE: Final = "UPDATE OR REPLACE spans SET run = ?, trace_id = NULL WHERE run = 0 AND start = ? AND span_id = ?"
_GROW: Final = "UPDATE runs SET spans = spans + 1, last = max(last, ?) WHERE key = ?"
_ROOT: Final = f"""
SELECT parent_span_id FROM spans JOIN shapes ON shapes.id = shape
WHERE run = ? AND start = ? AND parent_span_id IS NOT NULL AND NOT instr(definition, '"{semconv.RESUMED_FROM}"')
"""
_OUTER: Final = """
SELECT run_id FROM runs WHERE trace_id = ? AND key <> ?
AND EXISTS (SELECT 1 FROM spans WHERE spans.run = runs.key AND span_id = ?)
"""


@dataclass(slots=True)
class _Stray:
    run_id: str
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes | None
    start: int
    end: int


def is_new(connection: sqlite3.Connection, record: SpanRecord | EventRecord) -> bool:
    """Return whether the store has neither a span nor an equal score of what a record judges."""
    if isinstance(record, SpanRecord):
        ids = {"span": record.span_id, "trace": record.trace_id, "run": record.run_id, "start": record.start}
        return connection.execute(_HAS_SPAN, ids).fetchone() is None
    payload = from_json(record.payload)
    run_id = record.run_id or run_of_score(connection, record.payload, record.span_id)
    facts = {name: payload.get(name) for name in _FACTS}
    facts |= {"run": run_id, "trace": payload.get("trace_id"), "span": record.span_id}
    return connection.execute(_HAS_SCORE, facts).fetchone() is None


def place(connection: sqlite3.Connection, trace_id: bytes) -> None:
    """Give the spans of a trace that name no run to one, and say which runs are nested in which.

    Its spans must have come, as far as they will.
    """
    runs = connection.execute(_RUNS, (trace_id,)).fetchall()
    if not runs:
        return
    keys = {run_id: key for key, run_id, *_ in runs}
    first, last = min(run[2] for run in runs), max(run[3] for run in runs)
    rows = connection.execute(_STRAYS, (first - _NEAR, last + _NEAR, trace_id)).fetchall()
    strays = [_Stray("", trace_id, span, parent, start, start + duration) for start, span, parent, duration in rows]
    find_runs(connection, strays)
    for stray in strays:
        key = keys[stray.run_id or runs[0][1]]
        connection.execute(_MOVE, (key, stray.start, stray.span_id))
        connection.execute(_GROW, (stray.end, key))
    for key, _, start, _, outer in runs if len(runs) > 1 else ():
        for (parent,) in connection.execute(_ROOT, (key, start)).fetchall() if outer is None else ():
            found = connection.execute(_OUTER, (trace_id, key, parent)).fetchone()
            if found is not None:
                connection.execute("UPDATE runs SET parent_run_id = ? WHERE key = ?", (*found, key))
    count_change(connection)
