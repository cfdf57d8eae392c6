"""Migrations to versions 7 and 8: an index of scores, which are events of the store.

Triggers keep it, so that writers of the version before, imports and retention need not know of it. A score is of a run
by the run's id, by the trace, or by the id of an answer, also if the run or the answer is written later.
"""

from __future__ import annotations

from typing import Final

SCORE: Final = "score.recorded"

_EVENT: Final = "event_run, time, process, number"
_PAYLOAD: Final = ("score", "value", "label", "by", "error_type", "agent", "version", "model")


def _field(row: str, name: str) -> str:
    return f"json_extract(CAST({row}.payload AS TEXT), '$.{name}')"


def _select(row: str, source: str = "") -> str:
    """Return the query for the row of an event; its run is '' until there is one."""
    fields = ", ".join(_field(row, name) for name in _PAYLOAD)
    answered = _field(row, "response_id")
    responded = f"SELECT run_id FROM responses JOIN runs ON runs.key = responses.run WHERE response_id = {answered}"
    return f"""
        SELECT {row}.run, {row}.time, {row}.process, {row}.number,
            coalesce({_field(row, "run_id")}, (SELECT run_id FROM runs WHERE key = {row}.run), ({responded}), ''),
            {_field(row, "trace_id")}, nullif({row}.span_id, zeroblob(8)), {answered}, {fields} {source}"""


_PART: Final = "INSERT OR IGNORE INTO parts SELECT key, 'score', name FROM scores JOIN runs USING (run_id)"
_MINE: Final = "event_run = {0}.run AND scores.time = {0}.time AND scores.process = {0}.process AND number = {0}.number"
_OF_RUN: Final = f"""BEGIN
    UPDATE scores SET run_id = new.run_id WHERE run_id = '' AND trace_id = lower(hex(new.trace_id));
    {_PART} WHERE run_id = new.run_id; END"""

MIGRATION: Final = (
    # Runs by the ids of the answers of their model calls.
    "CREATE TABLE responses (response_id TEXT PRIMARY KEY, run INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX responses_by_run ON responses (run)",
    # The key is that of the event, which has the explanation.
    f"""CREATE TABLE scores (
        event_run INTEGER, time INTEGER, process INTEGER, number INTEGER, run_id TEXT NOT NULL, trace_id TEXT,
        span_id BLOB, response_id TEXT, name TEXT NOT NULL, value REAL, label TEXT, judge TEXT, error_type TEXT,
        agent TEXT, version TEXT, model TEXT, PRIMARY KEY ({_EVENT})) WITHOUT ROWID""",
    "CREATE INDEX scores_by_run ON scores (run_id, name, time)",
    "CREATE INDEX scores_by_name ON scores (name, time)",
    "CREATE INDEX scores_by_value ON scores (name, value, run_id)",
    "CREATE INDEX scores_by_label ON scores (name, label, run_id)",
    "CREATE INDEX scores_by_trace ON scores (trace_id) WHERE run_id = ''",
    "CREATE INDEX scores_by_response ON scores (response_id) WHERE run_id = ''",
    f"INSERT INTO scores {_select('events', f'''FROM events WHERE events.name = '{SCORE}' ''')}",
    _PART,
    f"""CREATE TRIGGER scores_added AFTER INSERT ON events WHEN new.name = '{SCORE}' BEGIN
        INSERT OR REPLACE INTO scores {_select("new")};
        {_PART} WHERE {_MINE.format("new")}; END""",
    f"""CREATE TRIGGER scores_deleted AFTER DELETE ON events WHEN old.name = '{SCORE}' BEGIN
        DELETE FROM scores WHERE {_MINE.format("old")}; END""",
    f"CREATE TRIGGER scores_of_run AFTER INSERT ON runs {_OF_RUN}",
    """CREATE TRIGGER scores_of_response AFTER INSERT ON responses BEGIN
        UPDATE scores SET run_id = (SELECT run_id FROM runs WHERE key = new.run)
        WHERE run_id = '' AND response_id = new.response_id; END""",
    f"""CREATE TRIGGER scores_found AFTER UPDATE OF run_id ON scores BEGIN
        {_PART} WHERE {_MINE.format("new").replace("new.run", "new.event_run")}; END""",
)

OF_KNOWN_RUNS: Final = (
    # Nearly all runs are written before their scores: two look-ups take a quarter of the time of the statements.
    "DROP TRIGGER scores_of_run",
    f"""CREATE TRIGGER scores_of_run AFTER INSERT ON runs
        WHEN EXISTS (SELECT 1 FROM scores WHERE run_id = new.run_id)
        OR EXISTS (SELECT 1 FROM scores WHERE run_id = '' AND trace_id = lower(hex(new.trace_id))) {_OF_RUN}""",
)
"""Migration to version 8."""
