"""Long computations in a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from pellucid.concurrency.per_loop import PerLoop

T = TypeVar("T")

_TURN: Final = PerLoop(anyio.Lock)


async def compute(function: Callable[[], T]) -> T:
    """Return `function()`, computed in a worker thread so that the event loop continues.

    One computation of an event loop runs at a time: several would only compete for the interpreter, and callers that
    need the same result find it in a cache. After a cancellation the caller returns at once, and the thread finishes.
    """
    async with _TURN.get():
        # A limiter of its own: threads of the application must not delay a run.
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
