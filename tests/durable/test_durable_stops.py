"""Durable runs whose worker is stopped, stands still, loses the store, or has a wrong clock."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import Agent, Decision, Limits, Reliability, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns
from pellucid.errors import Fenced, StoreUnavailable
from pellucid.reliability import Rule, fail_fast, retry
from pellucid.run.pausing.fold import INTERRUPTED
from pellucid.testing import FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.durable_agents import JOB, OWED, PAY, Stop, nothing, results
from support.processes import PATIENCE
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_stopped_while_it_claims(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped while it claims a run gives it back at once."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    claim = store.claim
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def stop_and_claim(*arguments: Any, **options: Any) -> Any:
                tasks.cancel_scope.cancel()
                return await claim(*arguments, **options)

            monkeypatch.setattr(store, "claim", stop_and_claim)
            tasks.start_soon(runs.work)
    monkeypatch.undo()
    run = await store.run(run_id)
    assert run is not None
    assert (run.status, run.fence) == ("due", 1)
    assert await within(runs.work_until_idle()) == 1


async def test_stopped_in_a_tool(store: RunStore) -> None:
    """A worker that is stopped gives the run back; results are kept, and a tool that had begun is not repeated."""
    stop, counts = Stop(), {"kept": 0, "stopped": 0, "again": 0}

    def count(name: str) -> Callable[..., Awaitable[Any]]:
        async def run(arguments: Any, ctx: ToolContext) -> Any:
            counts[name] += 1
            if name == "again" and counts[name] == 1:
                await anyio.sleep_forever()
            if name == "stopped":
                while not any(e.key.startswith("result:1:c-kept") for e in await store.journal("run")):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await stop.now()
            return name

        return run

    calls = [ToolCall(name, {}, f"c-{name}") for name in counts]
    tools = [Tool(name=name, run=count(name), idempotent=name == "again") for name in counts]
    model = ScriptedModel(calls, "x")
    agent = Agent("a", model=model, tools=tools)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go", run_id="run")
    with anyio.fail_after(60):
        await stop.work(runs)
        assert (await runs.status(run_id)).status == "due"
        await runs.work_until_idle()
    state = await runs.status(run_id)
    assert results(state) == {"c-kept": "kept", "c-stopped": INTERRUPTED, "c-again": "again"}
    assert counts == {"kept": 1, "stopped": 1, "again": 2}
    assert len(model.requests) == 2


async def test_stopped_while_an_external_call_is_pending(store: RunStore, telemetry: Captured) -> None:
    """A worker that is stopped does not cancel what other processes owe to the run."""
    stop = Stop()
    agent = Agent("a", model=ScriptedModel([ToolCall("job", {}, "c1")], stop.now, "waiting", "x"), tools=[JOB])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await stop.work(runs)
    await within(runs.work_until_idle())
    assert telemetry.find("await_tool job") == []
    [call] = (await runs.status(run_id)).external
    assert (await runs.settle(call.id, output=1)).is_run_due
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).output == "x"
    assert len(telemetry.find("await_tool job")) == 1


async def test_stopped_with_a_call_in_the_background(store: RunStore) -> None:
    """A call in the background ends with its process; the model reads once that it was interrupted."""
    stop = Stop()

    async def forever(arguments: Any, ctx: ToolContext) -> None:
        await anyio.sleep_forever()

    steps: list[Any] = [ToolCall("slow", {}, "c1"), stop.now, "waiting", "x"]
    agent = Agent("a", model=ScriptedModel(*steps), tools=[Tool(name="slow", run=forever, execution="same-invocation")])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await stop.work(runs)
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output) == ("completed", "waiting")
    [delivered] = [answer for key, answer in results(state).items() if key.startswith("status_")]
    assert (delivered["status"], delivered["error"]) == ("failed", INTERRUPTED)


async def test_stopped_while_it_corrects_its_answer(store: RunStore) -> None:
    """An answer that did not fit is still the first attempt after an interruption; the second must fit."""
    stop = Stop()
    model = ScriptedModel('{"result": "no number"}', stop.now, '{"result": "still none"}')
    agent = Agent("a", model=model, output=int)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await stop.work(runs)
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, len(model.requests)) == ("failed", 3)
    assert state.error_type is not None


async def test_stopped_at_the_limit(store: RunStore) -> None:
    """A run that had reached its limit asks for the closing answer only."""
    stop = Stop()
    model = ScriptedModel(ToolCall("do", {}, "c1"), stop.now, "closing")
    agent = Agent("a", model=model, tools=[Tool(name="do", run=nothing)], limits=Limits(max_iterations=1))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await stop.work(runs)
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output, state.stop_reason) == ("completed", "closing", "max_iterations")
    assert [len(request.tools) for request in model.requests] == [1, 0, 0]


@pytest.mark.parametrize("offset", [-3600.0, 3600.0])
async def test_a_clock_an_hour_off(store: RunStore, monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    """A worker whose clock is wrong accepts results and decisions, since the store decides what has expired."""
    owed = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait", expires_in=600.0)
    model = ScriptedModel([ToolCall("owed", {}, "c1"), ToolCall("pay", {}, "c2")], "x")
    agent = Agent("a", model=model, tools=[owed, PAY], limits=Limits(approval_timeout=600.0))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    await runs.settle(state.external[0].id, output=1)
    await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + int(offset * 1e9))
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, results(state)) == ("completed", {"c1": 1, "c2": "c2 done"})


def stand_still(location: Location, backend: str) -> None:
    """Let the event loop stand still beyond the lease, as in a process that is stopped, while another one recovers.

    A claim that the process had just sent may take the run first, with a lease of its own.
    """

    async def recover() -> None:
        with anyio.fail_after(PATIENCE):
            async with location.open() as other:
                location.end_leases()
                while not (await other.recover()).run_ids:
                    location.end_leases()

    thread = threading.Thread(target=lambda: anyio.run(recover, backend=backend))
    thread.start()
    thread.join()
    pass_time()


async def test_fenced_before_a_dispatch(store: RunStore, location: Location, anyio_backend: str) -> None:
    """A call that cannot be registered is not dispatched, and no rule retries it; another pass dispatches it."""
    delays: list[float] = []
    calls: list[str] = []

    def stop_once(situation: Any) -> bool:
        if situation.operation == "tool" and not calls:
            calls.append("stopped")
            stand_still(location, anyio_backend)
        return False

    async def sleep(delay: float) -> None:
        delays.append(delay)

    async def enqueue(arguments: Any, ctx: ToolContext) -> None:
        calls.append(ctx.tool_call_id)

    tool = Tool(name="owed", run=enqueue, execution="external-dispatch", pending="wait", idempotent=True)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("owed", {}, "c"))
    retries = Rule(when=lambda situation: situation.error is not None, then=retry(), kind="all")
    rules = Reliability([retries], pre_check=[Rule(when=stop_once, then=fail_fast(), kind="still")], sleep=sleep)
    agent = Agent("a", model=model, tools=[tool], reliability=rules)
    runs = DurableRuns(store, [agent], lease=SOON)
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            for call in state.external:
                await runs.settle(call.id, output=1)
    assert (state.status, results(state)) == ("completed", {"c": 1})
    assert calls == ["stopped", "c"]
    assert len(model.requests) == 2
    assert delays == []


@pytest.mark.parametrize("method", ["append", "register", "mark_dispatched", "end_pass"])
async def test_the_store_is_away(
    store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A write that fails ends the pass, and the model reads nothing of it; the run goes on when the lease is over."""
    write, failures = getattr(store, method), [1]

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreUnavailable("test")
        return await write(*arguments, **options)

    monkeypatch.setattr(store, method, fail_once)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("owed", {}, "c"))
    agent = Agent("a", model=model, tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            location.end_leases()
            for call in state.external:
                await runs.settle(call.id, output=1)
    assert not failures
    assert (state.status, state.output, results(state)) == ("completed", "x", {"c": 1})


@pytest.mark.parametrize("execution", [None, "external-dispatch"])
async def test_fenced(store: RunStore, location: Location, anyio_backend: str, execution: Any) -> None:
    """A worker that stood still beyond its lease writes nothing, whatever its rules; the run goes on elsewhere."""
    calls: list[str] = []

    async def still(arguments: Any, ctx: ToolContext) -> str:
        calls.append(ctx.tool_call_id)
        if len(calls) == 1:
            stand_still(location, anyio_backend)
        return "done"

    tool = Tool(name="still", run=still, execution=execution)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("still", {}, "c"))
    rules = Reliability(
        post_decide=[Rule(when=lambda situation: situation.error is not None, then=retry(), kind="all")]
    )
    agent = Agent("a", model=model, tools=[tool], reliability=rules)
    runs = DurableRuns(store, [agent], lease=SOON)
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            for call in state.external:
                await runs.settle(call.id, output=1)
    assert state.status == "completed", state.error
    if execution is None:
        assert calls == ["c"]
        assert results(state) == {"c": INTERRUPTED}
    run = await store.run(run_id)
    assert run is not None
    assert run.fence >= 2


