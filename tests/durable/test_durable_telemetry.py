"""Telemetry of durable runs: counters of what the store learns, events of calls, and gauges read from the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import format_span_id

from pellucid import Agent, Decision, Identity, TelemetryOptions, Tool, ToolCall, semconv
from pellucid.durable import Claim, DurableRuns, NewCall
from pellucid.durable.store.database import TransactionLost
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import within
from support.stores import claimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def nothing(arguments: Any, ctx: ToolContext) -> None:
    """Do nothing."""


JOB = Tool(name="job", run=nothing, execution="external-dispatch")
OWED = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait")
PAY = Tool(name="pay", run=nothing, needs_approval=True)


def counted(telemetry: Captured, metric: semconv.Metric) -> dict[tuple[Any, ...], float]:
    """Return the values of a metric by its labels, in their order; None for a label that is missing."""
    return {
        tuple(point.attributes.get(name) for name in metric.attributes): point.value
        for point in telemetry.metrics
        if point.name == metric.name
    }


def emitted(telemetry: Captured, run_of: str = "a") -> list[str]:
    """Return the names of the events of asynchronous calls, in order."""
    return [event.name for event in telemetry.events if event.name.startswith("async_tool.") and event.agent == run_of]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a worker in the background has done something."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110  (no event: what the worker tells nobody)
            await anyio.sleep(0.01)


async def test_each_settlement_is_counted_by_its_outcome(store: RunStore, telemetry: Captured) -> None:
    """Results and decisions, with the exemplar of the dispatch; what no call has is counted without a tool."""
    agent = Agent("a", model=ScriptedModel([ToolCall("owed"), ToolCall("pay")], "end"), tools=[OWED, PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    [call], [approval] = state.external, state.approvals
    for output in ("first", "first", "second"):
        await runs.settle(call.id, output=output)
    await runs.settle("async_tool_unknown", error="?")
    await runs.settle("unknown", output=1)
    await runs.decide(run_id, [Decision(approval.approval_id, approved=True), Decision("unknown", approved=True)])
    await within(runs.work_until_idle())
    assert counted(telemetry, semconv.DURABLE_SETTLEMENTS) == {
        ("owed", "external", "settled", "completed"): 1,
        ("owed", "external", "duplicate", "completed"): 1,
        ("owed", "external", "conflict", "completed"): 1,
        ("pay", "approval", "settled", "completed"): 1,
        (None, None, "unknown", "failed"): 1,
        (None, None, "unknown", "completed"): 2,
    }
    assert counted(telemetry, semconv.DURABLE_PASSES) == {("a", "waiting"): 1, ("a", "completed"): 1}
    [dispatch] = telemetry.find("execute_tool owed")
    assert dispatch.context is not None
    exemplars = [
        exemplar
        for point in telemetry.metrics
        if point.name == semconv.DURABLE_SETTLEMENTS.name and point.attributes.get(semconv.TOOL_NAME) == "owed"
        for exemplar in point.exemplars
    ]
    assert {exemplar.span_id for exemplar in exemplars} == {format_span_id(dispatch.context.span_id)}
    assert emitted(telemetry) == ["async_tool.dispatched", "async_tool.settled", "async_tool.continued"]
    assert emitted(telemetry, "") == []


async def test_each_pass_has_the_tags_with_which_the_run_was_submitted(store: RunStore, telemetry: Captured) -> None:
    """Also the one after a wait."""
    agent = Agent("a", model=ScriptedModel(ToolCall("owed"), "end"), tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go", tags=["beta"])
    await within(runs.work_until_idle())
    [call] = (await runs.status(run_id)).external
    await runs.settle(call.id, output=1)
    await within(runs.work_until_idle())
    assert [span.attributes.get(semconv.RUN_TAGS) for span in telemetry.find("invoke_agent")] == [("beta",)] * 2


@pytest.mark.parametrize("tool", ["job", "owed"])
async def test_a_call_expires_once_and_its_result_is_late(store: RunStore, telemetry: Captured, tool: str) -> None:
    """The sweep that expires it counts it, the pass that reads it emits it; a result after that is late."""
    short = {"run": nothing, "execution": "external-dispatch", "expires_in": 0.001}
    agent = Agent(
        "a",
        model=ScriptedModel(ToolCall(tool), "meanwhile", "end"),
        tools=[Tool(name="job", **short), Tool(name="owed", pending="wait", **short)],  # type: ignore[arg-type]
    )
    late: list[Any] = []
    agent.on("async_tool.late", late.append)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go", identity=Identity(principal="ann"))
    await within(runs.work_until_idle())
    [call] = await store.calls(run_id)
    await within(runs.work_until_idle())  # its sweep may be the first after the deadline
    assert (await runs.status(run_id)).status == "completed"
    assert counted(telemetry, semconv.DURABLE_SETTLEMENTS) == {(tool, "external", "settled", "expired"): 1}
    await runs.settle(call.id, output="late")
    await runs.settle(call.id, error="later")
    assert counted(telemetry, semconv.EXTERNAL_LATE) == {(tool,): 2}
    assert telemetry.value(semconv.EXTERNAL_PENDING, gen_ai_tool_name=tool) == 0
    assert emitted(telemetry) == [
        "async_tool.dispatched",
        "async_tool.expired",
        "async_tool.settled",
        "async_tool.continued",
        "async_tool.late",
        "async_tool.late",
    ]
    assert [(event.status, event.tool_name, event.result_id, event.run_id) for event in late] == [
        ("completed", tool, call.id, run_id),
        ("failed", tool, call.id, run_id),
    ]
    assert late[0].identity == Identity(principal="ann")
    [dispatch] = telemetry.find(f"execute_tool {tool}")
    assert dispatch.context is not None
    assert late[0].span_id == format_span_id(dispatch.context.span_id)


async def test_a_process_without_agents_emits_late_results(store: RunStore, telemetry: Captured) -> None:
    """A service that only settles knows the agent from the store."""
    agent = Agent("a", model=ScriptedModel(ToolCall("owed"), "end"), tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    [call] = (await runs.status(run_id)).external
    await runs.cancel(run_id, "enough")
    with capture() as elsewhere:
        settlement = await DurableRuns(store, []).settle(call.id, output="late")
    assert settlement.outcome == "late"
    assert emitted(elsewhere) == ["async_tool.late"]
    assert counted(elsewhere, semconv.EXTERNAL_LATE) == {("owed",): 1}


async def test_passes_and_recoveries_are_counted(store: RunStore, telemetry: Captured) -> None:
    """A pass by how it ended; a run that was taken over from a worker that had stopped, when it is continued."""
    inner = ScriptedModel("end", OSError("down"))
    agent = Agent("a", model=inner)
    runs = DurableRuns(store, [agent], retry=None)
    await runs.submit(agent, "go")
    assert await store.claim("dead", ["a"], 0.0) is not None  # its lease is over at once
    await within(runs.work_until_idle())
    await runs.submit(agent, "fail")
    await within(runs.work_until_idle())
    cancelled = await runs.submit(agent, "cancel")
    assert await store.claim("dead", ["a"], 60.0) is not None
    assert (await runs.cancel(cancelled, "enough")).outcome == "requested"
    assert counted(telemetry, semconv.DURABLE_PASSES) == {("a", "completed"): 1, ("a", "failed"): 1}
    assert counted(telemetry, semconv.DURABLE_RECOVERIES) == {("a",): 1}


async def test_a_pass_that_loses_its_run_is_fenced_and_one_that_is_stopped_interrupted(
    store: RunStore, telemetry: Captured
) -> None:
    """Neither is a result of the run, which another pass continues."""
    telemetry.is_checked = False  # the runs of these passes do not end
    stopped = anyio.CancelScope()

    async def lose(arguments: Any, ctx: ToolContext) -> None:
        run = await store.run("first")
        assert run is not None
        await store.release(Claim(run, "other", 60.0, is_recovered=False, waited=0.0, journal=(), calls=()))
        await store.claim("other", ["a"], 60.0)

    async def stop(arguments: Any, ctx: ToolContext) -> None:
        stopped.cancel()
        await anyio.sleep_forever()

    tools = [Tool(name="lose", run=lose), Tool(name="stop", run=stop)]
    agent = Agent("a", model=ScriptedModel(ToolCall("lose"), ToolCall("stop"), "end"), tools=tools)
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "go", run_id="first")
    await within(runs.work_until_idle(concurrency=1))  # or the worker might claim the run before the other one
    await runs.submit(agent, "stop")
    with stopped:
        await within(runs.work_until_idle())
    passes = counted(telemetry, semconv.DURABLE_PASSES)
    assert passes.keys() == {("a", "fenced"), ("a", "interrupted")}
    assert passes[("a", "fenced")] == 1


async def test_a_dispatch_that_is_not_repeated_is_counted_instead(store: RunStore, telemetry: Captured) -> None:
    """The worker is stopped after the dispatch: the pass that continues emits no second one."""
    telemetry.is_checked = False  # the run of the first pass does not end
    stopped = anyio.CancelScope()

    async def stop(arguments: Any, ctx: ToolContext) -> None:
        if stopped.cancel_called:
            return
        await until(lambda: bool(counted(telemetry, semconv.EXTERNAL_PENDING)))
        stopped.cancel()
        await anyio.sleep_forever()

    tools = [OWED, Tool(name="stop", run=stop, idempotent=True)]
    agent = Agent("a", model=ScriptedModel([ToolCall("owed"), ToolCall("stop")], "end"), tools=tools)
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with stopped:
        await within(runs.work_until_idle())
    await within(runs.work_until_idle())
    [call] = (await runs.status(run_id)).external
    await runs.settle(call.id, output="done")
    await within(runs.work_until_idle())
    assert (await runs.status(run_id)).output == "end"
    assert counted(telemetry, semconv.DURABLE_DISPATCHES_SKIPPED) == {("owed",): 1}
    assert emitted(telemetry) == ["async_tool.dispatched", "async_tool.settled", "async_tool.continued"]
    assert telemetry.value(semconv.EXTERNAL_PENDING, gen_ai_tool_name="owed") == 0


async def test_a_worker_reports_what_the_store_holds(store: RunStore, telemetry: Captured) -> None:
    """Runs and calls that wait, also of agents that nobody runs, until the worker stops."""
    claim = await claimed(store)
    calls = [NewCall(name, "tool", name, timeout=timeout) for name, timeout in (("x", 60.0), ("y", None))]
    await store.register(claim, [*calls, NewCall("z", "pay", "z", kind="approval")])
    await store.end_pass(claim)
    await store.submit("second", "agent", None)
    agent = Agent("a", model=ScriptedModel("end"))
    runs = DurableRuns(store, [agent])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.work)
        await until(lambda: bool(counted(telemetry, semconv.DURABLE_RUNS)))
        assert counted(telemetry, semconv.DURABLE_RUNS) == {
            ("queued",): 0,
            ("retrying",): 0,
            ("due",): 1,
            ("running",): 0,
            ("waiting",): 1,
        }
        ages = counted(telemetry, semconv.DURABLE_DUE_AGE)
        assert ages[("a",)] == 0
        assert 0 < ages[("agent",)] < 60
        assert counted(telemetry, semconv.DURABLE_PENDING) == {("tool", "external"): 2, ("pay", "approval"): 1}
        ages = counted(telemetry, semconv.DURABLE_PENDING_AGE)
        assert ages.keys() == {("tool", "external"), ("pay", "approval")}
        assert all(0 < age < 60 for age in ages.values())
        [(tool, share)] = counted(telemetry, semconv.DURABLE_DEADLINE_USED).items()
        assert tool == ("tool", "external")
        assert 0 < share < 1
        tasks.cancel_scope.cancel()
    for gauge in (semconv.DURABLE_RUNS, semconv.DURABLE_DUE_AGE, semconv.DURABLE_PENDING, semconv.DURABLE_PENDING_AGE):
        assert counted(telemetry, gauge) == {}


async def test_workers_report_their_slots(store: RunStore, telemetry: Captured) -> None:
    """Those of all workers of the process together, and how many are used, also while the store is away."""
    started, answered = anyio.Event(), anyio.Event()

    async def think(_: object) -> str:
        started.set()
        await answered.wait()
        return "end"

    agent = Agent("a", model=FunctionModel(think))
    runs, others = DurableRuns(store, [agent], poll=0.01), DurableRuns(store, [agent], poll=0.01)
    await runs.submit(agent, "go")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(runs.work, concurrency=2))
        tasks.start_soon(partial(others.work, concurrency=3))
        with anyio.fail_after(60):
            await started.wait()
        assert counted(telemetry, semconv.DURABLE_SLOTS) == {(): 5}
        assert counted(telemetry, semconv.DURABLE_SLOTS_USED) == {(): 1}
        answered.set()
        await until(lambda: counted(telemetry, semconv.DURABLE_SLOTS_USED) == {(): 0})
        _break(store)
        await until(lambda: not counted(telemetry, semconv.DURABLE_RUNS))
        assert counted(telemetry, semconv.DURABLE_SLOTS) == {(): 5}
        tasks.cancel_scope.cancel()
    assert counted(telemetry, semconv.DURABLE_SLOTS) == {}


async def test_each_claim_measures_how_long_the_run_was_due(store: RunStore, telemetry: Captured) -> None:
    """From when it was due, or its lease had expired; the exemplar is the span that submitted the run."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    tracer = telemetry.tracer_provider.get_tracer("application")
    with tracer.start_as_current_span("order") as span:
        run_id = await runs.submit(agent, "go")
    due = await store.run(run_id)
    first = await store.claim("worker", ["a"], 0.0)
    second = await store.claim("worker", ["a"], 0.0)
    assert due is not None
    assert first is not None
    assert second is not None
    assert first.waited == first.run.updated_at - due.due_at  # type: ignore[operator]  # it is due
    assert second.waited == second.run.updated_at - first.run.lease_until  # type: ignore[operator]  # it is running
    await runs.work_until_idle()
    [point] = [point for point in telemetry.metrics if point.name == semconv.DURABLE_DUE_WAIT.name]
    assert (point.attributes, point.count) == ({semconv.AGENT_NAME: "a"}, 1)
    assert [each.span_id for each in point.exemplars] == [format_span_id(span.get_span_context().span_id)]
    ended = await store.run(run_id)
    assert ended is not None
    assert ended.due_at is None


