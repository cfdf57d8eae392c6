"""Old listings of MCP servers that are away, slow or hang: served if the application allows it, never in silence."""

from __future__ import annotations

import gc
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult

from pellucid import Agent, ConfigError, DiscoveryContext, DiscoveryError, ToolContext, ToolError, semconv
from pellucid.errors import DiscoveryBackoff
from pellucid.events import ToolsCatalogStale
from pellucid.mcp import MCPProvider
from pellucid.testing import FunctionModel
from support.mcp_servers import Desk, listing_server, modern_server, serving, tool_of
from support.processes import python
from support.runs import attributes, ending, span_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SCRIPT = Path(__file__).parents[1] / "support" / "mcp_servers.py"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


class Runs:
    """Runs an agent on a provider. Attributes: offered: names of the tools that the model was given, run by run."""

    def __init__(self, provider: MCPProvider, telemetry: Captured) -> None:
        self.offered: list[list[str]] = []
        self._telemetry = telemetry
        self._agent = Agent("a", model=FunctionModel(self._answer), providers=[provider])

    async def run(self) -> None:
        """Run once."""
        await self._agent.run("x")

    async def fresh(self) -> None:
        """Run until the listing is no longer an old one."""
        await self.run()
        while self.caches[-1] == "stale":
            await checkpoint()
            await self.run()

    @property
    def discoveries(self) -> list[ReadableSpan]:
        """Discoveries that belong to a run."""
        return [span for span in self._telemetry.find("discover_tools") if semconv.RUN_ID in attributes(span)]

    @property
    def caches(self) -> list[str]:
        """Sources of their listings."""
        return [attributes(span)[semconv.DISCOVERY_CACHE] for span in self.discoveries]

    @property
    def refreshes(self) -> list[ReadableSpan]:
        """Discoveries in the background."""
        return [span for span in self._telemetry.find("discover_tools") if semconv.RUN_ID not in attributes(span)]

    @property
    def events(self) -> list[ToolsCatalogStale]:
        """Events that say that an old listing was served."""
        return [event for event in self._telemetry.events if isinstance(event, ToolsCatalogStale)]

    async def refreshed(self, count: int) -> None:
        """Wait until so many background discoveries have ended."""
        while len(self.refreshes) < count:
            await checkpoint()

    def _answer(self, request: Any) -> str:
        self.offered.append([definition.name for definition in request.tools])
        return "done"


async def test_the_old_listing_is_served_while_the_server_is_away(telemetry: Captured) -> None:
    """`stale_if_error` serves the old listing while the server is away; when it is back, its tools are listed again."""
    with anyio.fail_after(90):
        with serving(modern_server().streamable_http_app) as port:
            provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub", stale_if_error=600)
            runs = Runs(provider, telemetry)
            await runs.run()
        await runs.run()
        await runs.run()
        assert runs.caches == ["miss", "stale", "stale"]
        assert [(event.provider_id, event.error_type) for event in runs.events] == [("hub", "httpx2.ConnectError")] * 2
        assert runs.offered[0] == runs.offered[1] == runs.offered[2] != []
        with serving(modern_server().streamable_http_app, port):
            await runs.fresh()
            await provider.aclose()
    assert runs.caches[-1] == "miss"
    assert runs.offered[-1] == runs.offered[0]


async def test_without_stale_if_error_a_server_that_is_away_is_loud() -> None:
    """An old listing is never served without `stale_if_error`."""
    with anyio.fail_after(60):
        with serving(modern_server().streamable_http_app) as port:
            provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub", stale_while_revalidate=0)
            await provider.list_tools(DiscoveryContext())
        with pytest.raises(DiscoveryError, match="ConnectError"):
            await provider.list_tools(DiscoveryContext())
        await provider.aclose()


async def test_a_lost_connection_ends_a_listing_and_keeps_it_for_errors(telemetry: Captured, tmp_path: Path) -> None:
    """A lost connection ends a listing that changes are announced for, and keeps it for errors."""
    script = str(shutil.copy(SCRIPT, tmp_path / "server.py"))
    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log")}
    with anyio.fail_after(60):
        async with MCPProvider.stdio(*python(script, "legacy"), id="hub", env=env, stale_if_error=600) as provider:
            runs = Runs(provider, telemetry)
            await runs.run()
            await runs.run()
            tools = {tool.name: tool for tool in await provider.list_tools(DiscoveryContext())}
            await anyio.Path(script).unlink()
            with pytest.raises(ToolError, match="connection to MCP server 'hub' was lost"):
                await tools["die"].run({}, ToolContext())
            await runs.run()
    assert runs.caches == ["miss", "hit", "stale"]
    assert runs.offered[2] == runs.offered[0]
    [event] = runs.events
    assert event.error is not None
    assert "cannot connect to the MCP server" in event.error


