"""Durable runs of agents: passes, what they wait for, and what happens when a worker stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from pellucid import Agent, ConfigError, Decision, Identity, Limits, Message, Tool, ToolCall
from pellucid.durable import DurableRuns, SQLiteStore
from pellucid.errors import CheckpointError, IdempotencyConflict, UnknownRun
from pellucid.testing import FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.durable_agents import JOB, OWED, PAY, nothing, results
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

UNOPENED = SQLiteStore("unopened.db")
"""A store that refuses all that reaches it."""


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
    assert len({span.context.trace_id for span in telemetry.spans}) == 1
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
    with pytest.raises(ConfigError, match="above 0"):
        DurableRuns(store, [agent], lease=0)
    with pytest.raises(UnknownRun):
        await runs.status("unknown")


@pytest.mark.parametrize(
    ("agents", "options", "problem"),
    [
        ([], {"retry": 5}, r"retry=5\): give RetryPolicy\(max_attempts=...\), or None"),
        ([], {"lease": "x"}, r"lease='x'\): must be a number of seconds above 0"),
        ([], {"poll": 0}, r"poll=0\): must be a number of seconds above 0"),
        ([], {"max_expired_leases": "x"}, r"max_expired_leases='x'\): must be a whole number from 1, or None"),
        ([], {"version": 5}, r"version=5\): must be 1 to 255 printable characters"),
        ([], {"retain": "x"}, r"retain='x'\): must be a number of seconds, and not negative"),
        ([], {"callbacks": "x"}, r"callbacks='x'\): give Callbacks\("),
        ([], {"completion": "x"}, r"completion='x'\): give Completion\("),
        ("freight", {}, r"agents='freight'\): must be Agent objects; give a list of them"),
        (None, {}, r"agents=None\): must be Agent objects; give a list of them"),
        ([5], {}, r"agents=\[5\]\): must be Agent objects; give a list of them"),
    ],
)
def test_options_that_cannot_work_are_refused(agents: Any, options: dict[str, Any], problem: str) -> None:
    """A wrong option is refused when the runs are made, with its name, its value and what to give."""
    with pytest.raises(ConfigError, match=rf"^DurableRuns\({problem}"):
        DurableRuns(UNOPENED, agents, **options)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda runs: runs.submit("", "x"), r"submit\(agent=''\): must be an Agent, or the name of one"),
        (lambda runs: runs.submit(5, "x"), r"submit\(agent=5\): must be an Agent, or the name of one"),
        (lambda runs: runs.submit("a", "x", identity="ann"), r"identity='ann' of a run .* Identity\(principal='ann'\)"),
        (lambda runs: runs.submit("a", "x", identity="ann", conversation_id="c"), "identity='ann' of a run is not"),
        (lambda runs: runs.decide("run", "x"), r"decisions='x' of decide\(\) is not a sequence of Decision objects;"),
        (lambda runs: runs.decide("run", Decision("a", True)), r"decisions=Decision\(.* is not a sequence of Decision"),
        (
            lambda runs: runs.settle("async_tool_1", output=1, error="x"),
            r"settle\(output=\) of .* is failed: give an output",
        ),
        (
            lambda runs: runs.settle("async_tool_1", output=1, status="expired"),
            r"settle\(output=\) .* is expired: give",
        ),
        (lambda runs: runs.settle("async_tool_1", error=5), r"ExternalResult\(error=5\) .*: give a text"),
        (lambda runs: runs.settle(5, output=1), r"ExternalResult\(result_id=5\) .*: give a text"),
        (lambda runs: runs.heartbeat("async_tool_1", extend="x"), r"heartbeat\(extend='x'\): must be a number of sec"),
        (lambda runs: runs.heartbeat("async_tool_1", extend=-1), r"heartbeat\(extend=-1\): must be a number of sec"),
        (lambda runs: runs.work(concurrency=0), r"work\(concurrency=0\): must be a whole number from 1"),
        (lambda runs: runs.work(concurrency="x"), r"work\(concurrency='x'\): must be a whole number from 1"),
        (lambda runs: runs.work(drain_timeout=-1), r"work\(drain_timeout=-1\): must be a number of seconds"),
        (lambda runs: runs.work_until_idle(concurrency=0), r"work_until_idle\(concurrency=0\): must be a whole"),
    ],
)
async def test_arguments_that_cannot_work_are_refused(call: Any, problem: str) -> None:
    """A wrong argument is refused, before the store is asked, with its name, its value and what to give."""
    with pytest.raises((ConfigError, CheckpointError), match=f"^{problem}"):
        await call(DurableRuns(UNOPENED, []))


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
    job = Tool(name="job", run=nothing, execution="external-dispatch", pending="wait", expires_in=0.01)
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
    runs = DurableRuns(store, [agent], retry=None)
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
    runs = DurableRuns(store, [agent], lease=SOON)
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            await started.wait()
            assert (await runs.cancel(run_id, "enough")).outcome == "requested"
            pass_time(SOON / 2)
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
    assert {span.context.trace_id for span in telemetry.spans} == {0xABC}
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
