"""Async code for sync callers, run in one event loop in a thread of its own.

One long-lived loop, not one per call: connections and fetches in flight belong to a loop, and sync callers keep theirs
between calls. It works without a running loop, inside one, and after one was closed.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import in_event_loop

T = TypeVar("T")


class _Portal:
    """The portal of this process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        reset_in_child(self, _lock=threading.Lock, _portal=lambda: None, _thread=lambda: None)

    def get(self) -> BlockingPortal | None:
        """Return the portal, or None if the caller runs inside its loop and would wait for itself."""
        with self._lock:
            if self._portal is None or self._thread is None or not self._thread.is_alive():
                # anyio's own context manager would wait for the thread when a forked child drops it.
                started: Future[BlockingPortal] = Future()
                self._thread = threading.Thread(target=_run_loop, args=(started,), name="pellucid", daemon=True)
                self._thread.start()
                self._portal = started.result()
            return None if self._thread is threading.current_thread() else self._portal

    def close(self) -> None:
        """Stop the loop and cancel tasks that are still running."""
        with self._lock:
            if self._portal is not None and self._thread is not None:
                self._portal.start_task_soon(self._portal.stop, True)
                self._thread.join()
            self._portal = self._thread = None


def _run_loop(started: Future[BlockingPortal]) -> None:
    try:
        anyio.run(_serve, started)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(started: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()


_PORTAL: Final = _Portal()
atexit.register(_PORTAL.close)


def run_in_portal(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async function with the caller's context variables, and wait for its result.

    A `KeyboardInterrupt` of the caller cancels the function. A caller within an event loop blocks it, and is warned.
    """

    async def work() -> T | _Interrupt:
        try:
            return await function()
        except KeyboardInterrupt:
            return _Interrupt()  # raised here, it would end the loop of all other callers

    if in_event_loop():
        from pellucid.concurrency.blocking import warn_once

        warn_once()
    portal = _PORTAL.get()
    if portal is None:
        with start_blocking_portal(name="pellucid-nested") as nested:
            result = nested.call(work)
    else:
        future = portal.start_task_soon(work)
        try:
            result = future.result()
        except BaseException:
            future.cancel()
            raise
    if isinstance(result, _Interrupt):
        raise KeyboardInterrupt
    return result


class _Interrupt:
    """Stand-in for a `KeyboardInterrupt` that is raised in the caller."""
