"""End of long requests when the server shuts down."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.tasks import call_soon

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import Scope

SHUTDOWN: Final = "the server shuts down"
"""Reason with which runs and requests are cancelled then."""

_STATE: Final = "pellucid_draining"
"""Attribute of the state of an application."""


class Draining:
    """Requests that wait for a run, and end early when the server shuts down.

    Attributes:
        is_active: Whether the server is shutting down.
    """

    def __init__(self) -> None:
        self.is_active = False
        self._scopes: set[anyio.CancelScope] = set()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run a block that `start` interrupts; check `is_active` after it."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if self.is_active:
                    scope.cancel()
                yield
            finally:
                self._scopes.discard(scope)

    def start(self) -> None:
        """Interrupt all waits, and those that start from now on. Call it in the event loop of the server."""
        self.is_active = True
        for scope in self._scopes:
            scope.cancel()


def draining_of(scope: Scope) -> Draining:
    """Return what `drain_at_signals` starts for the application of a request; a new one that nobody starts without."""
    return getattr(getattr(scope.get("app"), "state", None), _STATE, None) or Draining()


@contextmanager
def drain_at_signals(app: Starlette) -> Iterator[None]:
    """End long requests of an application at SIGTERM and SIGINT, for servers such as uvicorn.

    They wait for open streams before they end the lifespan of an application. Enter it in that lifespan; the handlers
    of the server are called as before. In a thread other than the main one, such as that of a test client, there are no
    signals, and it does nothing.

    Args:
        app: An application of this package, or one whose endpoints use `EventStreamResponse` and
            `cancel_on_disconnect`.
    """
    if not hasattr(app.state, "drain"):  # those of this package have one
        setattr(app.state, _STATE, draining := Draining())
        drain = draining.start
    else:
        drain = app.state.drain
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    token = current_token()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: Any) -> None:
        call_soon(token, drain)
        handler: Callable[[int, Any], Any] | int | None = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
