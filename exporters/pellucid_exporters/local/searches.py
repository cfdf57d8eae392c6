"""Searches for runs."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.local.bodies import DIGEST, storable, unpack
from pellucid_exporters.local.run_rows import PARTS
from pellucid_exporters.local.schema import IS_OF_KIND, LARGEST
from pellucid_exporters.local.score_rows import condition_of
from pellucid_exporters.local.shapes import constants
from pellucid_exporters.stored.rows import Total, text_of, total_of
from pellucid_exporters.stored.scores import ScoreCondition

_RUNS: Final = """
SELECT runs.*, service, (SELECT count(*) FROM starts WHERE starts.run = runs.key) AS open_spans,
    (SELECT definition FROM spans JOIN shapes ON shapes.id = shape
     WHERE spans.run = runs.key AND spans.start = runs.start AND instr(definition, '"pellucid.stop_reason"')) AS root
FROM runs LEFT JOIN processes ON processes.id = runs.process
"""
_TREE: Final = """
WITH RECURSIVE tree (run_id) AS (
    SELECT {run_id} UNION SELECT inner.run_id FROM runs AS inner JOIN tree ON inner.parent_run_id = tree.run_id)
"""
_COST: Final = f"""
(cost >= ? OR EXISTS (SELECT 1 FROM runs AS inner WHERE inner.parent_run_id = runs.run_id)
 AND ({_TREE.format(run_id="runs.run_id")} SELECT sum(part.cost) FROM runs AS part JOIN tree USING (run_id)) >= ?)
