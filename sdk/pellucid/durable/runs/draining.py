"""The end of a worker: it claims nothing more, and its passes get some time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from pellucid.errors import JournalError
from pellucid.models import ModelDelta
from pellucid.run.journal import LiveText


class PassReleased(Exception):
    """A pass has ended between two steps, for another worker to continue."""


class Draining:
    """State of a worker that is to end. Its times are those of the event loop.

    Attributes:
        until: When what still runs is given back.
        models_until: When the last model call may begin.
    """

    def __init__(self) -> None:
        self.until = self.models_until = math.inf
        self._claiming: set[anyio.CancelScope] = set()
        self._ending: set[anyio.CancelScope] = set()

    @property
    def is_active(self) -> bool:
        """True if the worker claims no more runs."""
        return self.until < math.inf

    def begin(self, timeout: float) -> None:
        """Claim nothing more; give passes this many seconds, or fewer than before."""
        now = anyio.current_time()
        self.until = min(self.until, now + timeout)
        self.models_until = min(self.models_until, now + timeout / 2)
        for scope in self._claiming:
            scope.cancel()
        for scope in self._ending:
            scope.deadline = self.until

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Run a block that ends when the worker is to end."""
        with anyio.CancelScope() as scope, _in(self._claiming, scope):
            if self.is_active:
                scope.cancel()
            yield

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Run a block in which passes end, for as long as they may."""
        with anyio.CancelScope(deadline=self.until) as scope, _in(self._ending, scope):
            yield

    def gate(self, live: LiveText | None) -> LiveText:
        """Return what a pass asks before each model call."""
        return _Gate(self, live)


@contextmanager
def _in(scopes: set[anyio.CancelScope], scope: anyio.CancelScope) -> Iterator[None]:
    scopes.add(scope)
    try:
        yield
    finally:
        scopes.discard(scope)


class _Gate:
    """Ends a pass before a model call that may no longer begin: what is done by then is in the journal."""

    def __init__(self, draining: Draining, live: LiveText | None) -> None:
        self._draining = draining
        self._live = live

    def is_wanted(self) -> bool:
        """Return whether the next answer is to be streamed.

        Raises:
            JournalError: no model call may begin.
        """
        if self._draining.is_active and anyio.current_time() >= self._draining.models_until:
            raise JournalError("model call", is_fenced=False) from PassReleased()
        return self._live is not None and self._live.is_wanted()

    def sender(self, iteration: int, attempt: int, *, is_closing: bool) -> Callable[[ModelDelta], None]:
        """Return the function that sends the pieces of one attempt to answer."""
        assert self._live is not None  # it is wanted
        return self._live.sender(iteration, attempt, is_closing=is_closing)
