"""Parents that stay right across threads, executors, tasks and connections, and one span for each thing."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from mcp_types import CallToolResult, ListToolsResult, TextContent
from opentelemetry import trace

from pellucid import Agent, DiscoveryContext, DiscoveryProvider, ModelResponse, Tool, ToolCall, Usage, semconv, tool
from pellucid.mcp import MCPProvider
from pellucid.messages import Message
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.clock import Clock
from support.mcp_servers import listing_server, tool_of
from support.runs import attributes, span_id, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_work_of_a_tool_stays_below_its_call(telemetry: Captured) -> None:
    """In threads of anyio and task groups by themselves, in an executor with `copy_context().run`."""
    tracer = telemetry.tracer_provider.get_tracer("app")

    def work(where: str) -> None:
        tracer.start_span(where).end()

    @tool
    async def fan_out() -> str:
        async def child() -> None:
            work("task")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
            tasks.start_soon(anyio.to_thread.run_sync, work, "thread")
        with ThreadPoolExecutor(1) as pool:
            await anyio.to_thread.run_sync(pool.submit(contextvars.copy_context().run, work, "executor").result)
        return "ok"

    @tool
    def in_thread() -> str:
        work("sync tool")
        return "ok"

    model = ScriptedModel([ToolCall("fan_out"), ToolCall("in_thread")], "done")
    await within(Agent("a", model=model, tools=[fan_out, in_thread]).run("x"))
    parents = {span.name: span.parent.span_id for span in telemetry.spans if span.parent is not None}
    ids = {span.name: int(span_id(span), 16) for span in telemetry.spans}
    for name in ("task", "thread", "executor"):
        assert parents[name] == ids["execute_tool fan_out"]
    assert parents["sync tool"] == ids["execute_tool in_thread"]
    assert telemetry.unended == []


async def test_runs_in_threads_of_their_own_do_not_mix(telemetry: Captured) -> None:
    """Thirty runs of one agent, from many threads and with sync tools, are thirty whole traces."""

    @tool
    def who(number: int) -> str:
        return trace.get_current_span().get_span_context().trace_id.to_bytes(16).hex()

    def run(number: int) -> None:
        model = ScriptedModel(ToolCall("who", {"number": number}), lambda request: str(request.messages[-1].parts))
        result = Agent(f"agent-{number}", model=model, tools=[who]).run_sync("x")
        assert result.trace_id in result.output

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(anyio.to_thread.run_sync, run, number)
    trees = telemetry.tree()
    assert sorted(name for name, _ in trees) == sorted(f"invoke_agent agent-{number}" for number in range(30))
    assert {len(children) for _, children in trees} == {7}
    check_telemetry(telemetry)


async def test_one_span_for_each_thing_that_happens(telemetry: Captured) -> None:
    """A call of an MCP tool is one `execute_tool` span below one run, whoever else traces on the way."""

    def answer(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="ok")])

    server = listing_server(lambda _: ListToolsResult(tools=[tool_of("look_up")]), answer)
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="mcp") as provider:
            await Agent("a", model=ScriptedModel(ToolCall("look_up"), "x"), providers=[provider]).run("x")
    operations = Counter(attributes(span).get(semconv.OPERATION_NAME) for span in telemetry.spans)
    assert operations["execute_tool"] == 1
    assert operations["invoke_agent"] == 1
    assert operations["chat"] == 2
    check_telemetry(telemetry)


class Billing:
    """A model whose every answer costs 10 and 5 tokens, or an unknown number."""

    name = "billing"
    provider_name = "test"

    def __init__(self, *steps: Message, usage: Usage) -> None:
        self._steps = iter(steps)
        self._usage = usage

    async def generate(self, request: object) -> ModelResponse:
        """Answer."""
        return ModelResponse(message=next(self._steps), usage=self._usage)

    async def stream(self, request: object) -> Any:
        """Answer."""
        yield await self.generate(request)


TEN = Usage(input_tokens=10, output_tokens=5)


async def test_usage_of_nested_agents_is_counted_once(telemetry: Captured) -> None:
    """Usage adds up over `chat` spans; a run's own sum leaves out that of agents which are its tools."""
    inner = Agent("inner", model=Billing(Message("assistant", "found"), usage=TEN))

    @tool
    async def ask_inner() -> str:
        return (await inner.run("x")).output

    calls = Message("assistant", [ToolCall("ask_inner")])
    outer = Agent("outer", model=Billing(calls, Message("assistant", "done"), usage=TEN), tools=[ask_inner])
    result = await within(outer.run("x"))
    assert result.usage.input_tokens == 20
    tokens = {
        name: sum(attributes(span).get(semconv.USAGE_INPUT_TOKENS, 0) for span in telemetry.find(name))
        for name in ("chat", "invoke_agent inner", "invoke_agent outer", "execute_tool")
    }
    assert tokens == {"chat": 30, "invoke_agent inner": 10, "invoke_agent outer": 20, "execute_tool": 0}
    points = [point for point in telemetry.metrics if point.name == semconv.TOKEN_USAGE.name]
    assert sum(point.value for point in points if point.attributes[semconv.TOKEN_TYPE] == "input") == 30
    check_telemetry(telemetry)


