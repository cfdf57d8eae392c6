"""Durable runs of agents: passes, what they wait for, and what happens when a worker stops."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from pellucid import (
    Agent,
    CheckpointError,
    ConfigError,
    Decision,
    Identity,
    Limits,
    Message,
    Reliability,
    Rule,
    Tool,
    ToolCall,
    ToolResult,
    fail_fast,
    retry,
)
from pellucid.durable_runs import DurableRuns, RunState
from pellucid.errors import IdempotencyConflict, StoreUnavailable, UnknownRun
from pellucid.run.fold import INTERRUPTED
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def nothing(arguments: Any, ctx: ToolContext) -> str:
    """Do nothing."""
    return f"{ctx.tool_call_id} done"


JOB = Tool(name="job", run=nothing, execution="external-dispatch")
OWED = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait")
PAY = Tool(name="pay", run=nothing, needs_approval=True)


class Stop:
    """A worker that is stopped by what it runs."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    async def now(self, *_: object) -> Any:
        """Stop the worker."""
        self._scope.cancel()
        await anyio.sleep_forever()

    async def work(self, runs: DurableRuns) -> None:
        """Work until stopped."""
        with self._scope:
            await within(runs.work_until_idle())
        assert self._scope.cancelled_caught


def results(state: RunState) -> dict[str, Any]:
    """Return the results in a conversation, by ids of calls."""
    parts = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
    return {part.id or "": part.response for part in parts}


async def test_a_group_of_approval_and_external_calls(store: RunStore, telemetry: Captured) -> None:
    """The run waits for the decision and both results, and goes on once, in the trace of the caller."""
    seen: list[Any] = []

    async def look(arguments: Any, ctx: ToolContext) -> str:
        seen.append((ctx.deps, ctx.identity))
        return "seen"

    calls = [ToolCall(name, {}, f"c-{name}") for name in ("job", "owed", "pay", "look")]
    model = ScriptedModel(calls, "the end")
    agent = Agent("a", model=model, tools=[JOB, OWED, PAY, Tool(name="look", run=look)])
    runs = DurableRuns(store, [agent], deps="deps")
    identity = Identity(principal="ann")
    run_id = await runs.submit(agent, "go", history=[Message("user", "before")], identity=identity)
    assert (await runs.status(run_id)).status == "due"
    assert await within(runs.work_until_idle()) == 1
    state = await runs.status(run_id)
    assert (state.status, state.is_over, state.output) == ("waiting", False, None)
    assert [request.tool_name for request in state.approvals] == ["pay"]
    assert {call.tool for call in state.external} == {"job", "owed"}
    assert all(call.dispatched_at is not None for call in state.external)
    assert await within(runs.work_until_idle()) == 0
    for call in state.external:
        settlement = await runs.settle(call.id, output=f"{call.tool} is done")
        assert (settlement.outcome, settlement.is_run_due) == ("settled", False)
    [decided] = await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
    assert decided.is_run_due
    assert await within(runs.work_until_idle()) == 1
    state = await runs.status(run_id)
    assert (state.status, state.output, state.stop_reason) == ("completed", "the end", "stop")
    assert state.messages[0].text == "before"
    answers = results(state)
    assert (answers["c-owed"], answers["c-pay"], answers["c-look"]) == ("owed is done", "c-pay done", "seen")
    [delivered] = [answer["result"] for key, answer in answers.items() if key.startswith("status_")]
    assert delivered == "job is done"
    assert seen == [("deps", identity)]
    assert len(model.requests) == 2
    assert len({span.context.trace_id for span in telemetry.spans if span.context}) == 1
    types = [event.type async for event in runs.events(run_id)]
    assert [name for name in types if name.startswith("run.")] == ["run.waiting", "run.completed"]
    assert types.count("async_tool.settled") == 2
    assert [event.type async for event in runs.events(run_id, after=len(types) * 99)] == []