async def test_a_worker_that_loses_the_store_reports_nothing(location: Location, telemetry: Captured) -> None:
    """Old values are not repeated; of two workers of one process the other one still reports."""
    async with location.open(patience=0.0) as store, location.open() as other:
        await store.submit("run", "agent", None)
        agent = Agent("a", model=ScriptedModel("end"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(DurableRuns(store, [agent], poll=0.01).work)
            await until(lambda: bool(counted(telemetry, semconv.DURABLE_RUNS)))
            _break(store)
            await until(lambda: not counted(telemetry, semconv.DURABLE_RUNS))
            tasks.start_soon(DurableRuns(other, [agent]).work)
            await until(lambda: bool(counted(telemetry, semconv.DURABLE_RUNS)))
            assert counted(telemetry, semconv.DURABLE_RUNS)[("due",)] == 1
            tasks.cancel_scope.cancel()


async def test_metrics_go_where_the_option_says(store: RunStore, telemetry: Captured) -> None:
    """As for an agent."""
    with capture() as elsewhere:
        pass
    runs = DurableRuns(store, [], telemetry=TelemetryOptions(meter_provider=elsewhere.meter_provider))
    await runs.settle("unknown", output=1)
    assert counted(elsewhere, semconv.DURABLE_SETTLEMENTS) == {(None, None, "unknown", "completed"): 1}
    assert counted(telemetry, semconv.DURABLE_SETTLEMENTS) == {}


def _break(store: RunStore) -> None:
    """Let every further transaction fail."""
    database: Any = store._database

    def fail(*_: object, **__: object) -> Any:
        raise TransactionLost(is_transient=False)

    database.read = database.write = fail


async def test_a_wait_ends_at_the_settlement(store: RunStore) -> None:
    """Not when a worker reads the result, which may be later."""
    with capture(fixed=False) as telemetry:
        agent = Agent("a", model=ScriptedModel(ToolCall("owed", {}, "c"), "x"), tools=[OWED])
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "go")
        await runs.work_until_idle()
        [call] = (await runs.status(run_id)).external
        settled = (await runs.settle(call.id, output=1)).call
        await runs.work_until_idle()
    assert settled is not None
    assert settled.settled_at is not None
    assert telemetry.span("await_tool owed").end_time == pytest.approx(settled.settled_at * 1e9, abs=1000)


async def test_passes_name_their_run(store: RunStore, telemetry: Captured) -> None:
    """The spans of all passes have the id of the durable run, also those of sub-agents."""
    inner = Agent("inner", model=ScriptedModel("inner"), description="d")
    steps: list[Any] = [ToolCall("inner", {"input": "?"}, "c"), ToolCall("owed", {}, "d"), "x"]
    agent = Agent("a", model=ScriptedModel(*steps), tools=[OWED, inner.as_tool()])
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "go", run_id="order-7")
    await runs.work_until_idle()
    [call] = (await runs.status("order-7")).external
    await runs.settle(call.id, output=1)
    await runs.work_until_idle()
    spans = telemetry.find("invoke_agent")
    assert [(span.attributes or {})[semconv.DURABLE_RUN_ID] for span in spans] == ["order-7"] * 3


