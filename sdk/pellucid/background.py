"""Work that outlives its caller: tasks at the root of an event loop, and calls into a loop from elsewhere.

anyio has no such thing on purpose: its tasks belong to a task group. Two of our parts cannot: a fetch that several
runs wait for must survive the run that started it, and a connection that many runs share must be opened and closed by
one task. Both bound their own lives. This is the only module that touches the event loop's native handle.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import EventLoopToken, current_token

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

_running: set[Any] = set()
"""Strong references: asyncio itself keeps only weak ones to its tasks."""


def spawn(function: Callable[[*_Args], Awaitable[object]], *args: *_Args) -> None:
    """Run an async function as a task of its own in the current event loop, in a copy of the caller's context.

    The task is cancelled when the loop shuts down. `function` must deal with its own failures: what it raises can reach
    nobody and is only logged.
    """

    async def contained() -> None:
        try:
            await function(*args)
        except Exception:
            logging.getLogger("pellucid").exception("a background task failed; this is a bug in Pellucid")

    loop: Any = current_token().native_token
    if hasattr(loop, "create_task"):
        task = loop.create_task(contained())
        _running.add(task)
        task.add_done_callback(_running.discard)
    else:
        trio = importlib.import_module("trio")

        async def ended() -> None:
            # To trio a `Cancelled` that it did not send is a crash of the whole program.
            with contextlib.suppress(trio.Cancelled):
                await contained()

        trio.lowlevel.spawn_system_task(ended, context=contextvars.copy_context())


def call_soon(token: EventLoopToken, callback: Callable[[], object]) -> None:
    """Run `callback` in the event loop of `token`, from any thread, without waiting; not at all if the loop is gone."""
    loop: Any = token.native_token
    schedule = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    # A closed loop raises RuntimeError (trio: a subclass of it): nobody is left there to be told.
    with contextlib.suppress(RuntimeError):
        schedule(callback)


async def race(
    function: Callable[[*_Args], Awaitable[_T]],
    *args: *_Args,
    within: float | None = None,
    patience: float = 0.5,
) -> _T:
    """Await `function(*args)` in a task of its own, so that it cannot hold its caller.

    When the caller is cancelled, or `within` seconds have passed, the task is cancelled; it gets `patience` seconds to
    clean up and is left behind if it does not end.

    Raises:
        OutOfTime: `within` seconds have passed.
        ForeignCancellation: the function raised a cancellation by itself.
        Exception: whatever else the function raised.
    """
    loop: Any = current_token().native_token
    if not hasattr(loop, "create_task"):
        return await _race_in_scope(lambda: function(*args), within, patience)
    # With a task and a future: a third of what an anyio scope and event cost, and this is paid twice an iteration.
    done = loop.create_future()

    async def work() -> _T:
        try:
            return await function(*args)
        finally:
            _resolve(done)

    task = loop.create_task(work())
    timer = loop.call_later(within, _resolve, done) if within is not None else None
    try:
        await done
    except BaseException:
        await _leave(loop, task, patience)
        raise
    finally:
        if timer is not None:
            timer.cancel()
    if not task.done():
        await _leave(loop, task, patience)
        raise OutOfTime
    if task.cancelled():
        raise ForeignCancellation("it was cancelled although nobody asked for it")
    result: _T = task.result()
    return result


def _resolve(done: Any) -> None:
    if not done.done():
        done.set_result(None)


async def _leave(loop: Any, task: Any, patience: float) -> None:
    """Cancel a task, and let it be if it does not end soon."""
    over = loop.create_future()

    def ended(_: object) -> None:
        _running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, or asyncio complains of a failure that was left behind
        _resolve(over)

    _running.add(task)
    task.add_done_callback(ended)
    task.cancel()
    with anyio.move_on_after(patience, shield=True):
        await over


async def _race_in_scope(function: Callable[[], Awaitable[_T]], within: float | None, patience: float) -> _T:
    """Do as `race` does, with what anyio has."""
    done = anyio.Event()
    scope = anyio.CancelScope()
    result: list[_T] = []
    failure: list[BaseException] = []

    async def work() -> None:
        try:
            with scope:
                result.append(await function())
        except Exception as error:  # noqa: BLE001  (handed over to the caller)
            failure.append(error)
        except BaseException as error:
            failure.append(error)
            raise
        finally:
            done.set()

    spawn(work)
    try:
        with anyio.move_on_after(within) as limit:
            await done.wait()
    except BaseException:
        await _give_up(scope, done, patience)
        raise
    if limit.cancelled_caught:
        await _give_up(scope, done, patience)
        raise OutOfTime
    if result:
        return result[0]
    error = failure[0]
    if isinstance(error, Exception):
        raise error
    raise ForeignCancellation(f"{type(error).__name__} was raised although nobody cancelled it") from error


async def _give_up(scope: anyio.CancelScope, done: anyio.Event, patience: float) -> None:
    scope.cancel()
    with anyio.move_on_after(patience, shield=True):
        await done.wait()


class OutOfTime(TimeoutError):
    """Code did not end within the time it was given."""


class ForeignCancellation(RuntimeError):
    """Code was cancelled by itself or by something it awaited, not by its caller."""
