"""One fetch under way, which any number of callers in any event loop wait for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Generic, TypeVar

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from opentelemetry.trace import SpanContext

from pellucid.concurrency.race import OutOfTime
from pellucid.concurrency.tasks import call_soon, is_running, spawn
from pellucid.failures import contained, interrupt_in

T = TypeVar("T")

LOOK: Final = 0.25
"""Seconds after which those who wait in another event loop look whether that of the fetch still runs."""


class Abandoned(Exception):
    """A fetch was cancelled because nobody waited for it any longer, or because its event loop ended."""


class Flight(Generic[T]):
    """Runs a fetch in a task of its own and lets callers wait for it, each with its own cancellation.

    Whoever is cancelled leaves at once and the others get the result. When the last one leaves, the fetch is cancelled,
    unless it is `held`. After `timeout` seconds it is over for all, whatever the fetch does then.

    Attributes:
        span: Where the fetch is traced; those who join link to it.
        is_outdated: Whether what it fetches has changed meanwhile; set by whoever knows.
        error: What the fetch raised, once it is settled; `OutOfTime` and `Abandoned` are not the hub's.
    """

    __slots__ = (
        "_deadline",
        "_done",
        "_held",
        "_lock",
        "_loop",
        "_result",
        "_scope",
        "_settled",
        "_waiters",
        "error",
        "is_outdated",
        "span",
    )

    def __init__(
        self, *, span: SpanContext, timeout: float | None, held: bool, settled: Callable[[Flight[T]], None]
    ) -> None:
        self.span = span
        self.error: BaseException | None = None
        self.is_outdated = False
        self._result: list[T] = []
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._held = held
        self._settled = settled
        self._lock = threading.RLock()  # what a garbage collection in here ends may lead here again
        self._done = False
        self._waiters: dict[object, Callable[[], None]] = {}
        self._scope = anyio.CancelScope()
        self._loop: EventLoopToken = current_token()

    @property
    def result(self) -> T:
        """What the fetch returned. Only after it was settled without an error."""
        return self._result[0]

    @property
    def abandoned(self) -> bool:
        """Whether the fetch was cancelled for a reason that says nothing of the hub."""
        return isinstance(self.error, Abandoned)

    @property
    def is_orphaned(self) -> bool:
        """Whether nothing will come of it, because its event loop was stopped without ending its tasks."""
        return not is_running(self._loop)

    def start(self, fetch: Callable[[], Awaitable[T]]) -> None:
        """Begin the fetch."""
        spawn(self._run, fetch)

    async def wait(self) -> None:
        """Wait until the fetch is settled.

        Raises:
            KeyboardInterrupt: the fetch raised it.
        """
        await self._wait()
        if isinstance(self.error, KeyboardInterrupt):
            raise KeyboardInterrupt from self.error

    async def _wait(self) -> None:
        event, key, loop = anyio.Event(), object(), current_token()
        with self._lock:
            if self._done:
                return
            self._waiters[key] = partial(call_soon, loop, event.set)
        is_elsewhere = loop.native_token is not self._loop.native_token
        try:
            while (left := self._left()) > 0:
                if is_elsewhere and self.is_orphaned:
                    self.cancel(Abandoned())
                    return
                with anyio.move_on_after(min(left, LOOK) if is_elsewhere else left):
                    await event.wait()
                    return
        except BaseException:
            self._leave(key)
            raise
        self.cancel(OutOfTime())

    def cancel(self, error: Exception) -> None:
        """Cancel the fetch; whoever waits gets `error`."""
        self._settle(error=error)
        call_soon(self._loop, self._scope.cancel)

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _leave(self, key: object) -> None:
        with self._lock:
            self._waiters.pop(key, None)
            nobody = not self._waiters and not self._held and not self._done
        if nobody:
            self.cancel(Abandoned())

    async def _run(self, fetch: Callable[[], Awaitable[T]]) -> None:
        try:
            with self._scope, anyio.move_on_after(self._left()):
                self._settle(result=await fetch())
            self._settle(error=OutOfTime())
        except BaseException as error:  # noqa: BLE001  (handed over to those who wait)
            interrupt = interrupt_in(error)
            if not self._settle(error=interrupt or contained(error)) and interrupt is not None:
                raise interrupt from None  # nobody waits who could raise it
        finally:
            self._settle(error=Abandoned())

    def _settle(self, *, result: T | None = None, error: BaseException | None = None) -> bool:
        """Wake everybody; only the first call counts. Return whether anybody waited."""
        with self._lock:
            if self._done:
                return False
            self._done = True
            self.error = error
            if error is None:
                self._result.append(result)  # type: ignore[arg-type]  # None only with an error
            waiters = list(self._waiters.values())
        try:
            self._settled(self)
        finally:
            for wake in waiters:
                wake()
        return bool(waiters)
