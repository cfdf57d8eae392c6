"""What the row of a run has: question, answer, caller, failures within, and usage so far."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from opentelemetry import trace

from pellucid import Agent, CapturePolicy, Identity, ToolCall, ToolError, semconv, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.local import schema
from support.local_store import storing
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
    """Where to write."""
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
    """With who asked, the version, the conversation and the number of failures within."""
    with storing(path) as telemetry:
        await ask(telemetry)
        (row,) = StoreReader(path).runs()
    assert (row.question, row.answer) == ("What does the scarf cost?", "It costs 12 euros. Sorry.")
    assert (row.user, row.tenant, row.conversation, row.version) == ("ann", "knit & co", "c-7", "3")
    assert (row.status, row.faults) == ("completed", 1)


@pytest.mark.anyio
async def test_a_row_has_no_more_than_was_recorded(path: Path) -> None:
    """Without content, there are only ids, versions and counts."""
    with storing(path, capture=CapturePolicy(mode="metadata")) as telemetry:
        await ask(telemetry)
        (row,) = StoreReader(path).runs()
    assert (row.question, row.answer, row.user, row.tenant) == (None, None, None, None)
    assert (row.conversation, row.version, row.faults) == ("c-7", "3", 1)
    with closing(sqlite3.connect(path)) as connection:
        assert not any("scarf" in str(found) for found in connection.execute("SELECT * FROM runs"))


def test_a_run_in_flight_has_its_usage_so_far(path: Path) -> None:
    """The sum of its model calls that have ended, until it says its own; the question comes from the first of them."""
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
    """A store is migrated in place, and a writer of the version before that runs at the same time goes on."""
    with closing(old_store(path)) as connection:
        reader = StoreReader(path)
        add_old_run(connection, "late")
        rows = reader.runs(tool="price")
        assert {row.run_id for row in rows} == {"old", "late"}
        assert {(row.question, row.answer, row.user, row.faults) for row in rows} == {(None, None, None, None)}