async def test_a_refusal_has_its_type_on_the_event(telemetry: Captured) -> None:
    """The event of a stale listing names the server's own error, as a failed discovery would."""

    def pages(_cursor: str | None) -> ListToolsResult:
        return answers.pop(0)

    answers = [ListToolsResult(tools=[tool_of("a")])]
    with anyio.fail_after(60):
        async with MCPProvider.connect(listing_server(pages), id="hub", stale_if_error=600) as provider:
            runs = Runs(provider, telemetry)
            await runs.run()
            await runs.run()
    assert runs.caches == ["miss", "stale"]
    assert attributes(runs.discoveries[1])[semconv.MCP_METHOD_NAME] == "tools/list"
    [event] = runs.events
    assert event.error is not None
    assert "the MCP server returned error" in event.error
    assert event.error_type is not None
    assert event.error_type.lstrip("-").isdigit()


async def test_the_old_listing_is_served_at_once_while_the_server_is_slow(telemetry: Captured) -> None:
    """`stale_while_revalidate` serves the old listing at once; the refresh has a span of its own, with a link."""
    desk = Desk()

    async def pages(_ctx: Any, _params: Any) -> ListToolsResult:
        if not runs.offered:
            return ListToolsResult(tools=[tool_of("old")])
        desk.started.set()
        await desk.release.wait()
        return ListToolsResult(tools=[tool_of("new")])

    server = Server("slow", on_list_tools=pages)
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub", ttl=0, stale_while_revalidate=600) as provider:
            runs = Runs(provider, telemetry)
            await runs.run()
            await runs.run()
            await desk.started.wait()
            await runs.run()
            assert runs.caches == ["miss", "stale", "stale"]
            assert runs.refreshes == []
            desk.release.set()
            await runs.refreshed(1)
            while runs.offered[-1] != ["new"]:
                await runs.run()
    assert runs.offered[:3] == [["old"]] * 3
    assert {event.error_type for event in runs.events} == {None}
    refresh, stale = runs.refreshes[0], runs.discoveries[1]
    found = attributes(refresh)
    assert (found[semconv.DISCOVERY_CACHE], found[semconv.PROVIDER_KIND]) == ("miss", "mcp.memory")
    assert found[semconv.MCP_METHOD_NAME] == "tools/list"
    assert semconv.MCP_METHOD_NAME not in attributes(stale)
    assert [link.context.span_id for link in refresh.links] == [int(span_id(stale), 16)]


async def test_a_server_that_hangs_in_the_background_is_connected_to_anew(telemetry: Captured) -> None:
    """A refresh that hangs is a timeout, the old listing is served meanwhile, and the next has a new connection."""
    numbers = count(1)

    async def pages(_ctx: Any, _params: Any) -> ListToolsResult:
        if next(numbers) == 2:
            await anyio.sleep_forever()
        return ListToolsResult(tools=[tool_of("a")])

    server = Server("slow", on_list_tools=pages)
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub", ttl=0, timeout=4.0, stale_while_revalidate=600) as provider:
            runs = Runs(provider, telemetry)
            before = set(provider._pool.connections)
            await runs.run()
            await runs.run()
            await runs.refreshed(1)
            while len(runs.refreshes) == 1:
                await runs.run()
                await checkpoint()
            assert not before & provider._pool.connections
    assert ending(runs.refreshes[0]) == ("timeout", "ERROR", "timeout")
    assert ending(runs.refreshes[1])[0] == "completed"
    assert set(runs.caches[1:]) == {"stale"}
    assert [event.error_type for event in runs.events][:2] == [None, "timeout"]


async def test_after_an_announced_change_callers_wait_for_the_new_listing() -> None:
    """A listing that the server itself calls out of date is not served, whatever `stale_while_revalidate` says."""
    caches: list[str | None] = []
    ctx = DiscoveryContext(report=lambda *, cache=None, link=None: caches.append(cache))
    with anyio.fail_after(60):
        async with MCPProvider.connect(modern_server(), id="hub", ttl=600, stale_while_revalidate=600) as provider:
            tools = {tool.name: tool for tool in await provider.list_tools(ctx)}
            await tools["grow"].run({}, ToolContext())
            while "grown" not in [tool.name for tool in await provider.list_tools(ctx)]:
                await checkpoint()
    assert set(caches) <= {"miss", "hit"}


async def test_listings_and_calls_leave_a_server_alone_together() -> None:
    """A call that cannot connect starts the back-off of listings, and a call within it does not connect."""
    with anyio.fail_after(60):
        with serving(modern_server().streamable_http_app) as port:
            provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub")
            tools = {tool.name: tool for tool in await provider.list_tools(DiscoveryContext())}
        for connection in list(provider._pool.connections):
            connection.close()
            await connection.wait_closed()
        with pytest.raises(ToolError, match="ConnectError"):
            await tools["lines"].run({}, ToolContext())
        with pytest.raises(DiscoveryBackoff) as refused:
            await provider.list_tools(DiscoveryContext())
        with pytest.raises(ToolError, match="will be called again"):
            await tools["lines"].run({}, ToolContext())
        await provider.aclose()
    assert 0 < refused.value.retry_after <= 0.5


@pytest.mark.parametrize("option", ["stale_if_error", "stale_while_revalidate"])
def test_negative_seconds_are_refused(option: str) -> None:
    """A negative number of seconds raises ConfigError when the provider is made."""
    with pytest.raises(ConfigError, match=f"MCPProvider 'hub': {option}=-1 must not be negative"):
        MCPProvider.connect(modern_server(), id="hub", **{option: -1})  # type: ignore[arg-type]  # what is tested
