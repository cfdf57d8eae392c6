"""Scores in the store: of runs, and their means over time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from pydantic_core import from_json

from pellucid_exporters.local.bodies import storable, unpack
from pellucid_exporters.local.schema import LARGEST, MEASURED
from pellucid_exporters.stored.rows import BODY
from pellucid_exporters.stored.scores import MOST_NAMES, ScoreCondition, ScoreGroup, ScoreRow

_ONE_MODEL: Final = """
(SELECT min(parts.name) FROM parts WHERE parts.run = runs.key AND kind = 'model' HAVING count(*) = 1)
"""
_VERSION: Final = "coalesce(scores.version, runs.version)"
_AGENT: Final = "coalesce(scores.agent, runs.agent)"
_MODEL: Final = f"coalesce(scores.model, {_ONE_MODEL})"
_FACTS: Final = f"""
scores.run_id, scores.trace_id, scores.span_id, response_id, scores.name, value, label, judge, scores.error_type,
scores.time, {_AGENT} AS agent, {_VERSION} AS version, {_MODEL} AS model
"""
_OF_RUN: Final = f"""
SELECT {_FACTS}, json_extract(CAST(payload AS TEXT), '$.explanation') AS explanation
FROM scores LEFT JOIN runs ON runs.run_id = scores.run_id LEFT JOIN events ON events.run = event_run
    AND events.time = scores.time AND events.process = scores.process AND events.number = scores.number
WHERE scores.run_id = ? ORDER BY scores.time, scores.process, scores.number
"""
_NEWEST: Final = f"""
SELECT {_FACTS.replace("scores.", "newest.")}, NULL AS explanation FROM (
    SELECT scores.*, max(time) FROM json_each(?) AS wanted CROSS JOIN scores ON scores.run_id = wanted.value
    GROUP BY scores.run_id, scores.name) AS newest
LEFT JOIN runs ON runs.run_id = newest.run_id ORDER BY newest.run_id, newest.name
"""
_VALUES: Final = """
SELECT run_id, time, scores.value FROM json_each(?) AS wanted
CROSS JOIN scores INDEXED BY scores_by_run ON scores.run_id = wanted.value AND name = ? ORDER BY wanted.rowid, time
"""
_NAMES: Final = """
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM scores
    UNION ALL SELECT (SELECT min(name) FROM scores WHERE name > names.name) FROM names WHERE name IS NOT NULL LIMIT ?)
SELECT name FROM names WHERE name IS NOT NULL
"""
_BY_SPAN: Final = """
SELECT run_id FROM runs WHERE trace_id = :trace
ORDER BY EXISTS (SELECT 1 FROM starts WHERE trace_id = :trace AND span_id = :span AND starts.run = runs.key) DESC,
    EXISTS (SELECT 1 FROM spans WHERE spans.run = runs.key AND span_id = :span) DESC, start
LIMIT 1
"""
_DIMENSIONS: Final = {
    None: "''",
    "agent": _AGENT,
    "version": f"ifnull({_AGENT} || ' ', '') || {_VERSION}",
    "model": _MODEL,
}
_SCORES: Final = """
FROM json_each(:names) AS named CROSS JOIN scores
    ON scores.name = named.value AND scores.time >= :since AND scores.time < :until
LEFT JOIN runs ON runs.run_id = scores.run_id
"""
_STRANGERS: Final = f"SELECT DISTINCT scores.run_id {_SCORES} WHERE runs.key IS NULL AND scores.run_id <> ''"
_UNMEASURED: Final = f"""
SELECT run_id FROM json_each(?) AS wanted CROSS JOIN runs ON run_id = wanted.value WHERE NOT ({MEASURED})
"""
_NEWEST_VALUE: Final = """
(SELECT {column} FROM scores WHERE scores.run_id = runs.run_id AND name = ? ORDER BY time DESC LIMIT 1)
"""


def scores_of(connection: sqlite3.Connection, run_id: str) -> list[ScoreRow]:
    """Return the scores of a run with their explanations, in the order of their times; of none for an empty id."""
    rows = connection.execute(_OF_RUN, (storable(run_id),)).fetchall()
    return [_row(row, _explanation(connection, row["explanation"])) for row in rows]


def newest_scores(connection: sqlite3.Connection, run_ids: Iterable[str]) -> dict[str, tuple[ScoreRow, ...]]:
    """Return the newest score of each name of some runs, without explanations."""
    found: dict[str, list[ScoreRow]] = {}
    for row in connection.execute(_NEWEST, (json.dumps([storable(run_id) for run_id in run_ids]),)):
        found.setdefault(row["run_id"], []).append(_row(row, None))
    return {run_id: tuple(scores) for run_id, scores in found.items()}


def values_of(connection: sqlite3.Connection, name: str, run_ids: Iterable[str]) -> dict[str, tuple[int, float | None]]:
    """Return the time and the value of the newest score of a name, of some runs."""
    wanted = json.dumps([storable(run_id) for run_id in run_ids])
    return {row["run_id"]: (row["time"], row["value"]) for row in connection.execute(_VALUES, (wanted, storable(name)))}


def score_names(connection: sqlite3.Connection) -> list[str]:
    """Return the first names of scores."""
    return [name for (name,) in map(tuple, connection.execute(_NAMES, (MOST_NAMES,)))]


def score_groups(
    connection: sqlite3.Connection,
    by: str | None,
    since: int,
    until: int,
    step: int | None,
    within: tuple[str, str] | None,
    without: Collection[str],
) -> list[ScoreGroup]:
    """Return the scores between two times, by their name, another one, and steps of time; see `ScoreReader`."""
    name, place = _DIMENSIONS[by], "(scores.time - :since) / :step" if step is not None else "0"
    condition = f"AND {_DIMENSIONS[within[0]]} = :wanted" if within is not None else ""
    query = f"""
        SELECT scores.name AS score, {name} AS name, {place} AS place,
            count(scores.value) AS number, total(scores.value) AS total,
            ifnull(sum(scores.error_type IS NOT NULL), 0) AS errors
        {_SCORES} WHERE {MEASURED} AND {name} IS NOT NULL {condition}
            AND scores.run_id NOT IN (SELECT value FROM json_each(:without))
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
    values = _window(connection, since, until) | {"without": json.dumps(list(without))}
    values |= {"step": step} if step is not None else {}
    values |= {"wanted": storable(within[1])} if within is not None else {}
    return [
        ScoreGroup(
            score=row["score"],
            name=row["name"],
            step=row["place"],
            number=row["number"],
            total=row["total"],
            errors=row["errors"],
        )
        for row in connection.execute(query, values)
    ]