async def stopped(scope: anyio.CancelScope) -> None:
    """Stop the worker, return once its run has been cancelled, and leave it time to write, however busy the machine."""
    scope.cancel()
    with anyio.CancelScope(shield=True):
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
    pass_time(-SOON)


@pytest.mark.parametrize("step", ["answer", "result", "dispatched"])
async def test_stopped_while_it_writes_what_has_happened(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, telemetry: Captured, step: str
) -> None:
    """A step that has ended when the worker is stopped is written before the run is given back, and not done again."""
    scope, counts = anyio.CancelScope(), Counter[str]()

    def stopping(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def stop_and_write(*arguments: Any, **options: Any) -> Any:
            if write.__name__ == "mark_dispatched" or arguments[1].startswith(step):
                await stopped(scope)
            return await write(*arguments, **options)

        return stop_and_write

    async def count(arguments: Any, ctx: ToolContext) -> str:
        counts[ctx.tool_call_id] += 1
        return "done"

    execution: Any = "external-dispatch" if step == "dispatched" else None
    tool = Tool(name="do", run=count, execution=execution, pending="wait" if execution else "continue")
    model = ScriptedModel(ToolCall("do", {}, "c1"), "x")
    agent = Agent("a", model=model, tools=[tool])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    method = "mark_dispatched" if step == "dispatched" else "append"
    monkeypatch.setattr(store, method, stopping(getattr(store, method)))
    with scope:
        await within(runs.work_until_idle())
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert (await runs.status(run_id)).status == "due"
    await within(runs.work_until_idle())
    for call in (await runs.status(run_id)).external:
        await runs.settle(call.id, output="done")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.error, results(state)) == ("completed", None, {"c1": "done"})
    assert (counts, len(model.requests)) == ({"c1": 1}, 2)
    assert sum(event.name == "async_tool.dispatched" for event in telemetry.events) == (step == "dispatched")