async def test_submitted_once(store: RunStore) -> None:
    """The same id or key submits one run; another input, agent or type is refused."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    assert await runs.submit(agent, "go", run_id="one") == await runs.submit("a", "go", run_id="one") == "one"
    with pytest.raises(IdempotencyConflict):
        await runs.submit(agent, "other", run_id="one")
    key = await runs.submit(agent, "go", idempotency_key="k")
    assert await runs.submit(agent, "go", idempotency_key="k") == key
    with pytest.raises(ConfigError, match="unknown agent 'b'; known agents are 'a'"):
        await runs.submit("b", "go")
    with pytest.raises(ConfigError, match="same name"):
        DurableRuns(store, [agent, agent])
    with pytest.raises(ConfigError, match="must be positive"):
        DurableRuns(store, [agent], lease=0)
    with pytest.raises(UnknownRun):
        await runs.status("unknown")


async def test_outcomes_of_decisions_and_results(store: RunStore) -> None:
    """Repeated, different, late and unknown ones are told apart, and an invalid decision is refused."""
    agent = Agent(
        "a", model=ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("pay", {}, "c2")], "y"), tools=[JOB, PAY]
    )
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    [approval], [call] = state.approvals, state.external
    denied = Decision(approval.approval_id, approved=False, reason="no")
    outcomes = [
        *await runs.decide(
            run_id, [denied, denied, Decision(approval.approval_id, approved=True), Decision("?", True)]
        ),
        await runs.settle(call.id, error="no luck"),
        await runs.settle(call.id, error="no luck"),
        await runs.settle(call.id, output=1),
        await runs.settle("async_tool_?", output=1),
        await runs.settle(approval.approval_id, output=1),
    ]
    expected = ["settled", "duplicate", "conflict", "unknown", "settled", "duplicate", "conflict", "unknown", "unknown"]
    assert [outcome.outcome for outcome in outcomes] == expected
    with pytest.raises(CheckpointError, match="is denied, but its arguments are changed"):
        await runs.decide(run_id, [Decision(approval.approval_id, approved=False, arguments={"n": 1})])
    await within(runs.work_until_idle())
    answers = results(await runs.status(run_id))
    assert answers["c2"] == "Not run: a person denied this call: no. Do not retry unless asked to."
    assert [answer["error"] for key, answer in answers.items() if key.startswith("status_")] == ["no luck"]


async def test_expired(store: RunStore) -> None:
    """Approvals and calls past their deadlines settle as expired, and the model reads so."""
    job = Tool(name="job", run=nothing, execution="external-dispatch", pending="wait", deadline=0.01)
    model = ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("pay", {}, "c2")], "y")
    agent = Agent("a", model=model, tools=[job, PAY], limits=Limits(approval_timeout=0.01))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
    answers = results(state)
    assert answers["c1"].startswith("The call expired: there was no result within ")
    assert answers["c2"] == "Not run: approval expired. Do not retry unless asked to."
    events = [(event.type, event.data.get("status")) async for event in runs.events(run_id)]
    assert {("async_tool.settled", "expired"), ("approval.expired", None)} <= {*events}


async def test_failed(store: RunStore) -> None:
    """A run that raises is failed, with the type and the redacted text of the error; nothing is lost."""
    agent = Agent("a", model=ScriptedModel(ValueError("password=hunter2222 is wrong")))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.error_type) == ("failed", "ValueError")
    assert state.error is not None
    assert "is wrong" in state.error
    assert "hunter2222" not in state.error
    assert [(event.type, event.data) async for event in runs.events(run_id)] == [
        ("run.failed", {"error_type": "ValueError"})
    ]


async def test_cancelled_while_it_waits(store: RunStore) -> None:
    """A run that waits is cancelled at once, with its calls; a result that comes then is late."""
    agent = Agent("a", model=ScriptedModel([ToolCall("owed", {}, "c1")]), tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    [call] = (await runs.status(run_id)).external
    assert (await runs.cancel(run_id, "no longer needed")).outcome == "cancelled"
    state = await runs.status(run_id)
    assert (state.status, state.error, state.external) == ("cancelled", "no longer needed", ())
    assert (await runs.settle(call.id, output=1)).outcome == "late"
    assert await within(runs.work_until_idle()) == 0


async def test_cancelled_while_it_runs(store: RunStore) -> None:
    """A worker that holds the run sees that it was cancelled when it renews its lease, and stops the tool."""
    started, stopped = anyio.Event(), anyio.Event()

    async def wait(arguments: Any, ctx: ToolContext) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    agent = Agent("a", model=ScriptedModel([ToolCall("wait", {}, "c1")]), tools=[Tool(name="wait", run=wait)])
    runs = DurableRuns(store, [agent], lease=1.0)
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            await started.wait()
            assert (await runs.cancel(run_id, "enough")).outcome == "requested"
        await stopped.wait()
    state = await runs.status(run_id)
    assert (state.status, state.error) == ("cancelled", "enough")


async def test_a_worker_that_waits_for_work(store: RunStore) -> None:
    """A worker runs what is submitted, and what is settled, without being told."""
    agent = Agent(
        "a",
        model=FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("owed", {}, "c")),
        tools=[OWED],
    )
    runs = DurableRuns(store, [agent], poll=0.05)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work)
            run_ids = [await runs.submit(agent, "go") for _ in range(12)]
            for run_id in run_ids:
                async for event in runs.events(run_id):
                    if event.type == "run.waiting":
                        [call] = (await runs.status(run_id)).external
                        await runs.settle(call.id, output="o")
            tasks.cancel_scope.cancel()
    assert {(await runs.status(run_id)).output for run_id in run_ids} == {"x"}


async def test_stopped_while_it_claims(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped while it claims a run gives it back at once."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    claim = store.claim
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def stop_and_claim(*arguments: Any) -> Any:
                tasks.cancel_scope.cancel()
                return await claim(*arguments)

            monkeypatch.setattr(store, "claim", stop_and_claim)
            tasks.start_soon(runs.work)
    monkeypatch.undo()
    run = await store.run(run_id)
    assert run is not None
    assert (run.status, run.fence) == ("due", 1)
    assert await within(runs.work_until_idle()) == 1


async def test_fifty_settlements_at_once(store: RunStore) -> None:
    """Of fifty callers that settle the same two calls at once, two count, and the run goes on once."""
    model = ScriptedModel([ToolCall("owed", {}, "c1"), ToolCall("owed", {}, "c2")], "x")
    agent = Agent("a", model=model, tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    calls = (await runs.status(run_id)).external
    outcomes: list[tuple[str, bool]] = []

    async def settle(number: int) -> None:
        settlement = await runs.settle(calls[number % 2].id, output="same")
        outcomes.append((settlement.outcome, settlement.is_run_due))
        await runs.work_until_idle()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(settle, number)
    assert sorted(outcomes) == [("duplicate", False)] * 48 + [("settled", False), ("settled", True)]
    state = await runs.status(run_id)
    assert (state.status, state.passes, len(model.requests)) == ("completed", 2, 2)


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


async def test_links_of_a_continuation(store: RunStore, telemetry: Captured) -> None:
    """The next pass is in the trace of the submission, and linked to the pass before, the wait and the settlement."""

    def span(number: int) -> Any:
        context = SpanContext(0xABC, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return use_span(NonRecordingSpan(context))

    model = ScriptedModel([ToolCall("owed", {}, "c1")], "x")
    agent = Agent("a", model=model, tools=[OWED])
    runs = DurableRuns(store, [agent])
    with span(0xF1):
        run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    [call] = (await runs.status(run_id)).external
    with span(0xF2):
        await runs.settle(call.id, output=1)
    await within(runs.work_until_idle())
    first, second = telemetry.find("invoke_agent a")
    [wait] = telemetry.find("await_tool owed")
    assert {span.context.trace_id for span in telemetry.spans if span.context} == {0xABC}
    assert first.parent is not None
    assert first.parent.span_id == 0xF1
    assert first.context is not None
    assert wait.context is not None
    assert {link.context.span_id for link in second.links} == {first.context.span_id, wait.context.span_id, 0xF2}


async def test_a_sub_agent_that_waits(store: RunStore) -> None:
    """Approvals and external calls of a sub-agent are those of the run, and its run goes on in the next pass."""
    inner = ScriptedModel([ToolCall("owed", {}, "c1"), ToolCall("pay", {}, "c2")], "inner end")
    clerk = Agent("clerk", model=inner, tools=[OWED, PAY], description="Pays.", limits=Limits(approval_timeout=3600))
    outer = ScriptedModel([ToolCall("clerk", {"input": "?"}, "c1")], "outer end")
    agent = Agent("a", model=outer, tools=[clerk.as_tool()])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert ([item.tool_name for item in state.approvals], [item.tool for item in state.external]) == (["pay"], ["owed"])
    await runs.settle(state.external[0].id, output=1)
    await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output, results(state)) == ("completed", "outer end", {"c1": "inner end"})
    assert (len(inner.requests), len(outer.requests)) == (2, 2)


@pytest.mark.parametrize("offset", [-3600.0, 3600.0])
async def test_a_clock_an_hour_off(store: RunStore, monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    """What has expired is for the store to say: a worker whose clock is wrong accepts results and decisions."""
    owed = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait", deadline=600.0)
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


async def test_fenced_before_a_dispatch(store: RunStore, location: Location, anyio_backend: str) -> None:
    """A call that cannot be registered is not dispatched, and no rule retries it; another pass dispatches it."""
    delays: list[float] = []
    calls: list[str] = []

    async def recover() -> None:
        async with location.open() as other:
            while not (await other.recover()).run_ids:  # noqa: ASYNC110  (the database's clock)
                await anyio.sleep(0.05)

    def stand_still(situation: Any) -> bool:
        if situation.operation == "tool" and not calls:
            calls.append("stopped")
            thread = threading.Thread(target=lambda: anyio.run(recover, backend=anyio_backend))
            thread.start()
            thread.join()
        return False

    async def sleep(delay: float) -> None:
        delays.append(delay)

    async def enqueue(arguments: Any, ctx: ToolContext) -> None:
        calls.append(ctx.tool_call_id)

    tool = Tool(name="owed", run=enqueue, execution="external-dispatch", pending="wait", idempotent=True)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("owed", {}, "c"))
    retries = Rule(when=lambda situation: situation.error is not None, then=retry(), kind="all")
    rules = Reliability([retries], pre_check=[Rule(when=stand_still, then=fail_fast(), kind="still")], sleep=sleep)
    agent = Agent("a", model=model, tools=[tool], reliability=rules)
    runs = DurableRuns(store, [agent], lease=0.5)
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
async def test_the_store_is_away(store: RunStore, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
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
    runs = DurableRuns(store, [agent], lease=0.3)
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            for call in state.external:
                await runs.settle(call.id, output=1)
    assert not failures
    assert (state.status, state.output, results(state)) == ("completed", "x", {"c": 1})


@pytest.mark.parametrize("execution", [None, "external-dispatch"])
async def test_fenced(store: RunStore, location: Location, anyio_backend: str, execution: Any) -> None:
    """A worker that stood still beyond its lease writes nothing, whatever its rules; the run goes on elsewhere."""

    async def recover() -> None:
        async with location.open() as other:
            while not (await other.recover()).run_ids:  # noqa: ASYNC110  (the database's clock)
                await anyio.sleep(0.05)

    calls: list[str] = []

    async def stand_still(arguments: Any, ctx: ToolContext) -> str:
        calls.append(ctx.tool_call_id)
        if len(calls) == 1:  # the event loop stands still, as in a process that is stopped
            thread = threading.Thread(target=lambda: anyio.run(recover, backend=anyio_backend))
            thread.start()
            thread.join()
        return "done"

    tool = Tool(name="still", run=stand_still, execution=execution)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("still", {}, "c"))
    rules = Reliability(
        post_decide=[Rule(when=lambda situation: situation.error is not None, then=retry(), kind="all")]
    )
    agent = Agent("a", model=model, tools=[tool], reliability=rules)
    runs = DurableRuns(store, [agent], lease=0.5)
    run_id = await runs.submit(agent, "go")
    started = time.monotonic()
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            for call in state.external:
                await runs.settle(call.id, output=1)
    assert time.monotonic() - started > 0.5
    assert state.status == "completed", state.error
    if execution is None:
        assert calls == ["c"]
        assert results(state) == {"c": INTERRUPTED}
    run = await store.run(run_id)
    assert run is not None
    assert run.fence >= 2