async def test_a_run_that_is_given_up_is_counted(store: RunStore, telemetry: Captured) -> None:
    """As a pass that failed, though none has begun."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent], max_expired_leases=1)
    run_id = await runs.submit(agent, "go")
    for _ in range(3):
        assert await store.claim("worker", ["a"], 0.0) is not None
    await runs.work_until_idle()
    assert (await runs.status(run_id)).error_type == "given_up"
    assert telemetry.value(semconv.DURABLE_PASSES, **{semconv.DURABLE_PASS: "failed"}) == 1


async def test_a_run_names_its_trace(store: RunStore, telemetry: Captured) -> None:
    """While it waits, and after it has failed, if it was submitted within a span or has ended a pass."""
    agent = Agent("a", model=ScriptedModel(ToolCall("owed", {}, "c"), ValueError("no")), tools=[OWED])
    runs = DurableRuns(store, [agent], retry=None)
    run_id = await runs.submit(agent, "go")
    assert (await runs.status(run_id)).trace_id is None
    await runs.work_until_idle()
    state = await runs.status(run_id)
    span = telemetry.span("invoke_agent").get_span_context()
    assert span is not None
    assert (state.status, state.trace_id) == ("waiting", f"{span.trace_id:032x}")
    await runs.settle(state.external[0].id, output=1)
    await runs.work_until_idle()
    state = await runs.status(run_id)
    assert (state.status, state.trace_id) == ("failed", f"{span.trace_id:032x}")
