"""Code with a time limit, in a task of its own, which is abandoned when it does not stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.tasks import running, spawn
from pellucid.failures import contained, first_of, interrupt_in

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


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
        Exception: whatever else the function raised; `UnexpectedExit` in place of what is none.
    """
    loop: Any = current_token().native_token
    if not hasattr(loop, "create_task"):
        return await _race_in_scope(lambda: function(*args), within, patience)
    # With a task and a future: a third of what an anyio scope and event cost, and this is paid twice an iteration.
    done = loop.create_future()
    result: list[_T] = []
    failure: list[BaseException] = []

    async def work() -> None:
        try:
            result.append(await function(*args))
        except BaseException as error:  # noqa: BLE001  (handed over to the caller)
            failure.append(_handed_over(error, is_awaited=not done.done()))
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
    return _outcome(result, failure, None if task.cancelled() else task.exception())


def _handed_over(error: BaseException, *, is_awaited: bool) -> BaseException:
    """Return what the caller is to raise; raise what is to end the task itself.

    An interrupt that leaves a task would end the event loop before anything is cleaned up.
    """
    interrupt = interrupt_in(error)
    return interrupt if interrupt is not None and is_awaited else contained(error)


def _outcome(result: list[_T], failure: list[BaseException], end: BaseException | None) -> _T:
    """Return or raise what a function came to, whose task ended with `end`."""
    if result:
        return result[0]
    if failure:
        raise failure.pop()  # or the exception would lead to itself, and stay until garbage is collected
    raise ForeignCancellation("it was cancelled although nobody asked for it") from end


def _resolve(done: Any) -> None:
    if not done.done():
        done.set_result(None)


async def _leave(loop: Any, task: Any, patience: float) -> None:
    """Cancel a task, and let it be if it does not end soon."""
    over = loop.create_future()

    def ended(_: object) -> None:
        running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, or asyncio complains of a failure that was left behind
        _resolve(over)

    running.add(task)
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
        except BaseException as error:  # noqa: BLE001  (handed over to the caller)
            failure.append(_handed_over(error, is_awaited=not scope.cancel_called))
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
    return _outcome(result, failure, None)


async def _give_up(scope: anyio.CancelScope, done: anyio.Event, patience: float) -> None:
    scope.cancel()
    with anyio.move_on_after(patience, shield=True):
        await done.wait()


async def together(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Await several calls at the same time; the first failure cancels the others and is raised as it is."""
    interrupts: list[KeyboardInterrupt] = []

    async def make(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except BaseException as error:
            if (interrupt := interrupt_in(error)) is None:
                raise
            interrupts.append(interrupt)  # it would end the event loop if it left a task of asyncio's
            tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(make, call)
    except BaseExceptionGroup as group:
        if not interrupts:
            first = first_of(group)
            raise first from first.__cause__  # not from the group: it only says that there were several
    if interrupts:
        raise interrupts[0]


class OutOfTime(TimeoutError):
    """Code did not end within the time it was given."""


class ForeignCancellation(RuntimeError):
    """Code was cancelled by itself or by something it awaited, not by its caller."""

    __module__ = "pellucid.background"  # recorded as `error.type`, whose values stay between releases
