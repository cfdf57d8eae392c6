"""Threads for blocking functions that are called often, such as the transactions of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.per_loop import PerLoop
from pellucid.concurrency.tasks import call_soon

T = TypeVar("T")

_Jobs: TypeAlias = "SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None]"
"""Functions for a thread: its work, and the notice that it is done; None ends the thread."""


class Threads:
    """Threads that each run one function at a time.

    A call takes little more than half of the instructions of `anyio.to_thread.run_sync`, which lets the event loop turn
    twice before it begins, and wakes its threads by locks that are written in Python.

    Args:
        limit: Functions of an event loop that run at the same time; further ones wait for their turn.
    """

    def __init__(self, limit: int) -> None:
        # The class of the loop's events, which `anyio.Event` finds out for each one.
        self._loops = PerLoop(lambda: (current_token(), anyio.Semaphore(limit, fast_acquire=True), type(anyio.Event())))
        self._lock = threading.Lock()
        self._threads: list[tuple[threading.Thread, _Jobs]] = []
        self._idle: list[_Jobs] = []
        self._is_open = False

    async def run(self, function: Callable[[], T]) -> T:
        """Return `function()`, run in a thread, with the context variables of the caller.

        A caller that is cancelled before its turn leaves; later it waits for the end of the function.

        Raises:
            anyio.ClosedResourceError: they are closed, as they are before `open`.
        """
        outcome: list[tuple[T, None] | tuple[None, BaseException]] = []
        loop, turns, event = self._loops.get()
        context, is_done = copy_context(), event()

        def work() -> None:
            try:
                outcome.append((context.run(function), None))
            except BaseException as error:  # noqa: BLE001  (raised in the caller)
                outcome.append((None, error))

        async with turns:
            self._start(work, partial(call_soon, loop, is_done.set))
            with anyio.CancelScope(shield=True):
                await is_done.wait()
        result, error = outcome.pop()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        return result  # type: ignore[return-value]

    def _start(self, work: Callable[[], None], notice: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_open:
                raise anyio.ClosedResourceError
            if self._idle:
                jobs = self._idle.pop()
            else:
                jobs = SimpleQueue()
                thread = threading.Thread(target=_serve, args=(jobs, self._idle), name="pellucid", daemon=True)
                thread.start()
                self._threads.append((thread, jobs))
            jobs.put((work, notice))

    def open(self) -> None:
        """Let functions run from now on."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Refuse further functions, and wait for those that have begun."""
        with self._lock:
            self._is_open = False
            threads, self._threads, self._idle = self._threads, [], []
            for _, jobs in threads:
                jobs.put(None)
        for thread, _ in threads:
            thread.join()


def _serve(jobs: _Jobs, idle: list[_Jobs]) -> None:
    while (job := jobs.get()) is not None:
        work, notice = job
        work()
        idle.append(jobs)
        notice()
        del job, work, notice  # not kept while it waits
