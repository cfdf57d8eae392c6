"""FastMCP: a server object in this process as a hub."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastmcp import Client, FastMCP

from pellucid.context import DiscoveryContext, ToolContext
from pellucid.mcp.content import to_value
from pellucid.tools import Tool
from pellucid.types import JSONObject, JSONValue

__all__ = ["FastMCPHub"]


class FastMCPHub:
    """A FastMCP server in memory as a hub: `DiscoveryProvider(FastMCPHub(server), id="rooms")`.

    Each listing and call opens a session, which takes no process and no network. It works on asyncio.
    """

    def __init__(self, server: FastMCP[Any]) -> None:
        self._server = server

    async def fetch_catalog(self, ctx: DiscoveryContext) -> tuple[Tool, ...]:
        """List the tools."""
        async with Client(self._server) as client:
            listed = await client.list_tools()
        return tuple(
            Tool(
                name=tool.name,
                description=tool.description or "",
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                run=partial(self._call, tool.name),
            )
            for tool in listed
        )

    async def _call(self, name: str, arguments: JSONObject, ctx: ToolContext) -> JSONValue:
        async with Client(self._server) as client:
            return to_value(await client.call_tool_mcp(name, arguments))
