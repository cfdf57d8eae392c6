"""Descriptions of durable runs: who holds one, what it waits for, and what has been done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Tool, ToolCall
from pellucid.durable import DurableRuns
from pellucid.errors import UnknownRun
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from pellucid import ModelRequest, ToolContext
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio


async def look(arguments: Any, ctx: ToolContext) -> str:
    """Return at once."""
    return "found"


async def order(arguments: Any, ctx: ToolContext) -> None:
    """Leave the order to another process."""


def answer(request: ModelRequest) -> Any:
    """Look, then order and ask to pay, then answer."""
    turns = [message for message in request.messages if message.role == "assistant"]
    second = [ToolCall("order", {}, "c2"), ToolCall("pay", {"amount": 7}, "c3")]
    return [[ToolCall("look", {}, "c1")], second, "done"][len(turns)]


def shop() -> Agent:
    """Return an agent with a tool of each kind."""
    tools = [
        Tool(name="look", run=look),
        Tool(name="order", run=order, execution="external-dispatch", pending="wait", expires_in=600),
        Tool(name="pay", run=look, needs_approval=True),
    ]
    return Agent("shop", model=FunctionModel(answer), tools=tools)


async def test_a_run_that_waits(store: RunStore) -> None:
    """Each call that it waits for has times, dispatch, heartbeat and progress; the journal is summed up."""
    runs = DurableRuns(store, [shop()])
    run_id = await runs.submit("shop", "two tickets")
    await runs.work_until_idle()
    [external] = (await runs.status(run_id)).external
    await runs.progress(external.id, {"percent": 40})
    found = await runs.describe(run_id)
    assert (found.run.status, found.run.pending, found.run.worker) == ("waiting", 2, None)
    calls = {call.tool: call for call in found.waits_for}
    assert set(calls) == {"order", "pay"}
    assert (calls["order"].kind, calls["order"].progress) == ("external", {"percent": 40})
    assert calls["order"].created_at <= calls["order"].dispatched_at <= calls["order"].heartbeat_at <= found.now  # type: ignore[operator]
    assert calls["order"].expires_at is not None
    assert calls["order"].expires_at > found.now
    assert (calls["pay"].kind, calls["pay"].expires_at) == ("approval", None)
    assert (found.journal.answers, found.journal.results, found.journal.started) == (2, 1, ())
    assert found.journal.size > 0
    assert found.journal.checkpoint_size > 0
    assert found.journal.last_entry_at is not None
    assert (found.version, found.callback, found.cancel_reason, found.runs_before) == (None, None, None, 0)


async def test_a_run_whose_process_ended_in_a_tool(store: RunStore, location: Location) -> None:
    """The tool that had started is named until the next step, with the worker, its lease, and expired leases."""
    runs = DurableRuns(store, [shop()])
    run_id = await runs.submit("shop", "two tickets")
    claim = await store.claim("host:7", ["shop"], 60)
    assert claim is not None
    await store.append(claim, "started:1:c1:1", {"step": "started", "tool": "look", "call_id": "c1"})
    await store.append(claim, "result:1:c1:1", {"step": "result"})
    await store.append(claim, "started:1:c2:1", {"step": "started", "tool": "order", "call_id": "c2"})
    location.end_leases()
    claim = await store.claim("host:8", ["shop"], 60)
    location.execute(f"INSERT INTO run_versions (run_id, version) VALUES ('{run_id}', '2.1')")
    found = await runs.describe(run_id)
    assert (found.run.status, found.run.worker, found.run.expired_leases) == ("running", "host:8", 1)
    assert found.run.lease_until is not None
    assert found.run.lease_until > found.now
    [started] = found.journal.started
    assert (started.tool, started.tool_call_id, started.started_at <= found.now) == ("order", "c2", True)
    assert found.version == "2.1"
    state = await runs.status(run_id)
    assert (state.worker, state.lease_until, state.created_at) == (
        "host:8",
        found.run.lease_until,
        found.run.created_at,
    )
    assert claim is not None
    await store.append(claim, "answer:2:", {"step": "answer"})
    assert (await runs.describe(run_id)).journal.started == ()


async def test_a_run_that_has_ended(store: RunStore, location: Location) -> None:
    """No tool of a killed claim has started any longer."""
    runs = DurableRuns(store, [Agent("shop", model=FunctionModel(lambda request: "done"))])
    run_id = await runs.submit("shop", "two tickets")
    claim = await store.claim("host:7", ["shop"], 60)
    assert claim is not None
    started = {"step": "started", "tool": "look", "call_id": "c1", "can_repeat": True}
    await store.note(claim, "started:1:c1:1", started)
    assert len((await runs.describe(run_id)).journal.started) == 1
    location.end_leases()
    await runs.work_until_idle()
    found = await runs.describe(run_id)
    assert (found.run.status, found.journal.started) == ("completed", ())


async def test_a_queued_run(store: RunStore) -> None:
    """Its conversation is named, and how many runs of it come first."""
    runs = DurableRuns(store, [shop()], conversations="queue")
    submitted = [await runs.submit("shop", str(number), conversation_id="chat-7") for number in range(3)]
    found = await runs.describe(submitted[-1])
    assert (found.run.status, found.conversation_id, found.runs_before) == ("queued", "chat-7", 2)
    await store.cancel(submitted[0], "not needed")
    assert (await runs.describe(submitted[-1])).runs_before == 1
    assert (await runs.describe(submitted[0])).cancel_reason == "not needed"


async def test_an_unknown_run(store: RunStore) -> None:
    """It is named."""
    with pytest.raises(UnknownRun, match="'nothing'"):
        await DurableRuns(store, []).describe("nothing")
