"""The three hubs of the demo: two MCP servers, each in its own process, and an HTTP catalogue."""

from __future__ import annotations

import json
import sys
from functools import partial
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from pellucid import DiscoveryProvider, Hub, Tool, ToolError
from pellucid.mcp import MCPProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryContext, ToolContext
    from pellucid_commands.demo.repository import Repository

OBJECTIVE: Final = 0.2
"""Objective of each hub for listing its tools, in seconds."""


def git_hub(repository: Repository) -> MCPProvider:
    """Return the tools of the server of one repository."""
    return MCPProvider.stdio(sys.executable, *repository.command, id="git", objective=OBJECTIVE)


def time_hub() -> MCPProvider:
    """Return the tools of `mcp-server-time`."""
    return MCPProvider.stdio(
        sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC", id="time", objective=OBJECTIVE
    )


def catalogue_hub(port: int) -> DiscoveryProvider:
    """Return the tools of the HTTP catalogue on a port of this machine."""
    return DiscoveryProvider(HttpCatalogue("127.0.0.1", port), id="catalogue", ttl=60.0, objective=OBJECTIVE)


class CatalogueError(OSError):
    """The catalogue responded with an error.

    Attributes:
        retry_after: Seconds for which the server asks to be left alone; Pellucid's back-off takes as long.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HttpCatalogue:
    """`ToolHub` over HTTP.

    Attributes:
        server_address: Host, recorded on discovery spans.
        server_port: Port, recorded on discovery spans.
    """

    def __init__(self, address: str, port: int) -> None:
        self.server_address = address
        self.server_port = port

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Request the tools."""
        answer = await self._ask("GET", "/tools")
        return [
            Tool(
                name=entry["name"],
                description=entry["description"],
                input_schema=entry["inputSchema"],
                run=partial(self._call, entry["name"]),
                source=Hub("catalogue"),
            )
            for entry in answer["tools"]
        ]

    async def _call(self, name: str, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        try:
            return (await self._ask("POST", f"/tools/{name}", arguments))["result"]
        except OSError as error:
            raise ToolError(f"{name} is not available: {error}") from error

    async def _ask(self, method: str, path: str, content: object = None) -> Any:
        return await anyio.to_thread.run_sync(self._ask_blocking, method, path, content, abandon_on_cancel=True)

    def _ask_blocking(self, method: str, path: str, content: object) -> Any:
        """Send one HTTP request.

        Raises:
            OSError: the server is unreachable or responds with an error.
        """
        connection = HTTPConnection(self.server_address, self.server_port, timeout=5)
        try:
            connection.request(method, path, None if content is None else json.dumps(content))
            answer = connection.getresponse()
            body = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 400:  # noqa: PLR2004  (where HTTP's errors begin)
            seconds = answer.getheader("Retry-After")
            message = f"HTTP {answer.status} from {method} {path}: {body['error']}"
            raise CatalogueError(message, float(seconds) if seconds is not None else None)
        return body
