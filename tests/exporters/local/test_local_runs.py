"""Rows of runs: question, answer, caller, failures within, and usage so far."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from opentelemetry import trace

from pellucid import Agent, CapturePolicy, Identity, ToolCall, ToolError, semconv, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import Local, StoreReader
from pellucid_exporters.local import schema
from pellucid_exporters.stored.run_search import RunFilter
from support.local_store import emit, eventually, storing
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry

IDENTITY = Identity(tenant="knit & co", principal="ann", conversation_id="c-7")
BEFORE = schema.MIGRATIONS[:5]
"""Migrations of the version before questions and answers."""


@tool
async def fail() -> str:
    """Raise."""
    raise ToolError("no")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store."""
    return tmp_path / "telemetry" / "store.db"


async def ask(telemetry: Telemetry) -> None:
    """Run an agent once, whose tool fails."""
    model = ScriptedModel(ToolCall("fail", {}), "It costs 12 euros.\nSorry.")
    agent = Agent("shop", version="3", model=model, tools=[fail], telemetry=telemetry)
    with anyio.fail_after(PATIENCE):
        await agent.run("What does\n the scarf cost?", identity=IDENTITY)
        assert await anyio.to_thread.run_sync(telemetry.flush, PATIENCE)


@pytest.mark.anyio
async def test_a_row_has_what_was_asked_and_answered(path: Path) -> None:
    """A row has the question, the answer, the caller, the version, the conversation and the number of failures."""
    with storing(path) as telemetry:
        await ask(telemetry)
        (row,) = StoreReader(path).runs()
    assert (row.question, row.answer) == ("What does the scarf cost?", "It costs 12 euros. Sorry.")
    assert (row.user, row.tenant, row.conversation, row.version) == ("ann", "knit & co", "c-7", "3")
    assert (row.status, row.faults) == ("completed", 1)


@pytest.mark.anyio
async def test_a_row_has_no_more_than_was_recorded(path: Path) -> None:
    """A row without recorded content has only ids, versions and counts."""
    with storing(path, capture=CapturePolicy(mode="metadata")) as telemetry:
        await ask(telemetry)
        (row,) = StoreReader(path).runs()
    assert (row.question, row.answer, row.user, row.tenant) == (None, None, None, None)
    assert (row.conversation, row.version, row.faults) == ("c-7", "3", 1)
    with closing(sqlite3.connect(path)) as connection:
        assert not any("scarf" in str(found) for found in connection.execute("SELECT * FROM runs"))


def test_a_run_in_flight_has_its_usage_so_far(path: Path) -> None:
    """A run in flight has the sum of the usage of its ended model calls, and the question of the first of them."""
    asked = '[{"role": "user", "parts": [{"type": "text", "content": "How much?"}]}]'
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        run = {semconv.RUN_ID: "r", semconv.PHASE: semconv.RUN}
        root = tracer.start_span("invoke_agent shop", attributes=run)
        context = trace.set_span_in_context(root)
        for cost in (0.25, 0.5):
            attributes: dict[str, Any] = {
                semconv.RUN_ID: "r",
                semconv.PHASE: semconv.INFERENCE,
                semconv.INPUT_MESSAGES: asked,
                semconv.USAGE_INPUT_TOKENS: 100,
                semconv.USAGE_OUTPUT_TOKENS: 10,
                semconv.COST_USD: cost,
            }
            tracer.start_span("chat", context, attributes=attributes).end()
            assert telemetry.flush(PATIENCE)
        (row,) = StoreReader(path).runs()
        assert (row.status, row.question) == ("running", "How much?")
        assert (row.input_tokens, row.output_tokens, row.cost) == (200, 20, 0.75)
        root.set_attribute(semconv.COST_USD, 0.8)
        root.end()
        assert telemetry.flush(PATIENCE)
        (row,) = StoreReader(path).runs()
    assert (row.input_tokens, row.cost) == (None, 0.8)


def old_store(path: Path) -> sqlite3.Connection:
    """Create a store of the version before, with a run, and return a connection to it."""
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    for statements in BEFORE:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(BEFORE)}")
    add_old_run(connection, "old")
    return connection


def add_old_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Write a run that failed and called a tool as the version before does."""
    (key,) = connection.execute(
        "INSERT INTO runs (run_id, trace_id, agent, process, start, last, ended, outcome, error, iterations, spans) "
        "VALUES (?, x'00', 'shop', 1, 10, 20, 20, 'failed', 'the vendor answered 529', 1, 1) RETURNING key",
        (run_id,),
    ).fetchone()
    connection.execute("INSERT OR IGNORE INTO parts VALUES (?, 'tool', 'price')", (key,))


def test_runs_of_the_version_before_have_no_question(path: Path) -> None:
    """Runs of the version before have no question; the store is migrated while such a writer goes on."""
    with closing(old_store(path)) as connection:
        reader = StoreReader(path)
        add_old_run(connection, "late")
        rows = reader.runs(tool="price")
        assert {row.run_id for row in rows} == {"old", "late"}
        assert {(row.question, row.answer, row.user, row.faults) for row in rows} == {(None, None, None, None)}


def test_texts_of_a_writer_of_the_version_before_are_found(path: Path) -> None:
    """Texts of a writer of the version before are found, also before the next writer adds them to the index."""

    def due() -> list[Any]:
        return connection.execute("SELECT key FROM texts_due").fetchall()

    with storing(path) as telemetry, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        emit(telemetry, "chat")
        assert telemetry.flush(PATIENCE)
        add_old_run(connection, "late")
        add_old_run(connection, "deleted")
        connection.execute("DELETE FROM runs WHERE run_id = 'deleted'")
        found = RunFilter(text="ANSWERED 529")
        reader = StoreReader(path)
        assert len(due()) == 1
        assert [match.run_id for match in reader.search(found).matches] == ["late"]
        emit(telemetry, "chat")
        assert telemetry.flush(PATIENCE)
        assert due() == []
        assert [match.run_id for match in reader.search(found).matches] == ["late"]
        connection.execute("INSERT INTO run_texts (run_texts) VALUES ('integrity-check')")


def test_counts_and_index_follow_the_runs(path: Path) -> None:
    """Counts and index follow runs that change, and runs that are deleted because of their age."""
    start = time.time_ns() - 2 * 3600 * 10**9
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        run: dict[str, Any] = {semconv.RUN_ID: "old", semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "shop"}
        root = tracer.start_span("invoke_agent shop", attributes=run, start_time=start)
        context = trace.set_span_in_context(root)
        used = {**run, semconv.PHASE: semconv.DISPATCH, semconv.TOOL_NAME: "price"}
        tracer.start_span("execute_tool price", context, attributes=used, start_time=start).end(start + 1)
        assert telemetry.flush(PATIENCE)
        root.set_attributes({semconv.OUTCOME: "failed"})
        root.set_status(trace.StatusCode.ERROR, "the vendor answered 529")
        root.end(start + 2)
        assert telemetry.flush(PATIENCE)
        reader = StoreReader(path)
        assert [(hour.outcome, hour.runs) for hour in reader.hours(0, 2**62, "shop")] == [("failed", 1)]
        assert [match.run_id for match in reader.search(RunFilter(text="ANSWERED 529", tool="price")).matches] == [
            "old"
        ]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE counters SET value = 0 WHERE name = 'retained_at'")
        connection.commit()
    with storing(Local(path, max_age=3600)):
        assert eventually(lambda: reader.hours(0, 2**62) == [])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM part_runs").fetchone() == (0,)
        connection.execute("INSERT INTO run_texts (run_texts) VALUES ('integrity-check')")
