"""Background tasks at the root of an event loop, and calls into a loop from other threads.

anyio deliberately has no such tasks: its tasks belong to a task group. Two parts of Pellucid need them: a fetch that
several runs wait for must survive the run that started it, and a connection that many runs share must be opened and
closed by one task. Both limit their own lifetime.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVarTuple

import anyio
from anyio import NoEventLoopError
from anyio.lowlevel import EventLoopToken, checkpoint_if_cancelled, current_token

from pellucid.failures import contained, stack_of

_Args = TypeVarTuple("_Args")


running: set[Any] = set()
"""Strong references: asyncio itself keeps only weak ones to its tasks."""


def load_backend() -> None:
    """Load what anyio needs on asyncio, which would otherwise delay the first step of the first run."""
    with contextlib.suppress(ImportError):  # then anyio loads it on first use
        importlib.import_module("anyio._backends._asyncio")


def spawn(function: Callable[[*_Args], Awaitable[object]], *args: *_Args) -> Callable[[], object]:
    """Run an async function as a task of its own in the current event loop, in a copy of the caller's context.

    The task is cancelled when the loop shuts down, and by the function that is returned, to be called in the loop.
    `function` must handle its own failures: an exception has no caller to reach and is only logged.
    """

    async def work() -> None:
        try:
            await function(*args)
        except KeyboardInterrupt:
            _thread.interrupt_main()  # no caller can raise it; this is what the terminal does
        except BaseException as error:  # noqa: BLE001  (logged; no caller awaits this task)
            contained(error)
            logging.getLogger("pellucid").error(  # noqa: TRY400  (never ends for a group that contains itself)
                "a background task failed; this is a bug in Pellucid\n%s", stack_of(error)
            )

    loop: Any = current_token().native_token
    if hasattr(loop, "create_task"):
        task = loop.create_task(work())
        running.add(task)
        task.add_done_callback(running.discard)
        return task.cancel  # type: ignore[no-any-return]
    trio = importlib.import_module("trio")
    scope = anyio.CancelScope()

    async def run() -> None:
        # trio treats a `Cancelled` that it did not send as a crash of the whole program.
        with contextlib.suppress(trio.Cancelled), scope:
            await work()

    trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
    return scope.cancel


def in_event_loop() -> bool:
    """Return whether the caller runs in an event loop."""
    try:
        current_token()
    except NoEventLoopError:
        return False
    return True


def call_soon(token: EventLoopToken, callback: Callable[[], object]) -> None:
    """Schedule `callback` in the event loop of `token` from any thread; do nothing if the loop is closed."""
    loop: Any = token.native_token
    schedule = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    # A closed loop raises RuntimeError (trio: a subclass of it): no task is left to notify.
    with contextlib.suppress(RuntimeError):
        schedule(callback)


def call_later(token: EventLoopToken, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
    """Call `callback` in the current event loop after some time, unless the function that is returned is called before.

    Args:
        token: Token of the current event loop.
        seconds: The time, by the clock of the event loop.
        callback: Function that does not raise.
    """
    loop: Any = token.native_token
    if hasattr(loop, "call_later"):
        return loop.call_later(seconds, callback).cancel  # type: ignore[no-any-return]

    at = anyio.current_time() + seconds  # the task that waits may start late

    async def wait() -> None:
        await anyio.sleep_until(at)
        callback()

    return spawn(wait)


async def is_cancelled() -> bool:
    """Return whether the running task is cancelled, in the handler of a cancellation: its code can raise one, too."""
    loop: Any = current_token().native_token
    if hasattr(loop, "create_task"):
        return bool(sys.modules["asyncio"].current_task().cancelling())
    try:
        await checkpoint_if_cancelled()
    except BaseException:  # noqa: BLE001  (the answer)
        return True
    return False


def is_running(token: EventLoopToken) -> bool:
    """Return whether the event loop of `token` runs. Callable from any thread."""
    loop: Any = token.native_token
    if hasattr(loop, "is_running"):
        return bool(loop.is_running())
    return not has_ended(loop)


def has_ended(loop: Any) -> bool:
    """Return whether an event loop, given by its native token, will never run again. Callable from any thread."""
    if hasattr(loop, "is_closed"):
        return bool(loop.is_closed())
    try:
        loop.run_sync_soon(nothing, idempotent=True)
    except RuntimeError:  # trio raises it after its loop has ended
        return True
    return False


def nothing() -> None:
    """Do nothing."""