def strangers(connection: sqlite3.Connection, since: int, until: int) -> set[str]:
    """Return the ids of runs with scores of a window of time that the store does not have."""
    return {run_id for (run_id,) in map(tuple, connection.execute(_STRANGERS, _window(connection, since, until)))}


def unmeasured(connection: sqlite3.Connection, run_ids: Iterable[str]) -> set[str]:
    """Return which of some runs are replays or of experiments."""
    return {run_id for (run_id,) in map(tuple, connection.execute(_UNMEASURED, (json.dumps(list(run_ids)),)))}


def _window(connection: sqlite3.Connection, since: int, until: int) -> dict[str, Any]:
    return {"names": json.dumps(score_names(connection)), "since": since, "until": min(until, LARGEST)}


def run_of_score(connection: sqlite3.Connection, payload: bytes, span_id: bytes) -> str:
    """Return the run of a score that names none, by its span, else by its trace; an empty text if there is none yet."""
    trace = from_json(payload).get("trace_id")
    if not isinstance(trace, str):
        return ""
    values = {"trace": bytes.fromhex(trace), "span": span_id}
    row = connection.execute(_BY_SPAN, values).fetchone()
    return str(row[0]) if row is not None else ""


def condition_of(wanted: ScoreCondition) -> tuple[str, list[Any]]:
    """Return the condition on a run's newest score of a name, and its values."""
    if not wanted.operator:
        return "EXISTS (SELECT 1 FROM scores WHERE scores.run_id = runs.run_id AND name = ?)", [storable(wanted.name)]
    newest = _NEWEST_VALUE.format(column=wanted.column)
    return f"{newest} {wanted.operator} ?", [storable(wanted.name), _value(wanted)]


def keys_of(connection: sqlite3.Connection, wanted: ScoreCondition, limit: int) -> Iterator[int]:
    """Yield the keys of runs with any score that meets a condition, as far as an index finds them: up to a limit."""
    query = f"""
        SELECT key FROM (
            SELECT DISTINCT run_id FROM scores INDEXED BY scores_by_{wanted.column}
            WHERE name = ? AND {wanted.column} {wanted.operator} ? LIMIT {limit}) AS found
        CROSS JOIN runs ON runs.run_id = found.run_id"""
    yield from (key for (key,) in map(tuple, connection.execute(query, (storable(wanted.name), _value(wanted)))))


def _value(wanted: ScoreCondition) -> float | str | None:
    return storable(wanted.value) if isinstance(wanted.value, str) else wanted.value


def _explanation(connection: sqlite3.Connection, found: str | None) -> str | None:
    """Return an explanation, which is a reference to a large text if it is the JSON of one."""
    prefix = f'{{"{BODY}":"'
    if found is None or not found.startswith(prefix):
        return found
    digest = found.removeprefix(prefix).removesuffix('"}')
    try:
        row = connection.execute("SELECT content FROM bodies WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
    except ValueError:  # a text that looks like one
        return found
    return unpack(row["content"]) if row is not None else found


def _row(row: sqlite3.Row, explanation: str | None) -> ScoreRow:
    return ScoreRow(
        run_id=row["run_id"],
        trace_id=row["trace_id"],
        span_id=row["span_id"].hex() if row["span_id"] else None,
        response_id=row["response_id"],
        name=row["name"],
        value=row["value"],
        label=row["label"],
        by=row["judge"],
        explanation=explanation,
        error_type=row["error_type"],
        time=row["time"],
        agent=row["agent"],
        version=row["version"],
        model=row["model"],
    )