IMPOSSIBLE = Usage(
    input_tokens=-1, output_tokens=2**63, reasoning_output_tokens=-(2**70), by_modality={"audio.input_tokens": -5}
)


@pytest.mark.parametrize(
    ("usage", "count"), [(Usage(input_tokens=0, output_tokens=0), 1), (Usage(), 0), (IMPOSSIBLE, 0)]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_no_tokens_and_unknown_tokens_differ(
    telemetry: Captured, usage: Usage, count: int, *, streamed: bool
) -> None:
    """Zero is a number, on the span and in the histogram; an unknown or impossible count is neither."""
    agent = Agent("a", model=Billing(Message("assistant", "x"), usage=usage))
    if streamed:
        with anyio.fail_after(60):
            async with agent.stream("x") as events:
                assert [event async for event in events]
    else:
        await within(agent.run("x"))
    for name in ("chat", "invoke_agent"):
        assert (semconv.USAGE_INPUT_TOKENS in attributes(telemetry.span(name))) is bool(count)
    points = [point for point in telemetry.metrics if point.name == semconv.TOKEN_USAGE.name]
    assert sum(point.count or 0 for point in points) == 2 * count


async def test_background_work_is_a_trace_of_its_own(telemetry: Captured) -> None:
    """A refresh that outlives its run is linked to it and not below it, so that sampling either is whole."""
    clock = Clock()
    hub = FakeHub([Tool(name="t", run=_nothing)])
    provider = DiscoveryProvider(hub, id="hub", ttl=10.0, stale_while_revalidate=1000.0, clock=clock)
    agent = Agent("a", model=ScriptedModel("x", "y"), providers=[provider])
    await within(agent.run("x"))
    clock.now += 50.0
    result = await within(agent.run("x"))
    with anyio.fail_after(60):
        while len(telemetry.find("discover_tools hub")) < 3:  # noqa: ASYNC110  (spans tell nobody that they end)
            await anyio.sleep(0.001)
    (refresh,) = [span for span in telemetry.find("discover_tools hub") if span.parent is None]
    (link,) = refresh.links
    assert refresh.context.trace_id != int(result.trace_id, 16)
    assert link.context.trace_id == int(result.trace_id, 16)
    assert semconv.RUN_ID not in attributes(refresh)


async def _nothing(arguments: dict[str, Any], ctx: object) -> None:
    """Do nothing."""


def test_run_sync_from_many_threads_and_loops(telemetry: Captured) -> None:
    """Within a running loop, after a closed one and from several threads at once, every run is whole."""
    agent = Agent("a", model=ScriptedModel(*["x"] * 42))

    async def within_a_loop() -> str:
        return agent.run_sync("x").output

    assert asyncio.run(within_a_loop()) == "x"
    assert agent.run_sync("x").output == "x"
    with ThreadPoolExecutor(8) as pool:
        assert [result.output for result in pool.map(agent.run_sync, ["x"] * 40)] == ["x"] * 40
    assert len(telemetry.tree()) == 42
    check_telemetry(telemetry)


async def test_a_provider_may_be_asked_outside_of_a_run(telemetry: Captured) -> None:
    """Without a run, listing tools leaves no span without an end and no context behind."""
    provider = DiscoveryProvider(FakeHub([Tool(name="t", run=_nothing)]), id="hub")
    tools = await within(provider.list_tools(DiscoveryContext()))
    assert [tool.name for tool in tools] == ["t"]
    assert telemetry.unended == []
    assert not trace.get_current_span().get_span_context().is_valid
    assert json.dumps(telemetry.tree()) == "[]"
