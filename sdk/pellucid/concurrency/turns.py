"""Delay of a coroutine by its event loop: how much later than possible it was resumed, at most."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

from anyio.lowlevel import current_token

_T = TypeVar("_T")

TURNS: Final = 3
"""Turns of the event loop that pass at most between the arrival of data and the step of the task that waits for them:
the rest of the turn in which they arrive, the turn that reads them, and the turn that resumes the task."""


class Delayed(Generic[_T]):
    """Awaitable that awaits a coroutine, and measures by how much the event loop delayed it.

    The event loop says nothing about when a task could have been resumed. So at each suspension the length of a turn is
    measured, by a callback that runs after everything that is ready. A turn takes microseconds in an idle process.

    Attributes:
        delay: Seconds by which the coroutine was delayed, at most.
    """

    __slots__ = ("_coroutine", "delay")

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self.delay = 0.0
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, _T]:
        loop: Any = current_token().native_token
        coroutine, value, error = self._coroutine, None, None
        while True:
            try:
                suspension = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            turn = _Turn(loop)
            value = error = None
            try:
                value = yield suspension
            except BaseException as raised:  # noqa: BLE001  (passed on to the coroutine)
                error = raised
            self.delay += turn.delay()


class _Turn:
    """Length of the turn of an event loop that begins with a suspension."""

    __slots__ = ("_end", "_start")

    def __init__(self, loop: Any) -> None:
        self._start = time.perf_counter()
        self._end: float | None = None
        if (call_soon := getattr(loop, "call_soon", None)) is not None:
            call_soon(self._finish)
        else:  # trio runs what is ready in any order, so the turn has certainly ended only in the next one
            loop.run_sync_soon(loop.run_sync_soon, self._finish)

    def _finish(self) -> None:
        self._end = time.perf_counter()

    def delay(self) -> float:
        """Return the seconds, of those since the suspension, that the event loop was late at most."""
        waited = time.perf_counter() - self._start
        return waited if self._end is None else min(waited, TURNS * (self._end - self._start))
