"""Telemetry of passes that are killed, and of runs that are given up or cancelled while they wait."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from pellucid import Agent, Decision, ModelError, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns, RetryPolicy
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.durable_agents import JOB, OWED, PAY, nothing
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

LOST = ("lost", "lost")
WAITS = (ToolCall("owed", {}, "c-owed"), ToolCall("pay", {}, "c-pay"))


class Killed:
    """A tool whose process is killed while it runs: neither its spans nor the pass end in this process."""

    def __init__(self, *, times: int = 1, **options: Any) -> None:
        self.left = times
        self.tool = Tool(name="effect", run=self._run, **options)
        self.reached = anyio.Event()

    async def _run(self, arguments: Any, ctx: ToolContext) -> str:
        if self.left:
            self.left -= 1
            self.reached.set()
            await anyio.sleep_forever()
        return "done"

    async def die(self, store: RunStore, agent: Agent, location: Location) -> Sequence[ReadableSpan]:
        """Work on a run until the tool runs, let the lease end; return the spans that the process exported before."""
        self.reached = anyio.Event()
        exported: list[ReadableSpan] = []
        with capture(fixed=False) as telemetry:
            telemetry.is_checked = False
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(DurableRuns(store, [agent]).work_until_idle, concurrency=1))
                with anyio.fail_after(60):
                    await self.reached.wait()
                exported += telemetry.spans
                location.end_leases()
                # What a process does after its lease has ended changes nothing in the store.
                location.execute("UPDATE runs SET fence = fence + 1, expired_leases = expired_leases + 0")
                tasks.cancel_scope.cancel()
        location.execute("UPDATE runs SET fence = fence - 1")
        return exported


def outcomes(telemetry: Captured, name: str) -> list[tuple[str, Any]]:
    """Return outcome and error of the spans of this name."""
    spans = telemetry.find(name)
    return [
        ((span.attributes or {})[semconv.OUTCOME], (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in spans
    ]


async def test_a_killed_pass_is_lost_once(location: Location) -> None:
    """The process that ends the next pass exports both killed passes and each interrupted call, with their parents."""
    killed = Killed(times=2, idempotent=True)
    async with location.open() as store:
        agent = Agent("a", model=ScriptedModel(ToolCall("effect", {"n": 1}, "c"), "end"), tools=[killed.tool])
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "go")
        exported = [*await killed.die(store, agent, location), *await killed.die(store, agent, location)]
        with capture(fixed=False) as telemetry:
            await within(runs.work_until_idle())
            points = [point for point in telemetry.metrics if point.name == semconv.TOOL_DURATION.name]
        assert (await runs.status(run_id)).output == "end"
    measured = [point for point in points if point.attributes.get(semconv.ERROR_TYPE) == "interrupted"]
    lost = [span for span in telemetry.find("invoke_agent a") if span.attributes[semconv.OUTCOME] == "lost"]
    calls = [span for span in telemetry.find("execute_tool effect") if span.attributes[semconv.OUTCOME] == "failed"]
    assert len(lost) == len(calls) == 2
    assert all(span.status.status_code is StatusCode.ERROR for span in (*lost, *calls))
    assert [span.attributes[semconv.DURABLE_RUN_ID] for span in lost] == [run_id] * 2
    assert [span.attributes[semconv.ERROR_TYPE] for span in calls] == ["interrupted"] * 2
    assert [span.attributes[semconv.TOOL_CALL_ARGUMENTS] for span in calls] == ['{"n":1}'] * 2
    spans = {span.context.span_id: span for span in (*exported, *telemetry.spans)}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert len([span for span in spans.values() if span.parent is None]) == 1
    assert all(span.parent.span_id in spans for span in spans.values() if span.parent is not None)
    assert {span.parent.span_id for span in calls if span.parent is not None} == {span.context.span_id for span in lost}
    first = min(span.start_time or 0 for span in exported)
    assert lost[0].start_time is not None
    assert lost[0].start_time <= first
    assert [(point.attributes[semconv.TOOL_NAME], point.count) for point in measured] == [("effect", 2)]
    lines = [line for line in telemetry.logs if line.get("error_type") == "interrupted"]
    assert [(line["level"], line["tool_name"], line["agent"]) for line in lines] == [("error", "effect", "a")] * 2
    assert {line["span_id"] for line in lines} == {format_span_id(span.context.span_id) for span in calls}


@pytest.mark.parametrize("kind", ["unavailable", "auth"])
async def test_a_killed_pass_is_lost_once_if_the_next_one_fails(location: Location, kind: Any) -> None:
    """A killed pass has one span if the next pass fails, whether the run or an operator retries."""
    killed = Killed(idempotent=True)
    async with location.open() as store:
        model = ScriptedModel(ToolCall("effect", {}, "c"), ModelError("m", "down", error_kind=kind), "end")
        agent = Agent("a", model=model, tools=[killed.tool])
        runs = DurableRuns(store, [agent], retry=RetryPolicy(backoff=0))
        run_id = await runs.submit(agent, "go")
        exported = await killed.die(store, agent, location)
        with capture(fixed=False) as telemetry:
            await within(runs.work_until_idle())
            assert (await runs.retry(run_id)).outcome == ("due" if kind == "auth" else "completed")
            await within(runs.work_until_idle())
        assert (await runs.status(run_id)).output == "end"
    assert sorted(outcomes(telemetry, "invoke_agent")) == [("completed", None), ("failed", "ModelError"), LOST]
    spans = {span.context.span_id: span for span in (*exported, *telemetry.spans)}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert len([span for span in spans.values() if span.parent is None]) == 1


async def test_a_tool_that_kills_each_process_is_given_up(location: Location) -> None:
    """A tool that kills each process is given up, and its run ends in a span; steps for telemetry are no progress."""
    killed = Killed(times=9, idempotent=True)
    async with location.open() as store:
        agent = Agent("a", model=ScriptedModel(ToolCall("effect", {}, "c"), "end"), tools=[killed.tool])
        runs = DurableRuns(store, [agent], max_expired_leases=1)
        run_id = await runs.submit(agent, "go")
        for _ in range(3):
            await killed.die(store, agent, location)
        with capture(fixed=False) as telemetry:
            await within(runs.work_until_idle())
        assert (await runs.status(run_id)).error_type == "given_up"
    assert sorted(outcomes(telemetry, "invoke_agent")) == [("failed", "given_up"), *[("lost", "lost")] * 3]
    assert outcomes(telemetry, "execute_tool") == [("failed", "interrupted")] * 3
    [line] = [line for line in telemetry.logs if line.get("error_type") == "given_up"]
    [end] = [span for span in telemetry.find("invoke_agent a") if span.attributes[semconv.OUTCOME] == "failed"]
    assert end.context is not None
    assert (line["agent"], line["durable_run_id"]) == ("a", run_id)
    assert line["trace_id"] == format_trace_id(end.context.trace_id)
    assert len({span.context.trace_id for span in telemetry.spans}) == 1
    assert telemetry.value(semconv.DURABLE_PASSES, **{semconv.DURABLE_PASS: "failed"}) == 1


@pytest.mark.parametrize("knows_agent", [True, False])
async def test_a_run_that_is_cancelled_while_it_waits_ends(
    store: RunStore, telemetry: Captured, *, knows_agent: bool
) -> None:
    """A run that is cancelled while it waits ends in a span below the pass that waited, and nothing is pending."""
    agent = Agent("a", model=ScriptedModel(list(WAITS), "end"), tools=[OWED, PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    assert telemetry.value(semconv.EXTERNAL_PENDING, gen_ai_tool_name="owed") == 1
    assert telemetry.value(semconv.APPROVAL_PENDING, gen_ai_tool_name="pay") == 1
    assert (await DurableRuns(store, [agent] if knows_agent else []).cancel(run_id, "enough")).outcome == "cancelled"
    assert telemetry.value(semconv.EXTERNAL_PENDING, gen_ai_tool_name="owed") == 0
    assert telemetry.value(semconv.APPROVAL_PENDING, gen_ai_tool_name="pay") == 0
    paused, end = telemetry.find("invoke_agent a")
    assert paused.context is not None
    assert end.parent is not None
    assert end.parent.span_id == paused.context.span_id
    assert end.attributes[semconv.OUTCOME] == "cancelled"
    assert end.attributes[semconv.DURABLE_RUN_ID] == run_id
    [wait] = telemetry.find("await_tool owed")
    assert wait.attributes[semconv.ASYNC_STATUS] == "cancelled"
    assert end.context is not None
    [line] = [line for line in telemetry.logs if line["span_id"] == format_span_id(end.context.span_id)]
    assert (line["agent"], line["outcome"], line["durable_run_id"]) == ("a", "cancelled", run_id)


async def test_a_run_that_is_given_up_ends_what_it_waits_for(location: Location) -> None:
    """A run that is given up ends the calls that it waits for, also one that only the killed pass has dispatched."""
    killed = Killed(times=3, idempotent=True)
    async with location.open() as store:
        model = ScriptedModel(ToolCall("job", {}, "c-job"), ToolCall("effect", {}, "c"), "end")
        agent = Agent("a", model=model, tools=[JOB, killed.tool])
        runs = DurableRuns(store, [agent], max_expired_leases=1)
        run_id = await runs.submit(agent, "go")
        exported = [span for _ in range(3) for span in await killed.die(store, agent, location)]
        with capture(fixed=False) as telemetry:
            telemetry.is_checked = False  # the span of the dispatch is another process's
            await within(runs.work_until_idle())
        assert (await runs.status(run_id)).error_type == "given_up"
    [dispatch] = [span for span in exported if span.name == "execute_tool job"]
    [wait] = telemetry.find("await_tool job")
    assert dispatch.context is not None
    assert wait.parent is not None
    assert wait.parent.span_id == dispatch.context.span_id
    assert wait.attributes[semconv.ASYNC_STATUS] == "cancelled"
    assert outcomes(telemetry, "execute_tool") == [("failed", "interrupted")] * 3


async def test_a_run_whose_worker_died_and_that_is_cancelled_ends(location: Location) -> None:
    """A run whose worker died and that is cancelled ends; the killed pass is exported by the process that cancels."""
    killed = Killed()
    async with location.open() as store:
        agent = Agent("a", model=ScriptedModel(ToolCall("effect", {}, "c"), "end"), tools=[killed.tool])
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "go")
        exported = await killed.die(store, agent, location)
        with capture(fixed=False) as telemetry:
            assert (await runs.cancel(run_id, "enough")).outcome == "cancelled"
    assert outcomes(telemetry, "execute_tool") == [("failed", "interrupted")]
    assert sorted(outcomes(telemetry, "invoke_agent")) == [("cancelled", None), ("lost", "lost")]
    known = {span.context.span_id for span in (*exported, *telemetry.spans)}
    assert all(span.parent.span_id in known for span in (*exported, *telemetry.spans) if span.parent is not None)


async def test_a_pass_that_was_only_slow_is_lost_once(location: Location, telemetry: Captured) -> None:
    """A pass that was only slow is exported once, as lost, by the process that continues its run."""
    telemetry.is_checked = False  # its own spans do not end
    async with location.open() as store, location.open() as other:

        async def slow(arguments: Any, ctx: ToolContext) -> str:
            if not counts:
                counts.append(1)
                location.end_leases()
                await within(DurableRuns(other, [agent]).work_until_idle())
            return "done"

        counts: list[int] = []
        agent = Agent("a", model=ScriptedModel(ToolCall("slow", {}, "c"), "end"), tools=[Tool(name="slow", run=slow)])
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "go")
        await within(runs.work_until_idle())
        assert (await runs.status(run_id)).status == "completed"
    assert sorted(outcomes(telemetry, "invoke_agent")) == [("completed", None), ("lost", "lost")]


async def test_a_continuation_links_to_the_decision(store: RunStore, telemetry: Captured) -> None:
    """A run that goes on links to the spans in which its approval was decided and its result was settled."""
    agent = Agent("a", model=ScriptedModel(list(WAITS), "end"), tools=[OWED, PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    tracer = telemetry.tracer_provider.get_tracer("application")
    with tracer.start_as_current_span("POST decides") as decides:
        await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
    with tracer.start_as_current_span("POST settles") as settles:
        await runs.settle(state.external[0].id, output=1)
    await within(runs.work_until_idle())
    links = {link.context.span_id for link in telemetry.find("invoke_agent a")[-1].links}
    assert {span.get_span_context().span_id for span in (decides, settles)} <= links


async def test_a_nested_run_that_is_killed_is_lost_with_its_calls(location: Location) -> None:
    """A killed run of a sub-agent is exported as lost, with its calls and that of its caller below each other."""
    killed = Killed()
    inner = Agent("inner", model=ScriptedModel(ToolCall("effect", {}, "n"), "end"), tools=[killed.tool])
    async with location.open() as store:
        agent = Agent(
            "a",
            model=ScriptedModel(ToolCall("ask", {"input": "?"}, "c"), "end"),
            tools=[inner.as_tool("ask", description="d")],
        )
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "go")
        exported = await killed.die(store, agent, location)
        with capture(fixed=False) as telemetry:
            await within(runs.work_until_idle())
        assert (await runs.status(run_id)).output == "end"
    assert outcomes(telemetry, "execute_tool") == [("failed", "interrupted")] * 2
    assert outcomes(telemetry, "invoke_agent inner") == [("lost", "lost")]
    known = {span.context.span_id for span in (*exported, *telemetry.spans)}
    assert all(span.parent.span_id in known for span in (*exported, *telemetry.spans) if span.parent is not None)


async def test_a_run_without_spans_writes_no_steps_for_them(store: RunStore) -> None:
    """A run without spans writes no steps for them."""
    agent = Agent(
        "a", model=ScriptedModel(ToolCall("do", {}, "c"), "end"), tools=[Tool(name="do", run=nothing, idempotent=True)]
    )
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    assert [entry.key.partition(":")[0] for entry in await store.journal(run_id)] == ["answer", "result", "answer"]
