"""Hubs and servers that are slow, gone or wrong: loud, bounded in time, and no more than their own part of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp_types import ListToolsResult

from pellucid import Agent, DiscoveryError, DiscoveryProvider, Limits, Tool, ToolCall, combined, semconv
from pellucid.events import ToolsDiscoveryFailed
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.clock import SOON, pass_time
from support.hubs import named
from support.mcp_servers import Desk, LegacyHttp, listing_server, modern_server, serving, tool_of
from support.runs import COMPLETED, TIMEOUT, attributes, ending, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]


class Meeting:
    """Hubs that each wait until all have been asked: asked one after the other, none would ever answer."""

    def __init__(self, hubs: int) -> None:
        self._expected = hubs
        self._asked = 0
        self._all = anyio.Event()

    async def fetch_catalog(self, ctx: object) -> list[Tool]:
        """Wait for the others."""
        self._asked += 1
        name = f"tool_{self._asked}"
        if self._asked == self._expected:
            self._all.set()
        await self._all.wait()
        return named(name)


async def test_hubs_are_asked_at_the_same_time(telemetry: Captured) -> None:
    """Twenty hubs take as long as the slowest, not as long as all."""
    meeting = Meeting(20)
    providers = [DiscoveryProvider(meeting, id=f"hub-{number}") for number in range(20)]
    await within(Agent("a", model=ScriptedModel("x"), providers=providers).run("x"))
    assert len(telemetry.find("discover_tools")) == 20
    check_telemetry(telemetry)


async def test_one_fetch_serves_many_iterations_and_runs(telemetry: Captured) -> None:
    """A hub is not asked again for each request to the model."""
    hub = FakeHub(named("t"))
    provider = DiscoveryProvider(hub, id="hub", ttl=3600.0)
    for _ in range(5):
        model = ScriptedModel(ToolCall("t"), ToolCall("t"), "x")
        await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert len(hub.calls) == 1
    assert len(telemetry.find("discover_tools")) == 15


async def test_one_bad_hub_among_good_ones(telemetry: Captured) -> None:
    """With `on_error="skip"` a hub that fails and one that hangs cost their own tools only, and both are named."""
    hubs = {
        "good": FakeHub(named("t")),
        "failing": FakeHub(faults=[ConnectionError("gone")]),
        "hanging": FakeHub(latency=math.inf),
    }
    providers = [
        DiscoveryProvider(hub, id=name, timeout=0.2 if name == "hanging" else None) for name, hub in hubs.items()
    ]
    model = ScriptedModel(ToolCall("t"), "done")
    agent = Agent("a", model=model, providers=[combined(*providers, on_error="skip")], limits=Limits(max_iterations=1))
    result = await within(agent.run("x"))
    assert set(result.degraded) == {"failing", "hanging"}
    assert ending(telemetry.span("execute_tool t")) == COMPLETED
    assert ending(telemetry.span("discover_tools failing")) == ("failed", "ERROR", "ConnectionError")
    assert ending(telemetry.span("discover_tools hanging")) == TIMEOUT
    failed = {event.provider_id for event in telemetry.events if isinstance(event, ToolsDiscoveryFailed)}
    assert failed == {"failing", "hanging"}
    check_telemetry(telemetry)


async def test_a_failure_is_never_an_empty_list(telemetry: Captured) -> None:
    """Without `skip` a hub that fails fails the run by its name, and the model is not asked."""
    provider = DiscoveryProvider(FakeHub(faults=[PermissionError("who are you?")]), id="hub")
    model = ScriptedModel("x")
    with pytest.raises(DiscoveryError, match="hub"):
        await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert model.requests == []


async def test_a_change_that_is_announced_shows_at_the_next_iteration(telemetry: Captured) -> None:
    """A server that adds a tool in the middle of a run is believed: its new tool can be called in the same run."""
    with anyio.fail_after(60):
        async with MCPProvider.connect(modern_server(), id="mcp") as provider:
            model = ScriptedModel(ToolCall("grow"), ToolCall("grown"), "done")
            await Agent("a", model=model, providers=[provider]).run("x")
    assert ending(telemetry.span("execute_tool grown")) == COMPLETED
    assert [event.name for event in telemetry.events].count("tools.catalog_changed") == 1


async def test_a_tool_that_hangs_at_its_server(telemetry: Captured) -> None:
    """It is a timeout of that call, the server is told, and the run goes on with the same connection."""
    desk = Desk()

    async def let_time_pass() -> None:
        await desk.started.wait()
        pass_time()

    with anyio.fail_after(60):
        async with (
            MCPProvider.connect(modern_server(desk), id="mcp", call_timeout=SOON) as provider,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(let_time_pass)
            model = ScriptedModel(ToolCall("slow"), ToolCall("add", {"a": 1, "b": 2}), "done")
            await Agent("a", model=model, providers=[provider]).run("x")
            await desk.cancelled.wait()
    assert ending(telemetry.span("execute_tool slow")) == TIMEOUT
    assert ending(telemetry.span("execute_tool add")) == COMPLETED
    check_telemetry(telemetry)


async def test_a_session_that_the_server_forgot(telemetry: Captured) -> None:
    """In the middle of a run a new session is opened once, the call is made once, and nothing fails."""
    server = LegacyHttp()
    with anyio.fail_after(60), serving(lambda: server.app) as port:
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="mcp") as provider:

            def forget(request: Any) -> ToolCall:
                server.sessions.clear()
                return ToolCall("count")

            await Agent("a", model=ScriptedModel(forget, "done"), providers=[provider]).run("x")
    assert server.opened == 2
    assert server.calls == 1
    assert ending(telemetry.span("execute_tool count")) == COMPLETED
    check_telemetry(telemetry)


async def test_a_provider_opened_here_and_closed_there(telemetry: Captured) -> None:
    """A run in one task, the close in another and a cancelled one between: no scope ends in the wrong task."""
    provider = MCPProvider.connect(listing_server(lambda _: ListToolsResult(tools=[tool_of("look_up")])), id="mcp")
    agent = Agent("a", model=ScriptedModel("x", "y"), providers=[provider])

    async def run() -> None:
        await agent.run("x")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.aclose)
    check_telemetry(telemetry)


async def test_a_hub_is_measured_in_seconds_by_its_name(telemetry: Captured) -> None:
    """Its histogram tells a fetch of 30 ms from one of 3 s: bounds are seconds, and the label is the provider's id."""
    provider = DiscoveryProvider(FakeHub(named("t"), latency=0.03), id="hub")
    await within(Agent("a", model=ScriptedModel("x"), providers=[provider]).run("x"))
    point = telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="hub")
    assert sum(0.03 < bound < 3.0 for bound in point.bounds) >= 5
    assert attributes(telemetry.span("discover_tools"))[semconv.PROVIDER_ID] == "hub"
