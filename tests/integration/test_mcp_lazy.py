"""Lazy tools of real MCP servers that go away after a model has activated them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pellucid import (
    Agent,
    DiscoveryContext,
    DiscoveryError,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    combined,
    semconv,
    static_tools,
)
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.mcp_servers import modern_server, serving
from support.processes import python
from support.runs import COMPLETED, attributes, ending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SERVERS = Path(__file__).parents[1] / "support" / "mcp_servers.py"
ADD = ToolCall("add", {"a": 1, "b": 2})
ACTIVATE = ToolCall("tool_search", {"names": ["add", "pid"]})


class Server:
    """A server that can go away for good. Attributes: provider: its tools; leave: what makes it go."""

    def __init__(self, provider: MCPProvider, leave: Callable[[], Awaitable[None]]) -> None:
        self.provider = provider
        self.leave = leave


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Return a process, and a server over HTTP."""
    with ExitStack() as stack:
        if request.param == "http":
            port = stack.enter_context(serving(modern_server().streamable_http_app))

            async def stop() -> None:
                await anyio.to_thread.run_sync(stack.close)

            yield Server(MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="mcp"), stop)
            return
        script = tmp_path / "server.py"
        script.write_text(SERVERS.read_text())
        provider = MCPProvider.stdio(*python(str(script), "modern"), id="mcp")

        async def kill() -> None:
            [tool] = [tool for tool in await provider.list_tools(DiscoveryContext()) if tool.name == "pid"]
            answer = await tool.run({}, ToolContext())
            script.unlink()  # it will not be back
            os.kill(answer["result"], signal.SIGKILL)

        yield Server(provider, kill)


def now() -> Tool:
    """Return a tool that has nothing to do with the server."""

    async def run(arguments: Any, ctx: object) -> str:
        return "noon"

    return Tool(name="now", run=run)


def said(messages: Any) -> list[ToolResult]:
    """Return the results of all calls, in their order."""
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


async def test_an_active_tool_whose_server_goes_away(telemetry: Captured, server: Server) -> None:
    """The call says that the server is not available, the catalogue has the tool no more, and the run goes on."""

    async def leave(request: object) -> ToolCall:
        await server.leave()
        return ADD

    model = ScriptedModel(ACTIVATE, ADD, leave, ADD, ToolCall("tool_search", {"name": "add"}), ToolCall("now"), "done")
    with anyio.fail_after(60):
        async with server.provider as provider:
            hubs = combined(provider, static_tools([now()]), on_error="skip")
            agent = Agent("a", model=model, providers=[hubs], registry_mode="lazy")
            result = await agent.run("x")
    _, worked, lost, removed, unknown, inactive = said(result.messages)
    assert worked.response == {"result": 3}
    assert lost.is_error
    assert "MCP server 'mcp'" in str(lost.response)
    assert removed.is_error
    assert "was removed since it was offered" in str(removed.response)
    response: Any = unknown.response
    assert (response["activated"], response["error"]) == (False, "unknown tool: add")
    assert "must be activated first" in str(inactive.response)
    assert (result.output, set(result.degraded)) == ("done", {"mcp"})
    offers = [[tool.name for tool in request.tools] for request in model.requests]
    assert offers == [["tool_search"], *[["tool_search", "add", "pid"]] * 2, *[["tool_search"]] * 4]
    gone: list[Any] = [event for event in telemetry.events if event.name == "tools.deactivated"]
    assert [(event.tool_name, event.provider_id, event.reason) for event in gone] == [
        ("add", "combined(mcp,static)", "removed"),
        ("pid", "combined(mcp,static)", "removed"),
    ]
    calls = [ending(span) for span in telemetry.find("execute_tool add")]
    assert calls[0] == COMPLETED
    assert calls[1][2] in ("connection_lost", "unavailable")
    assert calls[2] == ("failed", "ERROR", "tool_removed")
    [span, *_] = [span for span in telemetry.find("discover_tools mcp") if ending(span)[0] == "failed"]
    assert attributes(span)[semconv.PROVIDER_ID] == "mcp"
    check_telemetry(telemetry)


async def test_without_skip_the_run_fails_of_the_server(telemetry: Captured, server: Server) -> None:
    """By its name, after the call had its result."""

    async def leave(request: object) -> ToolCall:
        await server.leave()
        return ADD

    model = ScriptedModel(ACTIVATE, leave)
    with anyio.fail_after(60):
        async with server.provider as provider:
            agent = Agent("a", model=model, providers=[provider], registry_mode="lazy", on_stale="fail")
            with pytest.raises(DiscoveryError, match="'mcp'"):
                await agent.run("x")
    assert ending(telemetry.span("execute_tool add"))[2] in ("connection_lost", "unavailable")
    assert ending(telemetry.span("invoke_agent"))[0] == "failed"
    check_telemetry(telemetry)
