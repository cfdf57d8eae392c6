"""Delay of an awaitable by its event loop: how much later than possible it was resumed, at most."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from anyio.lowlevel import EventLoopToken

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
    """Awaitable that awaits another one, and measures by how much the event loop delayed it.

    An event loop does not say since when a task could have been resumed. It is not longer than the last turns of the
    loop took. They are observed from each suspension on, for as long as the loop is busy.

    Args:
        awaited: The awaitable.
        token: Token of the event loop that it is awaited in.

    Attributes:
        delay: Seconds by which the awaitable was delayed, at most.
    """

    __slots__ = ("_awaited", "_turns", "delay")

    def __init__(self, awaited: Awaitable[_T], token: EventLoopToken) -> None:
        self.delay = 0.0
        self._awaited = awaited
        self._turns = _turns(token)

    def __await__(self) -> Generator[Any, Any, _T]:
        turns, awaited, value, error = self._turns, self._awaited, None, None
        coroutine = awaited if isinstance(awaited, CoroutineType) else _await(awaited)
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


async def _await(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


class _Turns:
    """Latest turns of an event loop, observed by a callback in each turn until the loop is idle."""

    __slots__ = ("_idle", "_is_observing", "_loop", "_starts")

    def __init__(self, loop: Any) -> None:
        self._loop = ref(loop)  # the key of this object
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
            loop: Any = self._loop()
            call_soon: Callable[..., object] = getattr(loop, "call_soon", None) or loop.run_sync_soon
            call_soon(self._note, call_soon)
        return now

    def delay(self, suspended: float) -> float:
        """Return the seconds since the suspension that the event loop was late at most; 0 if it is idle."""
        return time.perf_counter() - max(suspended, self._starts[0]) if self._is_observing else 0.0

    def _note(self, call_soon: Callable[..., object]) -> None:
        """Note the start of a turn."""
        now = time.perf_counter()
        self._idle = self._idle + 1 if now - self._starts[-1] < SHORT else 0
        self._starts.append(now)
        self._is_observing = self._idle < IDLE
        if self._is_observing:
            call_soon(self._note, call_soon)


_known: Final[WeakKeyDictionary[Any, _Turns]] = WeakKeyDictionary()


def _turns(token: EventLoopToken) -> _Turns:
    """Return the turns of an event loop."""
    loop: Any = token.native_token
    turns = _known.get(loop)
    if turns is None:
        turns = _known[loop] = _Turns(loop)
    return turns