async def test_stopped_while_the_store_does_not_answer(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped worker does not wait for a write that hangs; the run goes on without it, and the write is refused."""
    scope, append = anyio.CancelScope(), store.append
    returned, refused = anyio.Event(), anyio.Event()

    async def hang(claim: Any, key: str, *arguments: Any) -> Any:
        if not key.startswith("result") or returned.is_set():
            return await append(claim, key, *arguments)
        scope.cancel()
        await returned.wait()
        try:
            return await append(claim, key, *arguments)
        except Fenced:
            refused.set()
            raise

    agent = Agent("a", model=ScriptedModel(ToolCall("do", {}, "c1"), "x"), tools=[Tool(name="do", run=nothing)])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    monkeypatch.setattr(store, "append", hang)
    with scope:
        await within(runs.work_until_idle())
    returned.set()
    await within(refused.wait())
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, results(state)) == ("completed", {"c1": INTERRUPTED})


async def test_stopped_before_a_tool_begins(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, telemetry: Captured
) -> None:
    """A tool does not begin in a worker that was stopped while it wrote that the tool would run."""
    scope, counts, append = anyio.CancelScope(), Counter[str](), store.append

    async def write_and_stop(claim: Any, key: str, *arguments: Any) -> Any:
        lease = await append(claim, key, *arguments)
        if key.startswith("started"):
            await stopped(scope)
        return lease

    async def count(arguments: Any, ctx: ToolContext) -> str:
        counts[ctx.tool_call_id] += 1
        return "done"

    agent = Agent("a", model=ScriptedModel(ToolCall("do", {}, "c1"), "x"), tools=[Tool(name="do", run=count)])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    monkeypatch.setattr(store, "append", write_and_stop)
    with scope:
        await within(runs.work_until_idle())
    monkeypatch.undo()
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, results(state)) == ("completed", {"c1": INTERRUPTED})
    assert not counts
    [span] = telemetry.find("execute_tool do")
    assert span.attributes[semconv.OUTCOME] == "cancelled"
