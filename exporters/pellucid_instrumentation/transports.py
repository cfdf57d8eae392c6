"""Transports to MCP servers: which session leads to which server, and how long it takes to connect."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, Final, TypeAlias

from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.telemetry import HubRequest, Scope, shared_scope
from pellucid_instrumentation.failures import error_type_of
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.hubs import Endpoint, ObservedHub
from pellucid_instrumentation.names import http, stdio
from pellucid_instrumentation.patches import Patches

MOST_STREAMS: Final = 10_000
"""Maximum number of streams, so that transports that are abandoned do not fill the memory."""

UNKNOWN: Final = Endpoint(kind="custom")
"""Endpoint of a session over a transport that is not one of the MCP SDK's."""

Locate: TypeAlias = Callable[[Endpoint], tuple[Endpoint, ObservedHub]]
"""Returns an endpoint with its name, and its hub."""


class Connecting:
    """Time from the opening of a transport to the end of the handshake, of one connection.

    If it fails, or is cancelled while it waits for the server, it is a request to the hub without a listing.
    """

    def __init__(self, link: Link) -> None:
        self._scope: Scope = shared_scope()
        self._link = link
        self._start = self._scope.now()
        self._request = HubRequest(self._scope, link.id, link.endpoint.kind, link.hub.objective)
        self._request.pause()
        self.error: BaseException | None = None
        self.is_over = False

    def end(self, error: BaseException | None = None) -> None:
        """Record the duration, once."""
        if self.is_over:
            return
        self.is_over = True
        labels: dict[str, AttributeValue] = {
            semconv.PROVIDER_ID: self._link.id,
            semconv.PROVIDER_KIND: self._link.endpoint.kind,
        }
        if error is not None:
            labels[semconv.ERROR_TYPE] = error_type_of(error)
        self._scope.measure(semconv.MCP_CONNECT_DURATION, self._start, labels)
        if error is None:
            self._request.discard()
        self._request.end(error)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as in flight."""
        self._request.sent_again()
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._request.end(is_abandoned=True)
            raise
        finally:
            self._request.pause()

    def abandon(self) -> None:
        """Record a connection that was closed before the end of the handshake, with its last error if it had one."""
        if self.error is not None:
            self.end(self.error)
        self._request.discard()
        self.is_over = True


class Link:
    """One connection to a server.

    Attributes:
        endpoint: The server.
        hub: Its hub.
        id: Value of `pellucid.provider.id`.
        connecting: The opening of the connection.
        attributes: Span attributes of requests, as known without the handshake.
    """

    def __init__(self, endpoint: Endpoint, hub: ObservedHub) -> None:
        self.endpoint = endpoint
        self.hub = hub
        self.id = hub.id or endpoint.default_id
        self.connecting: Connecting | None = None
        attributes: dict[str, AttributeValue | None] = {
            semconv.NETWORK_TRANSPORT: {"mcp.stdio": "pipe", "mcp.http": "tcp"}.get(endpoint.kind),
            semconv.NETWORK_PROTOCOL_NAME: "http" if endpoint.kind == "mcp.http" else None,
            semconv.SERVER_ADDRESS: endpoint.address,
            semconv.SERVER_PORT: endpoint.port,
        }
        self.attributes: dict[str, AttributeValue] = {
            name: value for name, value in attributes.items() if value is not None
        }

    def connect(self) -> None:
        """Start to measure the opening of the connection, unless it is measured."""
        if self.connecting is None:
            self.connecting = Connecting(self)

    def waiting(self) -> AbstractContextManager[None]:
        """Count a step of the opening as in flight until the context exits; between steps, the hub is not awaited."""
        return self.connecting.waiting() if self.connecting is not None else nullcontext()

    def connected(self, error: BaseException | None = None) -> None:
        """Record the end of the handshake."""
        if self.connecting is not None:
            self.connecting.end(error)

    def refused(self, error: BaseException) -> None:
        """Note an error of the handshake, after which another way may be tried."""
        if self.connecting is not None:
            self.connecting.error = error

    def close(self) -> None:
        """End the measurement of a connection whose handshake has not ended."""
        if self.connecting is not None:
            self.connecting.abandon()


class Transports:
    """Open transports, by their streams."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._by_stream: BoundedMap[int, tuple[Any, Link]] = BoundedMap(MOST_STREAMS, by_use=False)

    def plan(self, patches: Patches) -> None:
        """Plan the patches of the functions that open transports."""

        def patch(name: str, describe: Describe) -> Callable[[ModuleType], None]:
            def apply(module: ModuleType) -> None:
                if (function := getattr(module, name, None)) is not None:
                    patches.generator_of(function, lambda original: self._observing(original, describe))

            return apply

        for module, name, describe in _TRANSPORTS:
            patches.plan(module, patch(name, describe))

    def link_of(self, session: Any) -> Link:
        """Return the connection of a session; a new one if its transport is unknown."""
        for holder in (session, getattr(session, "_dispatcher", None)):
            for name in ("_read_stream", "_write_stream"):
                known = self._by_stream.get(id(getattr(holder, name, None)))
                if known is not None:
                    return known[1]
        return Link(*self._locate(UNKNOWN))

    def add(self, streams: Any, link: Link) -> None:
        """Note the streams of a connection."""
        for stream in _flat(streams):
            self._by_stream.put(id(stream), (stream, link))

    def remove(self, streams: Any) -> None:
        """Forget the streams of a connection."""
        for stream in _flat(streams):
            self._by_stream.pop(id(stream))

    def _observing(self, original: Callable[..., Any], describe: Describe) -> Callable[..., Any]:
        def open_transport(*args: Any, **kwargs: Any) -> Any:
            generator = original(*args, **kwargs)
            if is_own():
                return generator
            link = guarded(lambda: Link(*self._locate(describe(*args, **kwargs))))
            return generator if link is None else _Observed(generator, link, self)

        return open_transport


