"""A durable run of every feature of the loop, whose worker is stopped at each of its commits."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Decision, Limits, Tool, ToolCall, ToolResult
from pellucid.durable import DurableRuns
from pellucid.run.pausing.fold import INTERRUPTED
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from pellucid import ModelRequest, ToolContext
    from pellucid.durable import RunStore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DISCOVERY = "__lazy__tool__discovery__"
CALLS = ("late", "slow", "job", "clerk")


class Interruption:
    """Stops the worker before or after a number of commits of its store; a number that is not reached stops nothing."""

    def __init__(self, store: RunStore, number: int) -> None:
        self._store: Any = store
        self._number = number
        self._write = self._store._write
        self.commits = 0
        self.is_over = False

    async def run(self, runs: DurableRuns) -> None:
        """Work until nothing is due, or until stopped."""
        scope = anyio.CancelScope()

        async def write(work: Any, **options: Any) -> Any:
            self.commits = commit = self.commits + 1
            if commit * 2 == self._number:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
            result = await self._write(work, **options)
            if commit * 2 + 1 == self._number:
                scope.cancel()
            return result

        self._store._write = write
        try:
            with scope:
                await runs.work_until_idle()
        finally:
            self._store._write = self._write
            self.is_over = scope.cancel_called


def results_of(request: Any) -> dict[str, Any]:
    """Return the results in a conversation, by ids of calls."""
    parts = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    return {part.id or "": part.response for part in parts}


def make(counts: dict[str, int]) -> Agent[None, int]:
    """Return an agent that discovers a tool, calls all kinds of tools, asks for a status, and corrects its answer."""

    async def count(arguments: Any, ctx: ToolContext) -> str:
        counts[ctx.tool_call_id] = counts.get(ctx.tool_call_id, 0) + 1
        return "done"

    def answer(request: ModelRequest) -> Any:
        results = results_of(request)
        if "c-find" not in results:
            return ToolCall(DISCOVERY, {"toolNames": ["late"]}, "c-find")
        if "c-late" not in results:
            assert "late" in [tool.name for tool in request.tools]
            return [ToolCall(name, {"input": "?"} if name == "clerk" else {}, f"c-{name}") for name in CALLS]
        if "c-status" not in results:
            job = results["c-job"]
            return ToolCall("async_status", {"resultId": job["resultId"]}, "c-status")
        if sum(call_id.startswith("status_") for call_id in results) < sum(
            isinstance(results[call_id], dict) for call_id in ("c-slow", "c-job")
        ):
            return "waiting"
        return '{"result": 3}' if request.messages[-1].role == "user" else '{"result": "three"}'

    def inner(request: ModelRequest) -> Any:
        return "inner" if "i-pay" in results_of(request) else ToolCall("pay", {}, "i-pay")

    pay = Tool(name="pay", run=count, needs_approval=True)
    clerk = Agent("clerk", model=FunctionModel(inner), tools=[pay], description="Pays.")
    tools = [
        Tool(name="late", run=count, lazy=True),
        Tool(name="slow", run=count, execution="same-invocation"),
        Tool(name="job", run=count, execution="external-dispatch"),
        clerk.as_tool(),
    ]
    limits = Limits(max_iterations=12)
    return Agent("a", model=FunctionModel(answer), tools=tools, output=int, limits=limits)


async def go_through(store: RunStore, run_id: str, number: int) -> int:
    """Go through a run that is interrupted once; check its end, and return the number of commits before."""
    counts: dict[str, int] = {}
    agent = make(counts)
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "go", run_id=run_id)
    interruption = Interruption(store, number)
    while not (state := await runs.status(run_id)).is_over:
        if interruption.is_over:
            await runs.work_until_idle()
        else:
            await interruption.run(runs)
        state = await runs.status(run_id)
        if state.status == "waiting":
            await runs.decide(run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output="settled")
    where = f"interrupted at {number}: {state.error} {results_of(state)}"
    assert (state.status, state.output) == ("completed", 3), where
    results = results_of(state)
    assert [call.id for message in state.messages for call in message.tool_calls] == list(results), where
    assert results["c-late"] in ("done", INTERRUPTED), where
    assert results["c-clerk"] in ("inner", INTERRUPTED), where
    for call_id in ("c-late", "c-slow", "i-pay"):
        assert counts.get(call_id, 0) <= 1, where
    assert counts["c-job"] <= 2, where
    assert "c-status" in results, where
    delivered = [answer for call_id, answer in results.items() if call_id.startswith("status_")]
    running = [call_id for call_id in ("c-slow", "c-job") if isinstance(results[call_id], dict)]
    assert len(delivered) == len(running), where
    for answer in delivered:
        expected = [("completed", "done"), ("completed", "settled"), ("failed", INTERRUPTED)]
        assert (answer["status"], answer.get("result", answer.get("error"))) in expected, where
    run = await store.run(run_id)
    assert run is not None
    assert run.pending == 0, where
    return interruption.commits if interruption.is_over else -1


async def test_interrupted_at_each_commit(store: RunStore) -> None:
    """Wherever a worker is stopped, the run ends with the same answer, each call with one result."""
    with anyio.fail_after(300):
        for number in itertools.count(2):
            if await go_through(store, f"run-{number}", number) < 0:
                break
        assert number > 40


async def cancelled_at(store: RunStore, run_id: str, number: int) -> bool:
    """Go through a run that is cancelled before one of its commits; return whether it had that many."""
    agent = make({})
    runs = DurableRuns(store, [agent], lease=1.0)
    await runs.submit(agent, "go", run_id=run_id)
    anything: Any = store
    original, commits, outcomes = anything._write, 0, list[str]()

    async def write(work: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == number:
            outcomes.append((await runs.cancel(run_id, "enough")).outcome)
        return await original(work, **options)

    anything._write = write
    try:
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            state = await runs.status(run_id)
            await runs.decide(run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output="settled")
    finally:
        anything._write = original
    where = f"cancelled at {number}: {outcomes} {state.error}"
    types = [event.type async for event in runs.events(run_id) if event.type.startswith("run.")]
    assert types[-1] == f"run.{state.status}", where
    assert types.count("run.cancelled") == (state.status == "cancelled"), where
    if outcomes and outcomes != ["ended"]:
        assert state.status == "cancelled" or types[-1] == "run.completed", where
        assert (state.approvals, state.external) == ((), ()), where
    run = await store.run(run_id)
    assert run is not None
    assert run.pending == 0, where
    assert {call.status for call in await store.calls(run_id)}.isdisjoint({"processing"}), where
    return bool(outcomes)


async def test_cancelled_at_each_commit(store: RunStore) -> None:
    """Whenever a run is cancelled, it ends once, with its calls, and its last event says how."""
    with anyio.fail_after(300):
        for number in itertools.count(1):
            if not await cancelled_at(store, f"run-{number}", number):
                break
        assert number > 20


async def test_a_sub_agents_call_is_settled_before_its_pass_ends(store: RunStore) -> None:
    """The worker is stopped after that: the next one resumes the sub-agent in the same pass."""
    may_end = False

    async def stall(_arguments: Any, _ctx: ToolContext) -> str:
        if not may_end:
            await anyio.sleep_forever()
        return "done"

    async def enqueue(_arguments: Any, _ctx: ToolContext) -> None:
        return None

    def answer(request: ModelRequest) -> Any:
        results = results_of(request)
        return results["c-clerk"] if results else [ToolCall("clerk", {"input": "?"}, "c-clerk"), ToolCall("stall")]

    def inner(request: ModelRequest) -> Any:
        return results_of(request).get("i-job") or ToolCall("job", {}, "i-job")

    job = Tool(name="job", run=enqueue, execution="external-dispatch", pending="wait")
    clerk = Agent("clerk", model=FunctionModel(inner), tools=[job], description="Asks.")
    tools = [clerk.as_tool(), Tool(name="stall", run=stall, idempotent=True)]
    agent = Agent("a", model=FunctionModel(answer), tools=tools)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as worker:
            worker.start_soon(runs.work)
            async with aclosing(runs.events(run_id)) as events:
                async for event in events:
                    if event.type == "step.result":  # of the sub-agent, which waits
                        break
            (call,) = await store.calls(run_id)
            await runs.settle(call.id, output="settled")
            worker.cancel_scope.cancel()
        may_end = True
        await runs.work_until_idle()
    state = await runs.status(run_id)
    assert (state.status, state.error, state.output) == ("completed", None, "settled")
