"""Calls that may block, made where nobody has to wait for their end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

Call: TypeAlias = Callable[[], object]


class Errands:
    """Makes calls one after another in a daemon thread of its own.

    The OpenTelemetry SDK flushes and shuts down without a deadline; its caller waits for the future as long as it
    likes. The thread is started at once since an interpreter that exits starts none.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.renew()

    def run(self, call: Call) -> Future[object]:
        """Queue a call; a future that is cancelled before its turn is skipped."""
        future: Future[object] = Future()
        self._queue.put((future, call))
        return future

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)

    def renew(self) -> None:
        """Start the thread, anew in a forked child, where threads do not live on."""
        self._queue: SimpleQueue[tuple[Future[object], Call] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), name=self._name, daemon=True).start()


def _work(queue: SimpleQueue[tuple[Future[object], Call] | None]) -> None:
    while (errand := queue.get()) is not None:
        future, call = errand
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001  (belongs to whoever reads the future)
            future.set_exception(error)
