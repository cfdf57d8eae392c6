"""Transports to the different kinds of servers, and their observable state."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TextIO, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.mcp.credentials import Credentials, is_of_auth
from pellucid.mcp.exchange import LISTING, SESSION_HEADER, Exchange, current_exchange, meter
from pellucid.mcp.invalid_tools import remove_invalid
from pellucid.mcp.link import Link
from pellucid.mcp.stdio import open_process
from pellucid.response_limits import limiting_hooks
from pellucid.text import clean, shown_url

CONNECT_TIMEOUT: Final = 30.0
READ_TIMEOUT: Final = 300.0
"""HTTP timeouts in seconds: the defaults of the MCP SDK. A server may keep a response stream open."""

_MAX_LINE: Final = 1_000
"""Longest line of a server's standard error, in characters; a longer one is split."""

_log = logging.getLogger("pellucid.mcp")

Reachable: TypeAlias = "Server[Any] | MCPServer | Transport"
"""A server or transport that `mcp.Client` connects to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how to reach it.

    Attributes:
        kind: Value of `pellucid.provider.kind`.
        reach: Returns the server or transport for `mcp.Client`; called for each connection, with whom it is for.
        transport: Value of `network.transport`.
        protocol: Value of `network.protocol.name`.
        address: The host, for HTTP.
        port: The port, for HTTP.
        pushes: Whether change notifications are certain to arrive with protocols before 2026-07-28. Over HTTP they need
            a stream that such servers may refuse and that the MCP SDK then abandons silently.
        credentials: Credentials of requests, for HTTP.
        holder: Whom they depend on, if they do.
    """

    kind: str
    reach: Callable[[Link, Identity | None], Reachable]
    transport: str | None = None
    protocol: str | None = None
    address: str | None = None
    port: int | None = None
    pushes: bool = True
    credentials: Credentials | None = None
    holder: Identity | None = None

    @property
    def by_identity(self) -> bool:
        """True if each identity has sessions of its own."""
        return self.credentials is not None and self.credentials.by_identity

    @property
    def idle_timeout(self) -> float:
        """Seconds without requests after which a connection is closed."""
        return self.credentials.idle_timeout if self.credentials is not None and self.by_identity else math.inf

    @property
    def title(self) -> str:
        """The server in error messages."""
        if self.credentials is None:
            return "the MCP server"
        origin = "/".join(shown_url(self.credentials.url).split("/", 3)[:3])  # a path may be secret, too
        return f"the MCP server at {origin}"

    def holder_of(self, identity: Identity | None) -> Identity | None:
        """Return whom the requests of an identity depend on."""
        return self.credentials.holder(identity) if self.credentials is not None else None

    async def prepare(self, exchange: Exchange) -> None:
        """Ask for the headers of a request.

        Raises:
            HeadersFailed: the application's function failed.
        """
        if self.credentials is not None and callable(self.credentials.headers):
            exchange.headers = await self.credentials.headers_for(self.holder)

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """Span attributes of requests, as far as they are known without a connection."""
        attributes: dict[str, AttributeValue | None] = {
            semconv.NETWORK_TRANSPORT: self.transport,
            semconv.NETWORK_PROTOCOL_NAME: self.protocol,
            semconv.SERVER_ADDRESS: self.address,
            semconv.SERVER_PORT: self.port,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def in_process(server: Server[Any] | MCPServer) -> Target:
    """Return a target for a server object in this process; it needs no transport."""
    return Target(kind="mcp.memory", reach=lambda _link, _holder: server)


def over_stdio(parameters: StdioServerParameters, errlog: TextIO | None) -> Target:
    """Return a target that starts a server process and uses its standard input and output."""

    def reach(link: Link, _holder: Identity | None) -> Transport:
        return _observed(_process(parameters, errlog, link), link)

    return Target(kind="mcp.stdio", reach=reach, transport="pipe")


def over_http(credentials: Credentials) -> Target:
    """Return a target for streamable HTTP.

    Raises:
        ConfigError: the URL is not an http or https URL.
    """
    url = credentials.url
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} is not the URL of an MCP server: it must start with http:// or https://")

    def reach(link: Link, holder: Identity | None) -> Transport:
        return _observed(_http(credentials, holder, link), link)

    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Target(
        kind="mcp.http",
        reach=reach,
        transport="tcp",
        protocol="http",
        address=parts.hostname,
        port=port,
        pushes=False,
        credentials=credentials,
    )


