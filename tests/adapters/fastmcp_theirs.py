"""Our agent with a FastMCP server in memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

from pellucid import Agent, DiscoveryContext, DiscoveryProvider
from pellucid.adapters.fastmcp import FastMCPHub
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture

sys.path.insert(0, str(Path(__file__).parents[1]))
from adapters.shop import answered, calls_of

server: FastMCP[None] = FastMCP("rooms")


@server.tool
def count(floor: int) -> dict[str, int]:
    """Count the rooms."""
    return {"count": floor * 10}


@server.tool
def refuse(floor: int) -> str:
    """Refuse."""
    raise ToolError("no such floor")


async def main() -> None:
    """Our agent calls their tools."""
    with capture() as telemetry:
        provider = DiscoveryProvider(FastMCPHub(server), id="rooms", ttl=60)
        agent = Agent("a", model=ScriptedModel(calls_of("count", "refuse"), "done"), providers=[provider])
        run = await agent.run("x")
        results = answered([part for message in run.messages for part in message.parts])
        assert results["count"].response == {"count": 20}, results
        assert results["refuse"].is_error
        schemas = {tool.name: tool.output_schema for tool in await provider.list_tools(DiscoveryContext())}
        assert schemas["count"] == {"type": "object", "additionalProperties": {"type": "integer"}}, schemas
        assert "no such floor" in str(results["refuse"].response)
        assert len(telemetry.find("discover_tools rooms")) == 2
        assert len(telemetry.find("execute_tool")) == 2


if __name__ == "__main__":
    asyncio.run(main())
    print("ok")
