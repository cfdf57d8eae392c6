"""The HTTP server of the commands that serve: uvicorn without handlers of signals, and with patience that ends."""

from __future__ import annotations

import logging
import signal
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.types import ASGIApp

HEADERS_TIMEOUT: Final = 10.0
"""Seconds in which the headers of a request must arrive."""
READ_TIMEOUT: Final = 60.0
"""Seconds for which a client may leave an answer unread when the buffers are full."""
SHUTDOWN: Final = 5
"""Seconds that open requests and streams get at the end."""


async def listen(
    app: ASGIApp,
    host: str,
    port: int,
    on_stop: Callable[[], None] | None = None,
    at_end: Callable[[], Awaitable[object]] | None = None,
    sockets: list[socket.socket] | None = None,
    **options: Any,
) -> bool:
    """Serve until SIGTERM or SIGINT, and finish open requests; a second signal ends them.

    Return False if the server could not listen.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port.
        on_stop: Called at each signal.
        at_end: Awaited when nothing is served any longer, while signals are still for `on_stop`.
        sockets: Sockets that listen already, instead of on an address and a port.
        **options: Further ones of `uvicorn.Config`.
    """
    logging.getLogger("uvicorn.access").addFilter(hide_query)
    config = uvicorn.Config(
        app, host, port, http=Protocol, server_header=False, timeout_graceful_shutdown=SHUTDOWN, **options
    )
    server = Server(config)
    async with anyio.create_task_group() as tasks:

        async def stop_at_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    server.force_exit = server.should_exit  # at the second signal
                    server.should_exit = True
                    if on_stop is not None:
                        on_stop()

        tasks.start_soon(stop_at_signal)
        with suppress(SystemExit):  # after an error, which uvicorn has logged
            await server.serve(sockets)
        if at_end is not None and server.started:
            await at_end()
        tasks.cancel_scope.cancel()
    return server.started


class Server(uvicorn.Server):
    """Server that installs no handlers of signals: uvicorn's end the process before its runs are given back."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command."""
        yield


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose headers do not arrive, or whose answer is not read, in time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers = _Timer(self.loop)
        self._reading = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for headers."""
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Wait on, unless the headers are complete."""
        super().data_received(data)
        self._watch_headers()

    def pause_writing(self) -> None:
        """Start to wait for the client to read: the buffers are full."""
        super().pause_writing()
        self._reading.start(READ_TIMEOUT, self._reset)

    def resume_writing(self) -> None:
        """Stop waiting for the client."""
        super().resume_writing()
        self._reading.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._headers.stop()
        self._reading.stop()
        super().connection_lost(exc)

    def _reset(self) -> None:
        """Close the connection and drop the data that the client does not take; the system would keep it."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _watch_headers(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._headers.start(HEADERS_TIMEOUT, self.transport.close)
        else:
            self._headers.stop()


class _Timer:
    """A call after some seconds, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, call: Callable[[], None]) -> None:
        """Start, unless it has been started."""
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, call)

    def stop(self) -> None:
        """Stop."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def hide_query(record: logging.LogRecord) -> bool:
    """Remove the query from a line of the access log: clients may put secrets there."""
    if isinstance(record.args, tuple):
        record.args = tuple(_without_query(value) for value in record.args)
    return True


def _without_query(value: Any) -> Any:
    return value.partition("?")[0] if isinstance(value, str) else value
