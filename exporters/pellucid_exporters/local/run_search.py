"""Bounded searches: the newest runs by the filter that fewest runs meet, each by an index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from pellucid_exporters.local import score_rows, searches, text_index
from pellucid_exporters.local.bodies import storable
from pellucid_exporters.local.schema import HOUR, LARGEST
from pellucid_exporters.stored.rows import ALL, INTERRUPTED, RUNNING, kind_of
from pellucid_exporters.stored.run_search import BOUND, FoundRuns, HourCount, Match, RunFilter
from pellucid_exporters.stored.scores import ScoreCondition

INDEXED: Final = ("agent", "user", "tenant", "conversation", "version", "outcome", "error_type")
"""Columns of `runs` with an index."""

PARTS: Final = ("tool", "hub", "model", "tag")

_Driver: TypeAlias = tuple[str, list[Any]]
_Usage: TypeAlias = tuple[int | None, float | None]

_RANGE: Final = "start >= ? AND start < ?"
_NEWEST: Final = f"SELECT start, key FROM runs INDEXED BY runs_by_start WHERE {_RANGE}"
_OPEN: Final = f"SELECT start, key FROM runs INDEXED BY runs_without_outcome WHERE outcome IS NULL AND {_RANGE}"
_PART: Final = f"SELECT start, run AS key FROM part_runs WHERE kind = ? AND name = ? AND {_RANGE}"
_TEXT: Final = f"SELECT rowid FROM run_texts WHERE run_texts MATCH ? LIMIT {BOUND + 1}"
_KEYS: Final = f"SELECT start, runs.key FROM json_each(?) CROSS JOIN runs ON runs.key = value WHERE {_RANGE}"
_RUNS: Final = """
SELECT runs.key, run_id, parent_run_id, agent, outcome, process, start, last, ended, user, tenant, conversation,
       version, question, answer, error, input_tokens, output_tokens, cost, used_input, used_output, used_cost, faults,
       spans, EXISTS (SELECT 1 FROM runs AS inner WHERE inner.parent_run_id = runs.run_id) AS has_nested
FROM json_each(?) CROSS JOIN runs ON runs.key = value WHERE
"""
_NAMES: Final = """
WITH RECURSIVE names (name) AS (
    SELECT min({column}) FROM {table} WHERE {condition}
    UNION ALL SELECT (SELECT min({column}) FROM {table} WHERE {condition} AND {column} > name) FROM names
    WHERE name IS NOT NULL LIMIT {limit})
