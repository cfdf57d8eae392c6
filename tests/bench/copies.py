"""Many runs in a PostgreSQL store, as copies of a real one: by SQL, as running a million would take hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from bench.agents import answers, text, typical
from pellucid.durable import DurableRuns

if TYPE_CHECKING:
    import psycopg

    from pellucid.durable import RunStore

_RUN: Final[LiteralString] = """
INSERT INTO pellucid.runs
SELECT (jsonb_populate_record(runs, jsonb_build_object(
    'id', %(prefix)s || n, 'created_at', {now} + n * 1e-6, 'updated_at', {now},
    'status', %(status)s::text, 'due_at', CASE WHEN %(status)s = 'due' THEN {now} END))).*
FROM pellucid.runs AS runs, generate_series(1, %(last)s::bigint) AS n WHERE id = %(template)s
"""
_CALLS: Final[LiteralString] = """
INSERT INTO pellucid.calls
SELECT (jsonb_populate_record(calls, jsonb_build_object(
    'id', 'async_tool_' || %(prefix)s || n, 'run_id', %(prefix)s || n, 'created_at', {now},
    'deadline', {now} + 86400))).*
FROM pellucid.calls AS calls, generate_series(1, %(last)s::bigint) AS n WHERE run_id = %(template)s
"""
_ROWS: Final[LiteralString] = """
INSERT INTO pellucid.{table}
SELECT (jsonb_populate_record(rows, jsonb_build_object('run_id', %(prefix)s || n))).*
FROM pellucid.{table} AS rows, generate_series(1, %(last)s::bigint) AS n WHERE run_id = %(template)s
"""
_NOW: Final[LiteralString] = "extract(epoch FROM now())::double precision"


async def waiting_template(store: RunStore) -> str:
    """Return the id of a run that waits for one external call."""
    runs = DurableRuns(store, [typical])
    run_id = await runs.submit(typical, text(300))
    await runs.work_until_idle()
    return run_id


async def submitted_template(store: RunStore) -> str:
    """Return the id of a run that no worker has claimed."""
    return await DurableRuns(store, []).submit(answers, text(300))


async def ended_template(store: RunStore) -> str:
    """Return the id of a run that has waited once and has ended."""
    run_id, runs = await waiting_template(store), DurableRuns(store, [typical])
    [call] = (await runs.status(run_id)).external
    await runs.settle(call.id, output={"answer": text(500)})
    await runs.work_until_idle()
    return run_id


def copy(connection: psycopg.Connection, template: str, prefix: str, number: int, status: str = "waiting") -> list[str]:
    """Insert copies of a run with all that belongs to it, whose status may be another one; return their ids."""
    values = {"template": template, "prefix": prefix, "last": number, "status": status}
    with connection.transaction():
        connection.execute(_RUN.format(now=_NOW), values)
        connection.execute(_CALLS.format(now=_NOW), values)
        for table in ("journal", "events"):
            connection.execute(_ROWS.format(table=table), values)
    return [f"{prefix}{number}" for number in range(1, number + 1)]
