"""End of long requests when the server shuts down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


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
