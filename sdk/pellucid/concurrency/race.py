"""Calls with a time limit, each in a task of its own that is abandoned if it does not stop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import EventLoopToken, checkpoint_if_cancelled, current_token

from pellucid.concurrency.tasks import running, spawn
from pellucid.failures import contained, first_of, interrupt_in

_HAS_EAGER_TASKS: Final = sys.version_info >= (3, 12)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


async def race(
    function: Callable[[*_Args], Awaitable[_T]],
    *args: *_Args,
    within: float | None = None,
    patience: float = 0.5,
    token: EventLoopToken | None = None,
    at_once: bool = False,
) -> _T:
    """Await `function(*args)` in a task of its own, so that it cannot block its caller.

    When the caller is cancelled, or `within` seconds have passed, the task is cancelled. It has `patience` seconds to
    clean up and is abandoned if it does not end. A caller that has the `token` of the event loop saves its lookup. With
    `at_once`, the task begins before this function waits, from Python 3.12 on; a function that does not wait then saves
    two turns of the event loop.

    Raises:
        OutOfTime: `within` seconds have passed.
        ForeignCancellation: the function raised a cancellation that its caller did not request.
        Exception: any other exception of the function; `UnexpectedExit` for a `BaseException`.
    """
    loop: Any = (token or current_token()).native_token
    if not hasattr(loop, "create_task"):
        return await _race_in_scope(lambda: function(*args), within, patience)
    # A task and a future take a third of the time of an anyio scope and event, and this runs twice an iteration.
    done: Any = None
    result: list[_T] = []
    failure: list[BaseException] = []

    async def work() -> None:
        try:
            result.append(await function(*args))
        except BaseException as error:  # noqa: BLE001  (handed over to the caller)
            failure.append(_error_for_caller(error, is_awaited=done is None or not done.done()))
        finally:
            if done is not None:
                _resolve(done)

    task = _eager_task(loop, work()) if at_once and _HAS_EAGER_TASKS else loop.create_task(work())
    if not task.done():
        done = loop.create_future()
        timer = loop.call_later(within, _resolve, done) if within is not None else None
        try:
            await done
        except BaseException:
            await _cancel_or_abandon(loop, task, patience)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not task.done():
            await _cancel_or_abandon(loop, task, patience)
            raise OutOfTime
    return _outcome(result, failure, None if task.cancelled() else task.exception())


def begins_at_once(token: EventLoopToken) -> bool:
    """Return whether `race(at_once=True)` does; a function that does not wait then gives no turn to other tasks."""
    return _HAS_EAGER_TASKS and hasattr(token.native_token, "create_task")


def _eager_task(loop: Any, coroutine: Any) -> Any:
    """Return a task that has begun, unless the application makes tasks itself."""
    if loop.get_task_factory() is not None:
        return loop.create_task(coroutine)
    return sys.modules["asyncio"].Task(coroutine, loop=loop, eager_start=True)


def _error_for_caller(error: BaseException, *, is_awaited: bool) -> BaseException:
    """Return the error for the caller to raise; raise the one that must end the task itself.

    An interrupt raised out of a task would end the event loop before any cleanup.
    """
    interrupt = interrupt_in(error)
    return interrupt if interrupt is not None and is_awaited else contained(error)


def _outcome(result: list[_T], failure: list[BaseException], end: BaseException | None) -> _T:
    """Return or raise the outcome of a function whose task ended with `end`."""
    if result:
        return result[0]
    if failure:
        raise failure.pop()  # popped, so that the exception's traceback does not refer back to it
    raise ForeignCancellation from end


def _resolve(done: Any) -> None:
    if not done.done():
        done.set_result(None)


async def _cancel_or_abandon(loop: Any, task: Any, patience: float) -> None:
    """Cancel a task, and abandon it if it does not end within `patience` seconds."""
    ended = loop.create_future()

    def on_end(_: object) -> None:
        running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs that it never was
        _resolve(ended)

    running.add(task)
    task.add_done_callback(on_end)
    task.cancel()
    with anyio.move_on_after(patience, shield=True):
        await ended


async def _race_in_scope(function: Callable[[], Awaitable[_T]], within: float | None, patience: float) -> _T:
    """Implement `race` on anyio alone, for event loops other than asyncio's."""
    done = anyio.Event()
    scope = anyio.CancelScope()
    result: list[_T] = []
    failure: list[BaseException] = []

    async def work() -> None:
        try:
            with scope:
                result.append(await function())
        except BaseException as error:  # noqa: BLE001  (handed over to the caller)
            failure.append(_error_for_caller(error, is_awaited=not scope.cancel_called))
        finally:
            done.set()

    spawn(work)
    try:
        with anyio.move_on_after(within) as limit:
            await done.wait()
    except BaseException:
        await _cancel_scope_or_abandon(scope, done, patience)
        raise
    if limit.cancelled_caught:
        await _cancel_scope_or_abandon(scope, done, patience)
        raise OutOfTime
    return _outcome(result, failure, None)


async def _cancel_scope_or_abandon(scope: anyio.CancelScope, done: anyio.Event, patience: float) -> None:
    scope.cancel()
    with anyio.move_on_after(patience, shield=True):
        await done.wait()


async def together(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Await several calls concurrently; the first failure cancels the others and is raised unchanged."""
    interrupts: list[KeyboardInterrupt] = []
    started: list[Coroutine[Any, Any, None]] = []

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except BaseException as error:
            if (interrupt := interrupt_in(error)) is None:
                raise
            interrupts.append(interrupt)  # raised out of an asyncio task, it would end the event loop
            tasks.cancel_scope.cancel()

    def start(call: Callable[[], Awaitable[object]]) -> Coroutine[Any, Any, None]:
        started.append(run(call))
        return started[-1]

    try:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(start, call)
    except BaseExceptionGroup as group:
        if not interrupts:
            first = first_of(group)
            raise first from first.__cause__  # not from the group, which only adds that there were several failures
    finally:
        for coroutine in started:
            coroutine.close()  # no effect unless it was cancelled before its first step
    if interrupts:
        raise interrupts[0]


async def shielded(function: Callable[[*_Args], Awaitable[_T]], *args: *_Args) -> _T:
    """Await `function(*args)` to its end, also if the caller is cancelled; its cancellation is raised afterwards.

    The function runs in a task of its own: a scope does not shield from the cancellation of an asyncio task.
    """
    result: list[_T] = []

    async def work() -> None:
        with anyio.CancelScope(shield=True):
            result.append(await function(*args))

    await together([work])
    await checkpoint_if_cancelled()  # a task group of trio whose tasks were all shielded does not raise it
    return result[0]


class OutOfTime(TimeoutError):
    """A call did not end within its time limit."""


class ForeignCancellation(RuntimeError):
    """A call was cancelled by itself or by something that it awaited, not by its caller."""

    __module__ = "pellucid.background"  # recorded as `error.type`, whose values are stable between releases

    def __init__(self, problem: str = "it was cancelled, but not by its caller") -> None:
        super().__init__(problem)
