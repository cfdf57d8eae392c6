from __future__ import annotations

from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    Limits,
    ToolCall,
    ToolContext,
    semconv,
)
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import FIRST_READING, TICK, check_telemetry
from support.clock import SOON, pass_time
from support.runs import attributes, results, within
from support.tools import call, echo, named

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_calls_of_one_message_run_at_the_same_time(telemetry: Captured) -> None:
    """Each waits for the others, and results come in the order of the calls."""
    arrived: list[str] = []
    everybody = anyio.Event()

    async def meet(arguments: Any, ctx: ToolContext) -> str:
        arrived.append(ctx.tool_call_id)
        if len(arrived) == 3:
            everybody.set()
        await everybody.wait()
        return ctx.tool_call_id

    found = await call(*(ToolCall("meet", id=name) for name in "abc"), tools=[named("meet", meet)])
    assert [(result.id, result.response) for result in found] == [("a", "a"), ("b", "b"), ("c", "c")]
    check_telemetry(telemetry)


async def test_no_more_calls_run_at_a_time_than_the_limit_allows() -> None:
    """`Limits.parallel_tools` is never exceeded, by async or sync tools."""
    running, most = 0, 0

    async def work(arguments: Any, ctx: ToolContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        running -= 1

    calls = [ToolCall("work", id=str(number)) for number in range(10)]
    await call(*calls, tools=[named("work", work)], limits=Limits(parallel_tools=3))
    assert most == 3


async def test_serial_tools_run_one_at_a_time(telemetry: Captured) -> None:
    """Two serial tools never overlap; others may."""
    running: list[str] = []

    async def alone(arguments: Any, ctx: ToolContext) -> str:
        assert running == []
        running.append(ctx.tool_call_id)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        running.clear()
        return "ok"

    tools = [named("one", alone, serial=True), named("two", alone, serial=True)]
    calls = [ToolCall(name, id=f"{name}{number}") for number in range(3) for name in ("one", "two")]
    assert [result.response for result in await call(*calls, tools=tools)] == ["ok"] * 6
    check_telemetry(telemetry)


async def test_a_serial_tool_that_waits_takes_no_slot(telemetry: Captured) -> None:
    """Another tool runs meanwhile, and each span starts when the turn of its call has come."""
    other = anyio.Event()
    telemetry.clock = count(FIRST_READING, TICK).__next__  # a busy machine may stop between two calls

    async def alone(arguments: Any, ctx: ToolContext) -> str:
        await other.wait()
        return "ok"

    async def run(arguments: Any, ctx: ToolContext) -> str:
        other.set()
        return "ok"

    tools = [named("alone", alone, serial=True), named("other", run)]
    calls = [*(ToolCall("alone", id=name) for name in "abc"), ToolCall("other", id="d")]
    found = await call(*calls, tools=tools, limits=Limits(parallel_tools=2))
    assert [result.response for result in found] == ["ok"] * 4
    assert semconv.TOOL_QUEUED not in attributes(telemetry.span("execute_tool other"))
    spans = telemetry.find("execute_tool alone")
    queued = [attributes(span)[semconv.TOOL_QUEUED] for span in spans]
    assert queued == sorted(queued)
    assert queued[0] < queued[1]
    for before, after in pairwise(spans):
        assert (before.end_time or 0) <= (after.start_time or 0)


async def test_waiting_for_a_serial_tool_is_not_its_own_time() -> None:
    """The timeout of a call begins when its turn has come."""

    async def slow(arguments: Any, ctx: ToolContext) -> str:
        pass_time(0.4 * SOON)
        await anyio.lowlevel.checkpoint()
        return "ok"

    found = await call(*(ToolCall("t", id=name) for name in "abc"), tools=[named("t", slow, serial=True, timeout=SOON)])
    assert [result.response for result in found] == ["ok"] * 3


async def test_one_failing_call_leaves_the_others_alone() -> None:
    """Every call id has its result."""

    async def maybe(arguments: Any, ctx: ToolContext) -> str:
        if ctx.tool_call_id == "b":
            raise ValueError("no")
        return "ok"

    found = await call(*(ToolCall("t", id=name) for name in "abc"), tools=[named("t", maybe)])
    assert [(result.id, result.is_error) for result in found] == [("a", False), ("b", True), ("c", False)]


async def test_a_message_with_very_many_calls_gets_as_many_results(telemetry: Captured) -> None:
    """A thousand calls are a thousand spans and results."""
    found = await call(*(ToolCall("echo", {"text": str(number)}) for number in range(1000)), tools=[echo])
    assert [result.response for result in found] == [str(number) for number in range(1000)]
    assert len(telemetry.find("execute_tool echo")) == 1000


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_progress_is_an_event(telemetry: Captured, *, is_async: bool) -> None:
    """It may be told from the loop or from a thread, and belongs to the call's span."""

    def work(arguments: Any, ctx: ToolContext) -> str:
        ctx.progress({"done": 0.5})
        return "ok"

    async def work_async(arguments: Any, ctx: ToolContext) -> str:
        result = work(arguments, ctx)
        await anyio.lowlevel.checkpoint()
        return result

    await call(ToolCall("t", id="c"), tools=[named("t", work_async if is_async else work)])
    told: list[Any] = [event for event in telemetry.events if event.name == "tool.progress"]
    assert [(event.tool_name, event.tool_call_id, event.value) for event in told] == [("t", "c", {"done": 0.5})]
    [started] = [event for event in telemetry.events if event.name == "tool.started"]
    assert told[0].span_id == started.span_id


async def test_progress_is_redacted(telemetry: Captured) -> None:
    """It leaves the process like everything else."""

    async def work(arguments: Any, ctx: ToolContext) -> str:
        ctx.progress({"password": "hunter2"})
        await anyio.lowlevel.checkpoint()
        return "ok"

    await call(ToolCall("t"), tools=[named("t", work)])
    [told] = [event for event in telemetry.events if event.name == "tool.progress"]
    assert "hunter2" not in repr(told)


async def test_tools_of_an_agent_that_nobody_listens_to_may_tell_progress() -> None:
    """Telling nobody is fine."""
    from pellucid import TelemetryOptions

    async def work(arguments: Any, ctx: ToolContext) -> str:
        ctx.progress(1)
        return "ok"

    agent = Agent(
        "a", model=ScriptedModel(ToolCall("t"), "done"), tools=[named("t", work)], telemetry=TelemetryOptions()
    )
    assert (await within(agent.run("x"))).output == "done"


async def test_a_model_that_goes_on_calling_is_told_of_each_failure() -> None:
    """Failures never end the run; the model decides."""
    model = FunctionModel(lambda request: ToolCall("nope") if len(request.messages) < 6 else "gave up")
    result = await within(Agent("a", model=model).run("x"))
    assert [part.is_error for part in results(result)] == [True, True, True]
    assert result.output == "gave up"
