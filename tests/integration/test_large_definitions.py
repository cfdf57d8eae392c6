"""Tools whose definitions are too large to give to a model."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, DiscoveryProvider, Tool, combined
from pellucid.errors import InvalidCatalog
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel
from support.mcp_servers import OBJECT, LegacyHttp, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pellucid import ToolProvider

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

LIMIT = 65_536
HUGE = {
    "description": {"name": "huge", "description": "x" * 50_000_000, "inputSchema": OBJECT},
    "schema": {"name": "huge", "inputSchema": {"type": "object", "properties": {"a": {"enum": ["y" * LIMIT]}}}},
    "output schema": {"name": "huge", "inputSchema": OBJECT, "outputSchema": {"type": "object", "title": "z" * LIMIT}},
}


async def _run(arguments: dict[str, Any], ctx: object) -> str:
    return "ok"


def tool_of(listed: dict[str, Any]) -> Tool:
    """Return a tool of our own with the definition that a server lists."""
    schemas = {"input_schema": listed["inputSchema"], "output_schema": listed.get("outputSchema")}
    return Tool(name=listed["name"], run=_run, description=listed.get("description", ""), **schemas)


class Own:
    """A provider of an application."""

    id = "hub"

    def __init__(self, tools: Sequence[Tool], on_invalid: str) -> None:
        self.on_invalid = on_invalid
        self._tools = tools

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tools."""
        return self._tools


@asynccontextmanager
async def listing(way: str, *tools: dict[str, Any], on_invalid: Any = "quarantine") -> AsyncIterator[ToolProvider]:
    """Give a provider of one kind or another that lists these tools."""
    own = [tool_of(tool) for tool in tools]
    match way:
        case "own":
            yield Own(own, on_invalid)
        case "combined":
            yield combined(Own(own, on_invalid))
        case "hub":
            yield DiscoveryProvider(FakeHub(own), id="hub", on_invalid=on_invalid)
        case _:
            with serving(lambda: LegacyHttp({"tools": list(tools)}).app) as port:
                url = f"http://127.0.0.1:{port}/mcp"
                async with MCPProvider.http(url, id="hub", on_invalid=on_invalid, max_listing_bytes=2**26) as provider:
                    yield provider


@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("way", ["own", "combined", "hub", "mcp"])
async def test_a_definition_that_is_too_large_is_left_out(way: str, what: str) -> None:
    """With `on_invalid="quarantine"`; an event says how large it is, and the other tools are offered."""
    left_out: list[tuple[str, str]] = []
    model = ScriptedModel("done")
    with anyio.fail_after(60):
        async with listing(way, {"name": "first", "inputSchema": OBJECT}, HUGE[what]) as provider:
            agent = Agent("a", model=model, providers=[provider])
            agent.on("tools.quarantined", lambda event: left_out.append((event.tool_name, event.problem)))
            await agent.run("x")
    assert [tool.name for tool in model.requests[0].tools] == ["first"]
    [(name, problem)] = left_out
    assert name == "huge"
    assert "more than 65536 bytes" in problem
    assert len(problem) < 300


@pytest.mark.parametrize("way", ["own", "hub", "mcp"])
async def test_a_definition_that_is_too_large_is_an_invalid_catalog(way: str) -> None:
    """Unless `on_invalid` says otherwise; the error says what to do."""
    with anyio.fail_after(60):
        async with listing(way, HUGE["schema"], on_invalid="fail") as provider:
            with pytest.raises(InvalidCatalog, match=r"'huge'.*bytes.*shorten") as failed:
                await Agent("a", model=ScriptedModel("done"), providers=[provider]).run("x")
    assert len(str(failed.value)) < 400


async def test_a_definition_of_the_limit_is_offered() -> None:
    """The limit is of the JSON of the definition, which a model gets."""
    short = tool_of({"name": "t", "inputSchema": OBJECT})
    most = LIMIT - short.size
    model = ScriptedModel("done")
    tool = tool_of({"name": "t", "description": "x" * most, "inputSchema": OBJECT})
    await Agent("a", model=model, providers=[Own([tool], "fail")]).run("x")
    assert len(model.requests[0].tools[0].description) == most
