"""Delay of a coroutine by its event loop: how much later than possible it was resumed, at most."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

from anyio.lowlevel import RunVar, current_token

_T = TypeVar("_T")

TURNS: Final = 4
"""Turns of the event loop that pass at most between the arrival of data and the step of the task that waits for them:
the rest of the turn in which they arrive, the one that reads them, and one each for a task of the client that waits for
them and for the task that awaits the client. Opening a connection may take more."""

SHORT: Final = 0.001
"""Seconds of a turn in which the event loop is not busy."""

IDLE: Final = 2
"""Short turns in a row after which the event loop is idle."""


class Delayed(Generic[_T]):
    """Awaitable that awaits a coroutine, and measures by how much the event loop delayed it.

    An event loop does not say since when a task could have been resumed. It is not longer than the last turns of the
    loop took. They are observed from each suspension on, for as long as the loop is busy.

    Attributes:
        delay: Seconds by which the coroutine was delayed, at most.
    """

    __slots__ = ("_coroutine", "delay")

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self.delay = 0.0
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, _T]:
        turns = _turns()
        coroutine, value, error = self._coroutine, None, None
        while True:
            try:
                suspension = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            suspended = turns.observe()
            value = error = None
            try:
                value = yield suspension
            except BaseException as raised:  # noqa: BLE001  (passed on to the coroutine)
                error = raised
            self.delay += turns.delay(suspended)


class _Turns:
    """Latest turns of an event loop, observed by a callback in each turn until the loop is idle."""

    __slots__ = ("_idle", "_is_observing", "_loop", "_starts")

    def __init__(self, loop: Any) -> None:
        self._loop = weakref.ref(loop)  # which keeps this object
        self._starts: deque[float] = deque(maxlen=TURNS)
        self._is_observing = False
        self._idle = 0

    def observe(self) -> float:
        """Observe the turns from now on, and return the time."""
        now = time.perf_counter()
        self._idle = 0
        if not self._is_observing:
            self._is_observing = True
            self._starts.clear()
            self._starts.append(now)
            self._schedule()
        return now

    def delay(self, suspended: float) -> float:
        """Return the seconds since the suspension that the event loop was late at most; 0 if it is idle."""
        return time.perf_counter() - max(suspended, self._starts[0]) if self._is_observing else 0.0

    def _schedule(self) -> None:
        loop: Any = self._loop()
        (getattr(loop, "call_soon", None) or loop.run_sync_soon)(self._note)

    def _note(self) -> None:
        """Note the start of a turn."""
        now = time.perf_counter()
        self._idle = self._idle + 1 if now - self._starts[-1] < SHORT else 0
        self._starts.append(now)
        self._is_observing = self._idle < IDLE
        if self._is_observing:
            self._schedule()


_known: Final[RunVar[_Turns]] = RunVar("pellucid_turns")


def _turns() -> _Turns:
    """Return the turns of the running event loop."""
    turns = _known.get(None)
    if turns is None:
        turns = _Turns(current_token().native_token)
        _known.set(turns)
    return turns