Describe: TypeAlias = Callable[..., Endpoint]
"""Returns the endpoint of a transport, from the arguments of the function that opens it."""


class _Observed:
    """Generator of a transport, which the context manager of the MCP SDK starts and ends."""

    def __init__(self, generator: Any, link: Link, transports: Transports) -> None:
        self._generator = generator
        self._link = link
        self._transports = transports
        self._streams: Any = None

    def __aiter__(self) -> _Observed:
        return self

    async def __anext__(self) -> Any:
        if self._streams is not None:
            try:
                return await self._generator.__anext__()
            finally:
                self._close()
        guarded(self._link.connect)
        try:
            with self._link.waiting():
                self._streams = await self._generator.__anext__()
        except BaseException as error:
            guarded(self._link.connected, error)
            raise
        guarded(self._transports.add, self._streams, self._link)
        return self._streams

    async def athrow(self, *error: Any) -> Any:
        try:
            return await self._generator.athrow(*error)
        finally:
            self._close()

    async def aclose(self) -> None:
        try:
            await self._generator.aclose()
        finally:
            self._close()

    def _close(self) -> None:
        guarded(self._link.close)
        guarded(self._transports.remove, self._streams)


def is_own() -> bool:
    """Return whether the current context is that of Pellucid's own MCP provider, which observes itself."""
    exchange = sys.modules.get("pellucid.mcp.exchange")
    return exchange is not None and exchange.current_exchange() is not None


def _flat(streams: Any) -> Iterator[Any]:
    """Yield streams; an in-memory transport has those of client and server in pairs."""
    for stream in streams if isinstance(streams, tuple) else ():
        if isinstance(stream, tuple):
            yield from _flat(stream)
        else:
            yield stream


def _stdio(server: Any, *_args: Any, **_kwargs: Any) -> Endpoint:
    return stdio(server)


def _http(url: Any, *_args: Any, **_kwargs: Any) -> Endpoint:
    return http(url)


def _memory(*_args: Any, **_kwargs: Any) -> Endpoint:
    return Endpoint(kind="mcp.memory")


_TRANSPORTS: Final[tuple[tuple[str, str, Describe], ...]] = (
    ("mcp.client.stdio", "stdio_client", _stdio),
    ("mcp.client.streamable_http", "streamable_http_client", _http),
    ("mcp.client.sse", "sse_client", _http),
    ("mcp.client.websocket", "websocket_client", _http),
    ("mcp.shared.memory", "create_client_server_memory_streams", _memory),
)
