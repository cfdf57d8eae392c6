from __future__ import annotations

import contextlib
import logging
import threading
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint, current_token

from pellucid.concurrency.race import ForeignCancellation, race
from pellucid.concurrency.tasks import call_soon, spawn
from support.runs import cancel_itself

pytestmark = pytest.mark.anyio

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def forever() -> None:
    """Wait until cancelled."""
    await anyio.sleep_forever()


# --- spawn ------------------------------------------------------------------------------------------------------------


async def test_a_spawned_task_outlives_the_scope_that_spawned_it() -> None:
    """Cancelling the scope of the caller does not cancel a spawned task, which has the context of the caller."""
    done = anyio.Event()
    seen: list[str] = []
    token = variable.set("mine")

    async def work(name: str) -> None:
        await checkpoint()
        seen.append(f"{name} {variable.get()}")
        done.set()

    with anyio.CancelScope() as scope:
        spawn(work, "a")
        scope.cancel()
        await checkpoint()
    variable.reset(token)
    with anyio.fail_after(60):
        await done.wait()
    assert seen == ["a mine"]


async def test_a_failing_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The exception of a spawned task is logged, and the event loop goes on."""

    async def fail() -> None:
        raise ValueError("lost")

    spawn(fail)
    with anyio.fail_after(60):
        while not caplog.records:
            await checkpoint()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pellucid", logging.ERROR)
    assert "lost" in record.getMessage()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_end_of_the_loop_cancels_what_was_spawned(backend: str) -> None:
    """The end of an event loop cancels its spawned tasks."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("cleaned up")

    async def main() -> None:
        spawn(work)
        await anyio.wait_all_tasks_blocked()

    anyio.run(main, backend=backend)
    assert ended == ["cleaned up"]


# --- call_soon --------------------------------------------------------------------------------------------------------


async def test_a_callback_runs_in_its_loop_from_any_thread() -> None:
    """`call_soon` calls a function in the thread of its event loop from any other thread."""
    token, done = current_token(), anyio.Event()
    threads: list[int] = []

    def callback() -> None:
        threads.append(threading.get_ident())
        done.set()

    with anyio.fail_after(60):
        await anyio.to_thread.run_sync(call_soon, token, callback)
        await done.wait()
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_callback_for_a_loop_that_is_gone_is_forgotten(backend: str) -> None:
    """`call_soon` does nothing if the event loop has ended."""

    async def main() -> Any:
        return current_token()

    call_soon(anyio.run(main, backend=backend), lambda: pytest.fail("called"))


# --- race -------------------------------------------------------------------------------------------------------------


async def test_a_race_returns_what_the_function_returns() -> None:
    """`race` passes on the arguments, the context and the result of its function."""

    async def work(a: int, b: int) -> tuple[int, str]:
        await checkpoint()
        return a + b, variable.get()

    token = variable.set("mine")
    with anyio.fail_after(60):
        assert await race(work, 1, 2) == (3, "mine")
    variable.reset(token)


class Delayed:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Any:
        yield from checkpoint().__await__()
        return "late"


async def test_a_race_awaits_any_awaitable() -> None:
    """`race` awaits any awaitable that its function returns."""
    with anyio.fail_after(60):
        assert await race(Delayed) == "late"


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_race_raises_what_the_function_raises(*, at_once: bool) -> None:
    """`race` raises the very exception that its function raises."""
    error = ValueError("x")

    async def later() -> None:
        await checkpoint()
        raise error

    def now() -> Any:
        raise error

    with anyio.fail_after(60), pytest.raises(ValueError, match="x") as caught:
        await race(now if at_once else later)
    assert caught.value is error


async def test_a_cancelled_race_lets_the_function_clean_up() -> None:
    """A cancelled `race` waits until its function has cleaned up."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
            ended.append("cleaned up")

    with anyio.fail_after(60):
        with anyio.move_on_after(0.01) as scope:
            await race(work, patience=5)
    assert scope.cancelled_caught
    assert ended == ["cleaned up"]


async def test_a_race_does_not_wait_for_ever() -> None:
    """A cancelled `race` leaves a function that ignores the cancellation behind, and ignores its end."""
    go, over = anyio.Event(), anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            while not go.is_set():
                with contextlib.suppress(anyio.get_cancelled_exc_class()):  # asyncio's own knows no shield
                    await go.wait()
        over.set()
        raise ValueError("of no interest any longer")

    with anyio.fail_after(60):
        with anyio.move_on_after(0.01) as scope:
            await race(stubborn, patience=0.01)
        assert scope.cancelled_caught
        go.set()
        await over.wait()
        await anyio.wait_all_tasks_blocked()


async def test_a_function_that_swallows_its_cancellation_is_left_behind() -> None:
    """A cancelled `race` raises the cancellation even if its function returns."""

    async def swallow() -> str:
        try:
            await forever()
        except BaseException:  # noqa: BLE001  (that is what is tested)
            return "went on"
        return "never"

    with anyio.fail_after(60):
        with anyio.move_on_after(0.01) as scope:
            await race(swallow)
    assert scope.cancelled_caught


async def test_a_cancellation_of_the_function_s_own_is_an_error(anyio_backend: str) -> None:
    """`race` raises an error if its function cancels itself, and the caller is not cancelled."""
    for _ in range(2):
        with anyio.fail_after(60), pytest.raises(ForeignCancellation):
            await race(cancel_itself, anyio_backend)
        await anyio.wait_all_tasks_blocked()


async def test_many_races_at_the_same_time() -> None:
    """Each of many concurrent races returns its own result."""
    got: list[int] = []

    async def work(number: int) -> int:
        await checkpoint()
        return number

    async def ask(number: int) -> None:
        got.append(await race(work, number))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(ask, number)
    assert sorted(got) == list(range(200))
