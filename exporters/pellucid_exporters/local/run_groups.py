"""Sums of the runs of a window of time. Each run of the window is read once, by the index of starts."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.local.bodies import storable
from pellucid_exporters.local.schema import IS_OF_KIND, LARGEST
from pellucid_exporters.stored.run_groups import COLUMNS, PARTS, RunGroup

_FAILED: Final = f"outcome IN ('{semconv.FAILED}', '{semconv.TIMEOUT}', '{semconv.LOST}')"
_SUMS: Final = f"""
count(*) AS runs, ifnull(sum({_FAILED}), 0) AS failed, ifnull(sum(faults > 0), 0) AS faulty,
sum(iif(ended IS NULL, nullif(used_input + used_output, 0),
        coalesce(input_tokens + output_tokens, input_tokens, output_tokens))) AS tokens,
sum(iif(ended IS NULL, nullif(used_cost, 0), cost)) AS cost,
sum(used_cached) AS cached, sum(iif(used_cached IS NULL, NULL, used_input)) AS sent,
min(runs.start) AS first, max(runs.start) AS last
"""
_RANGE: Final = ("runs.start >= :since", "runs.start < :until")
_DURATIONS: Final = "json_group_array(ended - runs.start) FILTER (WHERE ended IS NOT NULL)"


def groups(
    connection: sqlite3.Connection,
    by: str | None,
    since: int,
    until: int,
    step: int | None,
    within: tuple[str, str] | None,
    *,
    has_durations: bool,
    kind: str,
) -> list[RunGroup]:
    """Return the runs that started between two times, by name and by steps of time; see `Reader.groups`."""
    name, joins, conditions, values = "''", "", [*_RANGE, IS_OF_KIND[kind]], dict[str, Any]()
    if by is not None:
        name, join, condition = _named(by, "parts")
        joins, conditions = joins + join, [*conditions, condition]
    if within is not None:
        other, join, condition = _named(within[0], "used")
        joins, conditions = joins + join, [*conditions, condition, f"{other} = :wanted"]
        values["wanted"] = storable(within[1])
    place = "(runs.start - :since) / :step" if step is not None else "0"
    durations = _DURATIONS if has_durations else "'[]'"
    query = f"""
        SELECT {name} AS name, {place} AS place, {_SUMS}, {durations} AS durations
        FROM runs INDEXED BY runs_by_start {joins} WHERE {" AND ".join(conditions)} GROUP BY 1, 2"""
    values |= {"since": since, "until": min(until, LARGEST)} | ({"step": step} if step is not None else {})
    return [_group(row) for row in connection.execute(query, values)]


def _named(dimension: str, alias: str) -> tuple[str, str, str]:
    """Return the expression of a name, the join that it needs, and the condition that there is one."""
    if dimension in PARTS:
        join = f" CROSS JOIN parts AS {alias} ON {alias}.run = runs.key AND {alias}.kind = '{dimension}'"
        return f"{alias}.name", join, "TRUE"
    assert dimension in COLUMNS
    if dimension == "version":
        return "ifnull(agent, '') || ' ' || version", "", "version IS NOT NULL"
    return dimension, "", f"{dimension} IS NOT NULL"


def _group(row: sqlite3.Row) -> RunGroup:
    return RunGroup(
        name=row["name"],
        step=row["place"],
        runs=row["runs"],
        failed=row["failed"],
        faulty=row["faulty"],
        tokens=row["tokens"],
        cost=row["cost"],
        cached=row["cached"],
        sent=row["sent"],
        durations=sorted(duration / 1e9 for duration in json.loads(row["durations"])),
        first=row["first"],
        last=row["last"],
    )
