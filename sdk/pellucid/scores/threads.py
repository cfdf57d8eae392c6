"""Threads of sync scorers: one for each call, none of which keeps the process from ending."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.tasks import call_soon
from pellucid.errors import PellucidError

MOST_STUCK: Final = 8
"""Calls of a scorer that were given up and go on; with so many, it is not called again before one ends."""

_stuck: Final[Counter[str]] = Counter()
_lock: Final = threading.Lock()


class ScorerStuck(PellucidError):
    """Earlier calls of a scorer have not returned, although their time is over."""

    error_type = "stuck"


async def in_thread(name: str, call: Callable[[], Any]) -> Any:
    """Return what a call returns; if this is cancelled, the thread goes on and its result is lost.

    Args:
        name: Name of the scorer.
        call: The call.

    Raises:
        ScorerStuck: too many calls of the scorer go on that were given up.
    """
    with _lock:
        if _stuck[name] >= MOST_STUCK:
            raise ScorerStuck(f"{MOST_STUCK} earlier calls of scorer {name!r} have not returned; give it a timeout")
    token, ended = current_token(), anyio.Event()
    results: list[Any] = []
    errors: list[BaseException] = []
    given_up = over = False

    def work() -> None:
        nonlocal over
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)
        with _lock:
            over = True
            if given_up:
                _stuck[name] -= 1
        call_soon(token, ended.set)

    threading.Thread(target=_context().run, args=(work,), name=f"pellucid-score-{name}", daemon=True).start()
    try:
        await ended.wait()
    except anyio.get_cancelled_exc_class():
        with _lock:
            given_up = not over
            _stuck[name] += given_up
        raise
    if errors:
        raise errors[0]
    return results[0]


def _context() -> Context:
    """Return the current context for a thread without an event loop, as `anyio.to_thread` does."""
    context = copy_context()
    sniffio: Any = sys.modules.get("sniffio")
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, None)
    return context