SELECT name FROM names WHERE name IS NOT NULL
"""


def search(connection: sqlite3.Connection, wanted: RunFilter, seen_until: Callable[[int], int | None]) -> FoundRuns:
    """Return the runs that match among the newest `BOUND` that meet the most selective condition with an index."""
    candidates = connection.execute(*_limited(_best(connection, wanted), BOUND + 1)).fetchall()
    older: int | None = None
    if len(candidates) > BOUND:
        last = candidates[BOUND]["start"]
        candidates = [row for row in candidates if row["start"] > last] or candidates[:BOUND]
        older = last + 1
    usages: dict[str, _Usage] = {}
    matches: list[Match] = []
    hidden = 0
    for row in _matching(connection, wanted, [row["key"] for row in candidates]):
        own = {row["run_id"]: _usage(row)}
        tree = dict(_tree(connection, row["run_id"])) if row["has_nested"] else own
        match = _match(row, tree, seen_until)
        if not _meets(match, wanted):
            continue
        if wanted.kind not in {ALL, kind_of(match.conversation)}:
            hidden += 1
        else:
            matches.append(match)
            usages.update(tree)
    matches.sort(key=lambda match: -match.start)
    tokens, cost = _sum(usages.values())
    return FoundRuns(matches=matches, examined=len(candidates), older=older, tokens=tokens, cost=cost, hidden=hidden)


def hours(connection: sqlite3.Connection, since: int, until: int, agent: str | None) -> list[HourCount]:
    """Return the number of runs by hour and outcome, of hours that begin between two times."""
    condition, values = ("AND agent = ?", [storable(agent)]) if agent is not None else ("", [])
    query = f"""
        SELECT hour, outcome, sum(runs) FROM run_hours WHERE hour BETWEEN ? AND ? {condition}
        GROUP BY hour, outcome HAVING sum(runs) > 0"""
    rows = connection.execute(query, [since // HOUR, until // HOUR, *values])
    return [HourCount(hour * HOUR, outcome, runs) for hour, outcome, runs in map(tuple, rows)]


def names(connection: sqlite3.Connection, limit: int) -> dict[str, list[str]]:
    """Return the first names of each kind by which runs are searched, in alphabetical order."""
    found: dict[str, list[str]] = {}
    for column in INDEXED:
        query = _NAMES.format(column=column, table="runs", condition=f"{column} IS NOT NULL", limit=limit)
        found[column] = [name for (name,) in map(tuple, connection.execute(query))]
    for kind in PARTS:
        query = _NAMES.format(column="name", table="part_runs", condition="kind = :kind", limit=limit)
        query = query.replace("> name)", "> names.name)")
        found[kind] = [name for (name,) in map(tuple, connection.execute(query, {"kind": kind}))]
    found["score"] = score_rows.score_names(connection)
    return found


def _best(connection: sqlite3.Connection, wanted: RunFilter) -> _Driver:
    """Return the query for the runs that meet the condition that fewest runs meet."""
    drivers = list(_drivers(connection, wanted))
    if len(drivers) == 1:
        return drivers[0]
    return min(drivers, key=lambda driver: _count(connection, driver)) if drivers else _ranged(_NEWEST, [], wanted)


def _drivers(connection: sqlite3.Connection, wanted: RunFilter) -> Iterator[_Driver]:
    """Yield the queries for the runs that meet each condition that has an index."""
    for column in INDEXED:
        value = getattr(wanted, column)
        if column == "outcome" and value in {RUNNING, INTERRUPTED}:
            yield _ranged(_OPEN, [], wanted)
        elif value is not None:
            query = f"SELECT start, key FROM runs INDEXED BY runs_by_{column} WHERE {column} = ? AND {_RANGE}"
            yield _ranged(query, [storable(value)], wanted)
    for kind in PARTS:
        if (name := getattr(wanted, kind)) is not None:
            yield _ranged(_PART, [kind, storable(name)], wanted)
    if wanted.score is not None:
        yield from _score_drivers(connection, wanted, wanted.score)
    text = storable(wanted.text or "")
    is_indexed = len(text) >= text_index.SHORTEST and "\0" not in text and not wanted.everywhere
    if is_indexed and text_index.is_valid(connection):
        keys = [key for (key,) in map(tuple, connection.execute(_TEXT, [text_index.trigrams(text)]))]
        run = searches.find(connection, text)
        if run is not None:
            keys.append(run["key"])
        if len(keys) <= BOUND:
            yield _ranged(_KEYS, [json.dumps(keys)], wanted)


def _score_drivers(connection: sqlite3.Connection, wanted: RunFilter, score: ScoreCondition) -> Iterator[_Driver]:
    """Yield the query for the runs with a score, and that for those of which any score meets the condition, if few."""
    yield _ranged(_PART, ["score", storable(score.name)], wanted)
    if score.operator not in {"", "!="}:
        keys = list(score_rows.keys_of(connection, score, BOUND + 1))
        if len(keys) <= BOUND:
            yield _ranged(_KEYS, [json.dumps(keys)], wanted)


def _ranged(query: str, values: list[Any], wanted: RunFilter) -> _Driver:
    until = LARGEST if wanted.until is None else min(wanted.until, LARGEST)
    return query, [*values, wanted.since or 0, until]


def _limited(driver: _Driver, limit: int) -> _Driver:
    return f"{driver[0]} ORDER BY start DESC LIMIT {limit}", driver[1]


def _count(connection: sqlite3.Connection, driver: _Driver) -> int:
    query, values = driver
    return int(connection.execute(f"SELECT count(*) FROM ({query} LIMIT {BOUND + 1})", values).fetchone()[0])


def _matching(connection: sqlite3.Connection, wanted: RunFilter, keys: Sequence[int]) -> Iterable[sqlite3.Row]:
    """Return the rows of some runs that meet the conditions on columns, parts and texts."""
    conditions, values = _conditions(wanted)
    rows = connection.execute(_RUNS + " AND ".join(["TRUE", *conditions]), [json.dumps(keys), *values])
    if not wanted.text:
        return rows
    text, folded = wanted.text, wanted.text.casefold()

    def has_text(row: sqlite3.Row) -> bool:
        texts = [row[name] or "" for name in text_index.TEXTS]
        return row["run_id"].startswith(text) or any(folded in each.casefold() for each in texts)

    if not wanted.everywhere:
        return filter(has_text, rows)
    is_in_content = searches.text_filter(connection, text)
    return (row for row in rows if has_text(row) or is_in_content(row))


def _conditions(wanted: RunFilter) -> tuple[list[str], list[Any]]:
    """Return the conditions on columns and parts, and their values."""
    conditions: list[str] = []
    values: list[Any] = []
    for column in INDEXED:
        value = getattr(wanted, column)
        if column == "outcome" and value in {RUNNING, INTERRUPTED}:
            conditions.append("outcome IS NULL")
        elif value is not None:
            conditions.append(f"{column} = ?")
            values.append(storable(value))
    for kind in PARTS:
        if (name := getattr(wanted, kind)) is not None:
            conditions.append("EXISTS (SELECT 1 FROM parts WHERE run = runs.key AND kind = ? AND name = ?)")
            values += [kind, storable(name)]
    if wanted.score is not None:
        condition, needed = score_rows.condition_of(wanted.score)
        conditions.append(condition)
        values += needed
    if wanted.faulty:
        conditions.append("faults > 0")
    if wanted.outermost:
        conditions.append("parent_run_id IS NULL")
    return conditions, values


def _tree(connection: sqlite3.Connection, run_id: str) -> Iterator[tuple[str, _Usage]]:
    """Yield the usage of a run and of the runs nested in it, by their ids."""
    for row in connection.execute(searches.TREE_ROWS, (run_id,)):
        yield row["run_id"], _usage(row)


def _usage(row: sqlite3.Row) -> _Usage:
    usage = searches.usage_of(row)
    known = [value for value in (usage["input_tokens"], usage["output_tokens"]) if value is not None]
    return sum(known) if known else None, usage["cost"]


def _sum(usages: Iterable[_Usage]) -> _Usage:
    tokens, costs = [[value for value in column if value is not None] for column in zip(*usages, strict=True)] or (
        [],
        [],
    )
    return sum(tokens) if tokens else None, sum(costs) if costs else None


def _match(row: sqlite3.Row, tree: dict[str, _Usage], seen_until: Callable[[int], int | None]) -> Match:
    tokens, cost = _sum(tree.values())
    return Match(
        run_id=row["run_id"],
        parent_run_id=row["parent_run_id"],
        agent=row["agent"] or "",
        status=row["outcome"] or (RUNNING if seen_until(row["process"]) is None else INTERRUPTED),
        start=row["start"],
        end=row["ended"],
        user=row["user"],
        tenant=row["tenant"],
        conversation=row["conversation"],
        version=row["version"],
        question=row["question"],
        answer=row["answer"],
        tokens=tokens,
        cost=cost,
        faults=row["faults"],
        spans=row["spans"],
    )


def _meets(match: Match, wanted: RunFilter) -> bool:
    """Return whether a run meets the conditions on what is computed: status, duration and cost."""
    if wanted.outcome in {RUNNING, INTERRUPTED} and match.status != wanted.outcome:
        return False
    if wanted.min_cost is not None and (match.cost is None or match.cost < wanted.min_cost):
        return False
    return wanted.min_duration is None or (match.duration or 0) >= wanted.min_duration * 1e9
