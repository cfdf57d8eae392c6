"""Sessions of the MCP SDK's own client, instrumented."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import PaginatedRequestParams

from pellucid_instrumentation import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pellucid_instrumentation import Hubs


@contextmanager
def instrumented(hubs: Hubs | None = None) -> Iterator[None]:
    """Instrument until the end of the block."""
    instrument(hubs=hubs)
    try:
        yield
    finally:
        uninstrument()


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[ClientSession]:
    """Open a session, without the handshake."""
    async with streamable_http_client(url) as (read, write), ClientSession(read, write) as session:
        yield session


@asynccontextmanager
async def over_stdio(command: str, *args: str) -> AsyncIterator[ClientSession]:
    """Open a session with a process, without the handshake."""
    parameters = StdioServerParameters(command=command, args=list(args))
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        yield session


async def list_all(session: ClientSession) -> list[str]:
    """Return the names of all tools, page by page."""
    names: list[str] = []
    params: Any = None
    while True:
        page = await session.list_tools(params=params)
        names += [tool.name for tool in page.tools]
        if page.next_cursor is None:
            return names
        params = PaginatedRequestParams(cursor=page.next_cursor)
