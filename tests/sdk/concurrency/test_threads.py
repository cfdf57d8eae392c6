"""Threads for blocking functions: their results, their limit, cancelled callers, and their end."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import anyio
import pytest

from pellucid.concurrency.threads import Threads

pytestmark = pytest.mark.anyio

NAME: ContextVar[str] = ContextVar("NAME", default="none")


@pytest.fixture
def threads() -> Threads:
    """Return two open threads."""
    threads = Threads(2)
    threads.open()
    return threads


async def test_a_function_returns_in_the_context_of_its_caller(threads: Threads) -> None:
    """Its result is that of the call, it sees the caller's variables, and runs in another thread."""
    NAME.set("ours")
    assert await threads.run(lambda: (NAME.get(), threading.get_ident() != threading.main_thread().ident)) == (
        "ours",
        True,
    )


async def test_a_function_that_raises(threads: Threads) -> None:
    """The error is the caller's, and the thread goes on."""
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: 1) == 1


async def test_a_caller_that_is_cancelled(threads: Threads) -> None:
    """It gets the result of a function that has begun, and leaves if its turn has not come."""
    has_begun, may_end = threading.Semaphore(0), threading.Event()
    results: list[bool] = []
    late: list[bool] = []

    def work() -> bool:
        has_begun.release()
        return may_end.wait(60)

    async def call() -> None:
        results.append(await threads.run(work))

    async def wait_for_turn() -> None:
        late.append(await threads.run(lambda: True))

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(call)
        await anyio.to_thread.run_sync(lambda: [has_begun.acquire() for _ in range(2)])
        tasks.start_soon(wait_for_turn)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        may_end.set()
    assert results == [True, True]
    assert not late


async def test_threads_that_are_closed(threads: Threads) -> None:
    """Functions that have begun end first; others are refused until the threads are open again."""
    await threads.run(lambda: None)
    may_end, has_begun = threading.Event(), threading.Event()

    def work() -> bool:
        has_begun.set()
        return may_end.wait(60)

    results: list[bool] = []

    async def call() -> None:
        results.append(await threads.run(work))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.to_thread.run_sync(has_begun.wait)
        closing = threading.Thread(target=threads.close)
        closing.start()
        may_end.set()
        await anyio.to_thread.run_sync(closing.join)
    assert results == [True]
    with pytest.raises(anyio.ClosedResourceError):
        await threads.run(lambda: None)
    threads.open()
    assert await threads.run(lambda: 2) == 2