"""
_USAGE: Final = """
iif(ended IS NULL, nullif(used_input, 0), input_tokens) AS input_tokens,
iif(ended IS NULL, nullif(used_output, 0), output_tokens) AS output_tokens,
iif(ended IS NULL, nullif(used_cost, 0), cost) AS cost
"""
_USAGES: Final = f"""
{_TREE.format(run_id="?")} SELECT {_USAGE} FROM runs JOIN tree USING (run_id)
"""
_PARTS: Final = f"SELECT kind, name FROM parts WHERE run = ? AND kind IN ({', '.join('?' * len(PARTS))})"
TREE_ROWS: Final = f"{_TREE.format(run_id='?')} SELECT runs.* FROM tree CROSS JOIN runs USING (run_id)"
"""Query for a run and the runs nested in it."""

PLAIN: Final = ("question", "answer", "user", "tenant", "conversation", "version", "faults")
"""Columns that the row of a run has as they are."""

MAY_STOP_BY: Final = "instr(root, ?)"
"""Condition that runs with a stop reason, as JSON, meet, and maybe others."""

_BATCH: Final = 500
"""Runs whose spans a search for a text reads at once."""
_TRACE: Final = 32


def conditions_of(
    agent: str | None,
    parts: Mapping[str, str | None],
    min_duration: float | None,
    min_cost: float | None,
    score: ScoreCondition | None,
) -> tuple[list[str], list[Any]]:
    """Return the conditions of a search, and their values."""
    conditions: list[str] = []
    values: list[Any] = []
    if agent is not None:
        conditions.append("agent = ?")
        values.append(storable(agent))
    for kind, name in parts.items():
        if name is not None:
            conditions.append("EXISTS (SELECT 1 FROM parts WHERE run = runs.key AND kind = ? AND name = ?)")
            values += [kind, storable(name)]
    if min_duration is not None:
        conditions.append("runs.ended - start >= ?")
        values.append(min_duration * 1e9)
    if min_cost is not None:
        conditions.append(_COST)
        values += [min_cost, min_cost]
    if score is not None:
        condition, needed = condition_of(score)
        conditions.append(condition)
        values += needed
    return conditions, values


def listed(conversation: str | None, kind: str, *, replays: bool) -> tuple[list[str], list[Any]]:
    """Return the conditions on which runs a list has, and their values."""
    conditions = [IS_OF_KIND[kind], *([] if replays else ["replay_of IS NULL"])]
    if conversation is None:
        return conditions, []
    return [*conditions, "conversation = ?"], [storable(conversation)]


def newest(
    connection: sqlite3.Connection, conditions: Sequence[str], values: Sequence[Any], before: int | None
) -> Iterator[sqlite3.Row]:
    """Yield the runs that meet conditions, newest first."""
    given = [*conditions, "start < ?"] if before is not None else conditions
    where = f"WHERE {' AND '.join(given)}" if given else ""
    query = f"{_RUNS} {where} ORDER BY start DESC, key DESC"
    yield from connection.execute(query, [*values, min(before, LARGEST)] if before is not None else values)


def stop_reason(run: sqlite3.Row) -> str | None:
    """Return why a run returned its result."""
    return text_of(constants(run["root"]), semconv.STOP_REASON) if run["root"] is not None else None


def usage_of(run: sqlite3.Row) -> dict[str, Any]:
    """Return tokens and cost of a run; so far, if it has not ended."""
    if run["ended"] is not None:
        return {name: run[name] for name in ("input_tokens", "output_tokens", "cost")}
    used = (run["used_input"], run["used_output"], run["used_cost"])
    return {name: value or None for name, value in zip(("input_tokens", "output_tokens", "cost"), used, strict=True)}


def rows_of(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[sqlite3.Row]:
    """Return runs by their ids, in the order of these; without those that the store does not have."""
    if not run_ids:
        return []
    marks = ",".join("?" * len(run_ids))
    found = {row["run_id"]: row for row in connection.execute(f"{_RUNS} WHERE run_id IN ({marks})", list(run_ids))}
    return [found[run_id] for run_id in run_ids if run_id in found]


def find(connection: sqlite3.Connection, name: str) -> sqlite3.Row | None:
    """Return a run by its id, its trace id (the outermost run), or an unambiguous prefix of its id."""
    name = storable(name)
    row = connection.execute(f"{_RUNS} WHERE run_id = ?", (name,)).fetchone()
    if row is None and re.fullmatch(f"[0-9a-f]{{{_TRACE}}}", name):
        query = f"{_RUNS} WHERE trace_id = ? ORDER BY start LIMIT 1"
        row = connection.execute(query, (bytes.fromhex(name),)).fetchone()
    if row is None and name:
        query = f"{_RUNS} WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT 2"
        rows = connection.execute(query, (name, f"{name}\U0010ffff")).fetchall()
        row = rows[0] if len(rows) == 1 else None
    return row if isinstance(row, sqlite3.Row) else None


def parts_of(connection: sqlite3.Connection, key: int) -> dict[str, list[str]]:
    """Return the parts of a run by their kinds."""
    parts: dict[str, list[str]] = {kind: [] for kind in PARTS}
    for kind, name in connection.execute(_PARTS, (key, *PARTS)):
        parts[kind].append(name)
    return parts


def total(connection: sqlite3.Connection, run_id: str) -> Total | None:
    """Return the usage of a run and of all runs nested in it; None if there are none."""
    return total_of([tuple(row) for row in connection.execute(_USAGES, (run_id,))])


def text_filter(connection: sqlite3.Connection, text: str) -> Callable[[sqlite3.Row], bool]:
    """Return whether a run has a text in its id, agent, error or content, in any case of letters."""
    wanted = text.casefold()
    escaped = json.dumps(wanted, ensure_ascii=False)[1:-1]  # within values, which are JSON
    digests = {
        digest
        for digest, content in map(tuple, connection.execute("SELECT digest, content FROM bodies"))
        if wanted in (found := unpack(content).casefold()) or escaped in found
    }

    def matching(number: int) -> set[int]:
        """Return the keys of the runs of a batch whose spans have the text."""
        batch = (number * _BATCH, (number + 1) * _BATCH - 1)
        cursor = connection.cursor()
        cursor.row_factory = None
        rows = cursor.execute('SELECT run, "values" FROM spans WHERE run BETWEEN ? AND ?', batch)
        keys = {key for key, values in rows if escaped in values.decode().casefold()}
        if digests:
            rows = cursor.execute("SELECT run, digests FROM spans WHERE run BETWEEN ? AND ?", batch)
            keys.update(key for key, found in rows if not digests.isdisjoint(_cut(found)))
        return keys

    batches: dict[int, set[int]] = {}  # each is read once: runs of several processes have their keys in no order

    def matches(run: sqlite3.Row) -> bool:
        if any(wanted in (run[name] or "").casefold() for name in ("run_id", "agent", "error")):
            return True
        key = run["key"]
        if key // _BATCH not in batches:
            batches[key // _BATCH] = matching(key // _BATCH)
        return key in batches[key // _BATCH]

    return matches


def _cut(digests: bytes | None) -> Iterator[bytes]:
    for start in range(0, len(digests or b""), DIGEST):
        yield (digests or b"")[start : start + DIGEST]
