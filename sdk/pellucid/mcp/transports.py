"""How the different kinds of servers are reached, and what a transport tells of itself meanwhile."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TextIO, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.mcp.exchange import SESSION_HEADER, current_exchange
from pellucid.mcp.invalid_tools import put_aside
from pellucid.text import clean

CONNECT_PATIENCE: Final = 30.0
READ_PATIENCE: Final = 300.0
"""HTTP timeouts as the MCP SDK has them by default; a server may hold a response stream open."""

_LAST_WORDS: Final = 10
_LONGEST_LINE: Final = 1_000
"""Characters of a line of a server's standard error; a longer one is taken for several."""

_log = logging.getLogger("pellucid.mcp")

Reachable: TypeAlias = "Server[Any] | MCPServer | Transport"
"""What `mcp.Client` connects to."""


@dataclass(slots=True, kw_only=True)
class Link:
    """What is noticed of one connection's transport.

    Attributes:
        ended: Called when nothing more can arrive.
        over: It was.
        session_id: What the server calls the session, in an HTTP header.
        http_version: Such as `1.1`.
        protocol_version: Of MCP, once it is negotiated.
        listings: Ids of the requests for a list of tools that are under way.
        words: The last lines that the server process wrote to its standard error.
    """

    ended: Callable[[], None]
    over: bool = False
    session_id: str | None = None
    http_version: str | None = None
    protocol_version: str | None = None
    listings: set[str] = field(default_factory=set)
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))

    def end(self) -> None:
        """Note that nothing more can arrive."""
        if not self.over:
            self.over = True
            self.ended()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and the way to it.

    Attributes:
        kind: Value of `pellucid.provider.kind`.
        reach: Makes what `mcp.Client` connects to; called for each connection.
        transport: Value of `network.transport`.
        protocol: Value of `network.protocol.name`.
        address: Host, for HTTP.
        port: Port, for HTTP.
        pushes: Whether change notifications of servers before protocol 2026-07-28 are sure to arrive. Over HTTP they
            need a stream that such servers may refuse and the MCP SDK gives up on silently.
    """

    kind: str
    reach: Callable[[Link], Reachable]
    transport: str | None = None
    protocol: str | None = None
    address: str | None = None
    port: int | None = None
    pushes: bool = True

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """What the conventions want to be known of requests, as far as it is known without a connection."""
        known: dict[str, AttributeValue | None] = {
            semconv.NETWORK_TRANSPORT: self.transport,
            semconv.NETWORK_PROTOCOL_NAME: self.protocol,
            semconv.SERVER_ADDRESS: self.address,
            semconv.SERVER_PORT: self.port,
        }
        return {name: value for name, value in known.items() if value is not None}


def in_process(server: Server[Any] | MCPServer) -> Target:
    """Reach a server object without any transport."""
    return Target(kind="mcp.memory", reach=lambda _link: server)


def over_stdio(parameters: StdioServerParameters, errlog: TextIO | None) -> Target:
    """Start a server process and talk over its standard input and output."""

    def reach(link: Link) -> Transport:
        return _watched(_process(parameters, errlog, link), link)

    return Target(kind="mcp.stdio", reach=reach, transport="pipe")


def over_http(url: str, headers: Mapping[str, str] | None) -> Target:
    """Talk streamable HTTP.

    Raises:
        ConfigError: `url` is not an http or https address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{url!r} is not the address of an MCP server: it must begin with http:// or https://")

    def reach(link: Link) -> Transport:
        return _watched(_http(url, headers, link), link)

    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Target(
        kind="mcp.http",
        reach=reach,
        transport="tcp",
        protocol="http",
        address=parts.hostname,
        port=port,
        pushes=False,
    )


def over_transport(make: Callable[[], Transport]) -> Target:
    """Talk over transports of the application's own."""
    return Target(kind="custom", reach=lambda link: _watched(make(), link))


def once(transport: Transport) -> Callable[[], Transport]:
    """Make a factory of a transport, which can be entered only once.

    Raises (when called again):
        ConfigError: the transport is used up.
    """
    left = [transport]

    def make() -> Transport:
        if not left:
            raise ConfigError(
                "the transport was used already and cannot be opened again; pass a function that makes one"
            )
        return left.pop()

    return make


@asynccontextmanager
async def _watched(transport: Transport, link: Link) -> AsyncIterator[Any]:
    async with transport as (read, write):
        yield _Watched(read, link), _Telling(write, link)


class _Wrapped:
    """A stream around another one, which it closes."""

    def __init__(self, stream: Any, link: Link) -> None:
        self._stream = stream
        self._link = link

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Watched(_Wrapped):
    """A read stream that notes its end, and puts aside what is broken in lists of tools."""

    @property
    def last_context(self) -> Any:
        """The context that the message was sent in, if the stream knows it; the MCP SDK asks."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._link.end()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._answered(item.message)
        return item

    def _answered(self, answer: JSONRPCResponse | JSONRPCError) -> None:
        link, request = self._link, str(answer.id)
        if request not in link.listings:
            return
        link.listings.discard(request)
        if isinstance(answer, JSONRPCResponse) and link.protocol_version is not None:
            put_aside(answer.result, link.protocol_version)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Telling(_Wrapped):
    """A write stream that notes requests; they are sent in the context of their caller."""

    async def send(self, item: SessionMessage) -> None:
        exchange = current_exchange()
        if isinstance(item.message, JSONRPCRequest):
            if exchange is not None:
                exchange.sent(item.message.method, str(item.message.id))
            if item.message.method == "tools/list":
                self._link.listings.add(str(item.message.id))
        await self._stream.send(item)


@asynccontextmanager
async def _http(url: str, headers: Mapping[str, str] | None, link: Link) -> AsyncIterator[Any]:
    async def note(response: httpx2.Response) -> None:
        link.http_version = response.http_version.removeprefix("HTTP/")
        link.session_id = response.headers.get(SESSION_HEADER) or link.session_id
        exchange = current_exchange()
        if exchange is not None and response.request.method == "POST":
            await exchange.answered(response)

    timeout = httpx2.Timeout(CONNECT_PATIENCE, read=READ_PATIENCE)
    hooks = {"response": [note]}
    async with (
        httpx2.AsyncClient(headers=dict(headers or {}), timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


@asynccontextmanager
async def _process(parameters: StdioServerParameters, errlog: TextIO | None, link: Link) -> AsyncIterator[Any]:
    if errlog is not None:
        async with stdio_client(parameters, errlog=errlog) as streams:
            yield streams
        return
    source, sink = os.pipe()
    listener = threading.Thread(target=_listen, args=(source, parameters.command, link), name="mcp-stderr", daemon=True)
    listener.start()
    # The process has its own copy of the sink; while ours is open, the listener would never see the end.
    ours = os.fdopen(sink, "w")
    try:
        async with stdio_client(parameters, errlog=ours) as streams:
            ours.close()
            yield streams
    finally:
        ours.close()
        # What a process says last is said when it dies. Its children may hold the pipe for longer than we care to wait.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(listener.join, 0.5)


def _listen(source: int, command: str, link: Link) -> None:
    """Read a server's standard error to its end, in a thread."""
    with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(_LONGEST_LINE):
            said = clean(line.rstrip())
            link.words.append(said)
            _log.debug("%s: %s", command, said)
