from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from pellucid import CancelToken, ConfigError, Limits

pytestmark = pytest.mark.anyio


def test_only_the_first_cancel_counts() -> None:
    """The reason is that of the first call."""
    token = CancelToken()
    assert (token.cancelled, token.reason) == (False, None)
    token.cancel("first")
    token.cancel("second")
    assert (token.cancelled, token.reason) == (True, "first")


async def test_waiting_ends_when_another_thread_cancels() -> None:
    """Everybody who waits is woken."""
    token = CancelToken()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(token.wait)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(token.cancel)


async def test_waiting_for_a_cancelled_token_returns() -> None:
    """It is not too late to ask."""
    token = CancelToken()
    token.cancel()
    with anyio.fail_after(60):
        await token.wait()


async def test_leaving_forgets_the_callback() -> None:
    """After the context nothing is called, and the token keeps nothing of it."""
    token = CancelToken()
    called: list[str] = []
    with token.calling(lambda: called.append("x")):
        pass
    with anyio.fail_after(60):
        with anyio.move_on_after(0) as scope:
            await token.wait()
        token.cancel()
        await anyio.wait_all_tasks_blocked()
    assert scope.cancelled_caught
    assert called == []


async def test_a_callback_of_a_cancelled_token_is_called_at_once() -> None:
    """It is called once."""
    token = CancelToken()
    token.cancel()
    called: list[str] = []
    with token.calling(lambda: called.append("x")):
        assert called == ["x"]
        with anyio.fail_after(60):
            await anyio.wait_all_tasks_blocked()
    assert called == ["x"]


async def test_a_signal_handler_may_cancel_at_any_moment() -> None:
    """A handler runs between any two instructions of the main thread, also while that holds the token's lock."""
    token, done = CancelToken(), threading.Event()

    def interrupted() -> None:
        with token._lock:
            token.cancel("interrupted")
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    with anyio.fail_after(60):
        await token.wait()
    assert done.wait(60)


def test_loops_in_several_threads_wait_for_one_token() -> None:
    """A token belongs to no event loop."""
    token, woken = CancelToken(), []
    waiting = threading.Barrier(5)

    def loop(backend: str) -> None:
        async def main() -> None:
            with anyio.fail_after(60), token.calling(lambda: None):
                await anyio.to_thread.run_sync(waiting.wait, 5)
                await token.wait()
            woken.append(backend)

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=loop, args=(backend,)) for backend in ("asyncio", "trio") * 2]
    for thread in threads:
        thread.start()
    waiting.wait(60)
    token.cancel()
    for thread in threads:
        thread.join(60)
    assert sorted(woken) == ["asyncio", "asyncio", "trio", "trio"]


@pytest.mark.parametrize("name", ["max_iterations", "parallel_tools", "max_result_bytes"])
def test_limits_that_allow_nothing_are_refused(name: str) -> None:
    """The error names the limit."""
    with pytest.raises(ConfigError, match=f"{name}=0"):
        Limits(**{name: 0})


@pytest.mark.parametrize("name", ["max_tool_calls", "timeout", "discovery_timeout", "model_timeout", "tool_timeout"])
def test_negative_limits_are_refused(name: str) -> None:
    """None is no bound, 0 is one, less makes no sense."""
    values: list[Any] = [None, 0]
    for value in values:
        assert getattr(Limits(**{name: value}), name) == value
    with pytest.raises(ConfigError, match=f"{name}=-1"):
        Limits(**{name: -1})
