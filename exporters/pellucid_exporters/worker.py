"""Worker thread for calls that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

Call: TypeAlias = Callable[[], object]


class WorkerThread:
    """Worker that runs calls one after another in its own daemon thread.

    The OpenTelemetry SDK flushes and shuts down without a deadline; callers wait for the future with a timeout of their
    own. The thread starts at once because an interpreter that is exiting cannot start one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.renew()

    def run(self, call: Call) -> Future[object]:
        """Queue a call; a future cancelled before its turn is skipped."""
        future: Future[object] = Future()
        self._queue.put((future, call))
        return future

    def stop(self) -> None:
        """End the thread after the queued calls."""
        self._queue.put(None)

    def renew(self) -> None:
        """Start the thread; again in a forked child, which does not inherit threads."""
        self._queue: SimpleQueue[tuple[Future[object], Call] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), name=self._name, daemon=True).start()


def _work(queue: SimpleQueue[tuple[Future[object], Call] | None]) -> None:
    while (item := queue.get()) is not None:
        future, call = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001  (raised where the future is read)
            future.set_exception(error)