def over_transport(make: Callable[[], Transport]) -> Target:
    """Return a target for the application's own transports."""
    return Target(kind="custom", reach=lambda link, _holder: _observed(make(), link))


def once(transport: Transport) -> Callable[[], Transport]:
    """Return a factory that returns a transport once, because a transport can be entered only once.

    The factory raises `ConfigError` when it is called again.
    """
    unused = [transport]

    def make() -> Transport:
        if not unused:
            raise ConfigError("the transport cannot be opened again; pass a function that returns a new one")
        return unused.pop()

    return make


@asynccontextmanager
async def _observed(transport: Transport, link: Link) -> AsyncIterator[Any]:
    async with transport as (read, write):
        yield _ObservedReader(read, link), _ObservedWriter(write, link)


class _Wrapped:
    """A wrapper of a stream, which it closes."""

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


class _ObservedReader(_Wrapped):
    """A read stream that records its end, and removes invalid tools from tool lists."""

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, if the stream knows it; read by the MCP SDK."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._link.end()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse | JSONRPCError):
            await self._remove_invalid_tools(item.message)
        return item

    async def _remove_invalid_tools(self, response: JSONRPCResponse | JSONRPCError) -> None:
        link, request = self._link, str(response.id)
        if request not in link.listings:
            return
        del link.listings[request]
        if isinstance(response, JSONRPCResponse) and link.protocol_version is not None:
            await remove_invalid(response.result, link.protocol_version)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _ObservedWriter(_Wrapped):
    """A write stream that records requests, which are sent in the context of their caller."""

    async def send(self, item: SessionMessage) -> None:
        exchange = current_exchange()
        if isinstance(item.message, JSONRPCRequest):
            if exchange is not None:
                exchange.record_request(item.message.method, str(item.message.id))
            if item.message.method == LISTING:
                self._link.listings[str(item.message.id)] = exchange
        await self._stream.send(item)


@asynccontextmanager
async def _http(credentials: Credentials, holder: Identity | None, link: Link) -> AsyncIterator[Any]:
    latest = await credentials.headers_for(holder)

    async def add_headers(request: httpx2.Request) -> None:
        nonlocal latest
        exchange = current_exchange()
        if exchange is not None and exchange.headers is not None:
            latest = exchange.headers  # also for requests that no caller sends
        if not is_of_auth(request):
            own = {name: value for name, value in latest.items() if name not in credentials.taken}
            request.headers.update(own)

    async def record(response: httpx2.Response) -> None:
        link.http_version = response.http_version.removeprefix("HTTP/")
        link.session_id = response.headers.get(SESSION_HEADER) or link.session_id
        exchange = current_exchange()
        if exchange is not None and response.request.method == "POST" and not is_of_auth(response.request):
            await exchange.record_response(response)

    timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=READ_TIMEOUT)
    hooks = limiting_hooks(lambda response: meter(response, link.limits))
    hooks["response"].append(record)
    hooks["request"].append(add_headers)
    async with (
        httpx2.AsyncClient(
            headers=credentials.static_headers, auth=credentials.client_auth(holder), timeout=timeout, event_hooks=hooks
        ) as client,
        # Events have a limit already, which the server's operator can raise.
        streamable_http_client(credentials.url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


@asynccontextmanager
async def _process(parameters: StdioServerParameters, errlog: TextIO | None, link: Link) -> AsyncIterator[Any]:
    if errlog is not None:
        async with open_process(parameters, errlog, link) as streams:
            yield streams
        return
    source, sink = os.pipe()
    reader = threading.Thread(
        target=_read_stderr, args=(source, parameters.command, link), name="mcp-stderr", daemon=True
    )
    reader.start()
    # The process has its own copy of the sink. While this one is open, the reader never sees the end.
    stderr = os.fdopen(sink, "w")
    try:
        async with open_process(parameters, stderr, link) as streams:
            stderr.close()
            yield streams
    finally:
        stderr.close()
        # A process writes its last lines when it exits. Bounded, because its children may keep the pipe open.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(reader.join, 0.5)


def _read_stderr(source: int, command: str, link: Link) -> None:
    """Read a server's standard error to its end; runs in a thread."""
    with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(_MAX_LINE):
            text = clean(line.rstrip())
            link.stderr.append(text)
            _log.debug("%s: %s", command, text)
