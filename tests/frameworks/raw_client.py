"""The MCP SDK's own client, without a framework."""

from __future__ import annotations

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(url: str) -> None:
    """List and call."""
    async with streamable_http_client(url) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        await session.list_tools()
        await session.call_tool("search", {"text": "rooms"})
