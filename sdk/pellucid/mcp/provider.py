"""The tools of an MCP server, as a tool provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO, TypedDict, Unpack

import anyio
from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import Tool as ServerTool
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.per_loop import PerLoop
from pellucid.context import DiscoveryContext, ToolContext
from pellucid.errors import ConfigError, DiscoveryError
from pellucid.mcp.calls import call
from pellucid.mcp.connection import CLOSE_PATIENCE, Connection
from pellucid.mcp.invalid_tools import Broken
from pellucid.mcp.listing import Plan
from pellucid.mcp.names import exposed_names
from pellucid.mcp.server_catalog import ServerCatalog
from pellucid.mcp.transports import Target, in_process, once, over_http, over_stdio, over_transport
from pellucid.providers.hub import check_not_negative
from pellucid.providers.provider import OnInvalid, Tools
from pellucid.tools import Mcp, Tool
from pellucid.tools.catalog import check_catalog
from pellucid.tools.tool import BrokenTool
from pellucid.types import JSONObject, JSONValue

_CLOSED: Final = "the provider was closed; make a new one"


class Options(TypedDict, total=False):
    """Options of every `MCPProvider`; what they mean is said there."""

    prefix: bool
    objective: float | None
    timeout: float | None
    call_timeout: float | None
    ttl: float | None
    stale_if_error: float
    stale_while_revalidate: float
    on_invalid: OnInvalid


class MCPProvider:
    """Lists and calls the tools of an MCP server; made by `stdio()`, `http()` or `connect()`.

    It connects when it is first asked, or at `async with`, and once for each event loop. A connection that is lost is
    reopened at the next use; a server that cannot be reached is then left alone for a moment (0.5 s, doubling up to
    30 s while it goes on failing). A call that was under way when the connection was lost is not repeated, because the
    server may have done it.

    How long a listing is kept: as long as the server says (`ttlMs`), else `ttl`, else, with servers before protocol
    2026-07-28 that announce changes, until they do. Failing all of these the server is asked each time, because a list
    that is kept on no promise goes stale silently. An announced change or a lost connection ends any of these.

    Args:
        target: The way to the server.
        id: Value of `pellucid.provider.id`, and the server's name in prefixed tool names.
        prefix: Call the tools `mcp__<id>__<tool>`. In any case names are made to fit `[A-Za-z0-9_-]{1,64}`.
        objective: Seconds that listing should take; exported for alerts.
        timeout: Seconds to connect and to list all pages, by the wall clock.
        call_timeout: Seconds for each tool call; `Limits.tool_timeout` if not given.
        ttl: Seconds that a listing is good for when the server does not say, less a jitter of up to a tenth.
        stale_if_error: Seconds beyond its end in which an old listing is served if a new one fails.
        stale_while_revalidate: Seconds beyond its end in which an old listing is served at once while a new one is
            fetched. After an announced change callers wait for the new one.
        on_invalid: `quarantine` leaves broken tools out, with an event, instead of failing.

    Raises:
        ConfigError: an option makes no sense.
    """

    detached: Final = True

    def __init__(
        self,
        target: Target,
        *,
        id: str,  # noqa: A002  (named in the public contract)
        prefix: bool = False,
        objective: float | None = None,
        timeout: float | None = 30.0,
        call_timeout: float | None = None,
        ttl: float | None = None,
        stale_if_error: float = 0.0,
        stale_while_revalidate: float = 0.0,
        on_invalid: OnInvalid = "fail",
    ) -> None:
        if not id:
            raise ConfigError("MCPProvider(id=''): give the server a name; spans, metrics and tool names carry it")
        for name, value in (("timeout", timeout), ("call_timeout", call_timeout), ("objective", objective)):
            if value is not None and not value > 0:
                raise ConfigError(f"MCPProvider {id!r}: {name}={value!r} must be a positive number of seconds")
        seconds = {"ttl": ttl, "stale_if_error": stale_if_error, "stale_while_revalidate": stale_while_revalidate}
        check_not_negative(f"MCPProvider {id!r}", seconds)
        self.id = id
        self.kind = target.kind
        self.objective = objective
        self.timeout = timeout
        self.on_invalid = on_invalid
        self.server_address = target.address
        self.server_port = target.port
        self._target = target
        self._prefix = prefix
        self._call_timeout = call_timeout
        self._plan = Plan(
            id=id,
            target=target,
            objective=objective,
            timeout=timeout,
            ttl=ttl,
            stale_if_error=stale_if_error,
            stale_while_revalidate=stale_while_revalidate,
            build=self._build,
            attributes={semconv.MCP_METHOD_NAME: "tools/list", **target.attributes},
            opened=self._opened,
            ended=self._ended,
        )
        self._catalogs = PerLoop(partial(ServerCatalog, self._plan))
        self._connections: set[Connection] = set()
        self._server_names: Mapping[str, str] = {}
        self._closed = False
        reset_in_child(self, _connections=set)

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        id: str,  # noqa: A002
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        errlog: TextIO | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Start a server process and talk over its standard input and output.

        Args:
            command: The executable.
            *args: Its arguments.
            id: The server's name.
            env: Environment variables, added to the few that the MCP SDK deems safe to pass on (`PATH`, `HOME`, ...).
            cwd: The process's working directory.
            errlog: A file for its standard error, which otherwise goes to the logger `pellucid.mcp` at level DEBUG.
            **options: See the class.
        """
        parameters = StdioServerParameters(command=command, args=list(args), env=dict(env or {}), cwd=cwd)
        return cls(over_stdio(parameters, errlog), id=id, **options)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        id: str,  # noqa: A002
        headers: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Talk streamable HTTP.

        Args:
            url: The server's address.
            id: The server's name.
            headers: HTTP headers of every request, for instance `Authorization`.
            **options: See the class.
        """
        return cls(over_http(url, headers), id=id, **options)

    @classmethod
    def connect(
        cls,
        server: MCPServer | Server[Any] | Transport | Callable[[], Transport] | StdioServerParameters | str,
        *,
        id: str,  # noqa: A002
        **options: Unpack[Options],
    ) -> Self:
        """Use a server in this process, a transport of your own, process parameters or a URL.

        A transport can be entered only once. Pass a function that makes one to let the connection be reopened, and
        used in several event loops.

        Raises:
            ConfigError: `server` is none of these.
        """
        match server:
            case str():
                target = over_http(server, None)
            case StdioServerParameters():
                target = over_stdio(server, None)
            case MCPServer() | Server():
                target = in_process(server)
            case AbstractAsyncContextManager():
                target = over_transport(once(server))
            case _ if callable(server):
                target = over_transport(server)
            case _:
                raise ConfigError(f"MCPProvider {id!r}: {server!r} is no MCP server, transport, parameters or URL")
        return cls(target, id=id, **options)

    async def list_tools(self, ctx: DiscoveryContext) -> Tools:
        """Return the server's tools.

        Raises:
            DiscoveryError: the server could not be reached or did not list them.
        """
        return await self._catalog().list_tools(ctx)

    def server_name(self, name: str) -> str:
        """Return the server's own name of a tool that it listed. Raises KeyError for others."""
        return self._server_names[name]

    async def aclose(self) -> None:
        """Close the connections of all event loops and wait until they are. Closing twice does nothing."""
        self._closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        # Bounded, because nobody closes what an event loop left behind that was stopped in mid-flight.
        with anyio.move_on_after(CLOSE_PATIENCE):
            for connection in connections:
                await connection.wait_closed()

    async def __aenter__(self) -> Self:
        await self._connection()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _catalog(self) -> ServerCatalog:
        if self._closed:
            raise DiscoveryError(self.id, _CLOSED)
        return self._catalogs.get()

    def _opened(self, connection: Connection) -> None:
        if self._closed:
            raise DiscoveryError(self.id, _CLOSED)
        self._connections.add(connection)

    def _ended(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def _build(self, listed: list[ServerTool | Broken]) -> Tools:
        names = exposed_names([tool.name for tool in listed], self.id, prefix=self._prefix)
        attributes = {semconv.MCP_METHOD_NAME: "tools/call", **self._target.attributes}
        tools = tuple(self._tool(tool, names[tool.name], attributes) for tool in listed)
        check_catalog(self.id, tools, quarantine=self.on_invalid == "quarantine")
        self._server_names = {given: name for name, given in names.items()}
        return tools

    def _tool(self, tool: ServerTool | Broken, name: str, attributes: Mapping[str, AttributeValue]) -> Tool:
        run = partial(self._call, tool.name, name)
        if isinstance(tool, Broken):
            problem = f"the server lists {name!r} in a way that the protocol does not allow: {tool.problem}"
            return BrokenTool(name=name, run=run, source=Mcp(self.id), mode="mcp", problem=problem)
        return Tool(
            name=name,
            description=tool.description or tool.title or "",
            input_schema=tool.input_schema,
            run=run,
            source=Mcp(self.id),
            timeout=self._call_timeout,
            mode="mcp",
            attributes=attributes,
        )

    async def _call(self, name: str, exposed: str, arguments: JSONObject, ctx: ToolContext) -> JSONValue:
        return await call(self.id, self._connection, name, arguments, ctx, exposed=exposed)

    async def _connection(self) -> Connection:
        return await self._catalog().connection()
