"""The HTTP server of `pellucid serve`: uvicorn without handlers of signals, and with patience that ends."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

HEADERS_TIMEOUT: Final = 10.0
"""Seconds in which the headers of a request must arrive."""


class Server(uvicorn.Server):
    """Server that installs no handlers of signals: uvicorn's end the process before its runs are given back."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command."""
        yield


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose headers do not arrive in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for headers."""
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Wait on, unless the headers are complete."""
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _watch_headers(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADERS_TIMEOUT, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def hide_query(record: logging.LogRecord) -> bool:
    """Remove the query from a line of the access log: clients may put secrets there."""
    if isinstance(record.args, tuple):
        record.args = tuple(_without_query(value) for value in record.args)
    return True


def _without_query(value: Any) -> Any:
    return value.partition("?")[0] if isinstance(value, str) else value
