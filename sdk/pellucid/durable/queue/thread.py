"""The thread of a queue, with the event loop of its connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar, TypeVarTuple

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pellucid.durable.queue.link import serve
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.queue.options import Options
from pellucid.durable.store.wakeups import Waiter
from pellucid.failures import stack_of

_log = logging.getLogger("pellucid.nats")

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Thread:
    """Thread with the event loop of a link. Creating and closing it block.

    Attributes:
        link: The link, whose methods run in the thread.
        is_open: Whether the thread has not been closed.
    """

    def __init__(self, options: Options, metrics: QueueMetrics) -> None:
        self._context = start_blocking_portal("asyncio")
        self._portal: BlockingPortal = self._context.__enter__()
        self._serving, self.link = self._portal.start_task(serve, self._portal, options, metrics)
        self._serving.add_done_callback(_log_failure)
        self.is_open = True

    async def call(self, function: Callable[[*Arguments], Awaitable[T]], /, *arguments: *Arguments) -> T:
        """Return what an async function returns; if the caller is cancelled, so is the function."""
        waiter = Waiter()
        future = self.start(function, *arguments)
        future.add_done_callback(lambda _: waiter.wake())
        try:
            await waiter.wait()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def start(self, function: Callable[[*Arguments], Awaitable[T]], /, *arguments: *Arguments) -> Future[T]:
        """Start an async function.

        Raises:
            RuntimeError: the thread has ended.
        """
        return self._portal.start_task_soon(function, *arguments)

    def close(self) -> None:
        """Close the connection and end the thread."""
        self.is_open = False
        self._serving.cancel()
        self._context.__exit__(None, None, None)


def _log_failure(serving: Future[Any]) -> None:
    if not serving.cancelled() and (error := serving.exception()) is not None:
        _log.error("nats.failed; runs continue without the queue; this is a bug in Pellucid\n%s", stack_of(error))
