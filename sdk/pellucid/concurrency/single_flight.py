"""One fetch in flight, shared by any number of callers in any event loop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Final, Generic, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from opentelemetry.trace import SpanContext

from pellucid.concurrency.race import ForeignCancellation, OutOfTime
from pellucid.concurrency.tasks import call_later, call_soon, is_cancelled, is_running, nothing, spawn
from pellucid.failures import contained, interrupt_in

T = TypeVar("T")
_Args = TypeVarTuple("_Args")

LIVENESS_INTERVAL: Final = 0.25
"""Seconds between two checks, by waiters in another event loop, that the event loop of the fetch still runs."""


class Abandoned(Exception):
    """A fetch was cancelled because it had no waiters left, or because its event loop ended."""


class Flight(Generic[T]):
    """A fetch in a task of its own, with any number of waiters, each with its own cancellation.

    A cancelled waiter returns at once and the others get the result. A fetch without waiters goes on until `linger`
    seconds after its start, unless it is `held`: from its start, or because it outlasted the patience of a waiter.
    After `timeout` seconds all waiters get `OutOfTime`, and the task is cancelled; one that does not stop is abandoned.

    Attributes:
        span: Span of the fetch; callers that join link to it.
        is_outdated: Whether the remote data changed during the fetch; set by the owner.
        outlasted: Whether it outlasted the patience of a waiter.
        has_lingered: Whether it was given up because it had no waiters and its time without them had passed.
        result: Result of the fetch, once it is settled without an error.
        error: Exception of the fetch, once it is settled; `OutOfTime` and `Abandoned` do not come from the hub.
    """

    result: T

    def __init__(
        self,
        *,
        span: SpanContext,
        timeout: float | None,
        held: bool,
        settled: Callable[[Flight[T]], None],
        linger: float = 0.0,
    ) -> None:
        self.span = span
        self.error: BaseException | None = None
        self.is_outdated = False
        self.outlasted = False
        self.has_lingered = False
        self._started = time.monotonic()
        self._deadline = self._limited_to = math.inf if timeout is None else self._started + timeout
        self._linger = min(self._deadline, self._started + linger)
        self._held = held
        self._settled = settled
        self._lock = threading.RLock()  # a destructor that garbage collection runs here may re-enter
        self._done = False
        self._waiters: dict[object, tuple[EventLoopToken, anyio.Event]] = {}
        self._loop: EventLoopToken = current_token()
        self._stop: Callable[[], object] = nothing
        self._stop_timer: Callable[[], object] = nothing
        self._timed_to = math.inf

    @property
    def abandoned(self) -> bool:
        """True if the fetch was cancelled for a reason that has nothing to do with the hub."""
        return isinstance(self.error, Abandoned)

    @property
    def is_settled(self) -> bool:
        """True if the fetch has ended."""
        return self._done

    @property
    def age(self) -> float:
        """Seconds since the fetch was started."""
        return time.monotonic() - self._started

    @property
    def is_orphaned(self) -> bool:
        """True if the fetch can never end, because its event loop was stopped without ending its tasks."""
        return not is_running(self._loop)

    def start(self, fetch: Callable[[*_Args], Awaitable[T]], *args: *_Args) -> None:
        """Start the fetch, in a copy of the caller's context."""
        self._apply_limit()
        self._stop = spawn(self._run, fetch, *args)

    async def wait(self, patience: float = math.inf) -> bool:
        """Wait until the fetch is settled, for at most `patience` seconds, and return whether it is settled.

        A fetch that outlasts the patience of a waiter is held from then on.

        Raises:
            KeyboardInterrupt: the fetch raised it.
        """
        event, key, loop = anyio.Event(), object(), current_token()
        until = time.monotonic() + patience
        is_elsewhere = loop.native_token is not self._loop.native_token
        with self._lock:
            if not self._done:
                self._waiters[key] = loop, event
                self._limit(self._deadline)
        try:
            while not self._done:
                remaining = self._deadline - time.monotonic()
                if is_elsewhere and (remaining <= 0 or self.is_orphaned):
                    self.cancel(Abandoned() if remaining > 0 else OutOfTime())
                    break
                if (left := until - time.monotonic()) <= 0 and self._hold(key):
                    return False
                if is_elsewhere:
                    left = min(left, remaining, LIVENESS_INTERVAL)
                with anyio.move_on_after(left) if left < math.inf else nullcontext():
                    await event.wait()
        except BaseException:
            self._remove_waiter(key)
            raise
        if isinstance(self.error, KeyboardInterrupt):
            raise KeyboardInterrupt from self.error
        return True

    def cancel(self, error: Exception) -> None:
        """Cancel the fetch; all waiters get `error`."""
        self._settle(error=error)
        call_soon(self._loop, lambda: self._stop())  # noqa: PLW0108  (the one that `start` has set by then)

    def _hold(self, key: object) -> bool:
        """Remove a waiter and continue without it, unless the fetch has just been settled."""
        with self._lock:
            if not self._done:
                self._held = self.outlasted = True
                self._waiters.pop(key, None)
            return not self._done

    def _remove_waiter(self, key: object) -> None:
        with self._lock:
            self._waiters.pop(key, None)
            if self._waiters or self._held or self._done:
                return
            lingers = time.monotonic() < self._linger
            if lingers:
                self._limit(self._linger)
        if not lingers:
            self.has_lingered = True
            self.cancel(Abandoned())

    def _limit(self, deadline: float) -> None:
        """Set the time, on the monotonic clock, at which the fetch ends. Call with the lock held."""
        if deadline != self._limited_to:
            self._limited_to = deadline
            call_soon(self._loop, self._apply_limit)

    def _apply_limit(self) -> None:
        """Set the timer, which has the clock of the event loop; call in this event loop."""
        self._stop_timer()
        self._timed_to = self._limited_to
        if self._timed_to < math.inf and not self._done:
            left = max(0.0, self._timed_to - time.monotonic())
            self._stop_timer = call_later(self._loop, left, self._end_time)

    def _end_time(self) -> None:
        """Settle the fetch, because its time is over."""
        with self._lock:
            if self._timed_to != self._limited_to:
                return  # it has just changed, and another timer will be set
            self.has_lingered = self._limited_to != self._deadline
        self._settle(error=Abandoned() if self.has_lingered else OutOfTime(), is_here=True)
        self._stop()

    async def _run(self, fetch: Callable[[*_Args], Awaitable[T]], *args: *_Args) -> None:
        try:
            self._settle(result=await fetch(*args), is_here=True)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  (passed on to the waiters)
            failure = await self._failure(error)
            if not self._settle(error=failure, is_here=True) and isinstance(failure, KeyboardInterrupt):
                raise failure from None  # there is no waiter to raise it
        finally:
            self._settle(error=Abandoned())
            self._stop_timer()

    async def _failure(self, error: BaseException) -> BaseException:
        """Return the error for the waiters; raise the one that ends the task itself."""
        try:
            return interrupt_in(error) or contained(error)
        except BaseException as cancellation:
            if self._done or await is_cancelled():
                raise
            failure = ForeignCancellation()
            failure.__cause__ = cancellation
            return failure

    def _settle(self, *, result: T | None = None, error: BaseException | None = None, is_here: bool = False) -> bool:
        """Set the outcome and wake all waiters; only the first call counts. Return whether there were waiters.

        With `is_here`, the caller runs in the event loop of the fetch, and need not schedule what wakes its waiters.
        """
        with self._lock:
            if self._done:
                return False
            self._done = True
            self.error = error
            if error is None:
                self.result = result  # type: ignore[assignment]  # None only with an error
            waiters = list(self._waiters.values())
        try:
            self._settled(self)
        finally:
            for loop, event in waiters:
                if is_here and loop.native_token is self._loop.native_token:
                    event.set()
                else:
                    call_soon(loop, event.set)
        return bool(waiters)
