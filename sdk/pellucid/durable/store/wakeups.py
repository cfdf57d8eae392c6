"""Tasks that wait for a commit, woken from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from pellucid.concurrency.tasks import call_soon

Key: TypeAlias = tuple[str, str]
"""A channel, and a key in it."""


class Waiter:
    """A task that waits. Create it in the event loop of the task.

    Attributes:
        is_woken: Whether `wake` was called since `clear`; `nudge` does not count.
    """

    def __init__(self) -> None:
        self._token: EventLoopToken = current_token()
        self._event = anyio.Event()
        self.is_woken = False

    def clear(self) -> None:
        """Forget earlier wake-ups; call it before each check of the condition."""
        self._event = anyio.Event()
        self.is_woken = False

    async def wait(self) -> None:
        """Wait for a wake-up since `clear`."""
        await self._event.wait()

    async def wait_again(self) -> None:
        """Wait for a wake-up since `clear`, or a nudge from now on."""
        if not self.is_woken:
            self._event = anyio.Event()
        await self._event.wait()

    def wake(self) -> None:
        """Wake the task, from any thread."""
        call_soon(self._token, self._wake)

    def _wake(self) -> None:
        self.is_woken = True
        self.nudge()

    def nudge(self) -> None:
        """Wake the task in its event loop, for another reason than the condition."""
        self._event.set()


class Wakeups:
    """Waiters by channel and key.

    Attributes:
        receivers: Receivers of messages, by channels that have no waiters. They are called in the thread that listens,
            and raise nothing.
        is_listening: Whether the notifications of other processes arrive.
    """

    def __init__(self) -> None:
        self.receivers: dict[str, Callable[[str], None]] = {}
        self.is_listening = False
        self._lock = threading.Lock()
        self._waiters: dict[Key, set[Waiter]] = {}
        self._is_needed = threading.Event()
        self._is_closed = False

    @contextmanager
    def subscribe(self, keys: Collection[Key]) -> Iterator[Waiter]:
        """Wake a waiter at each notification of one of the keys, until the end of the block."""
        waiter = Waiter()
        with self._lock:
            for key in keys:
                self._waiters.setdefault(key, set()).add(waiter)
            self._is_needed.set()
        try:
            yield waiter
        finally:
            with self._lock:
                for key in keys:
                    self._waiters[key].discard(waiter)
                    if not self._waiters[key]:
                        del self._waiters[key]
                if not self._waiters and not self._is_closed:
                    self._is_needed.clear()

    def notify(self, key: Key) -> None:
        """Wake the waiters of a key, from any thread."""
        with self._lock:
            waiters = list(self._waiters.get(key, ()))
        for waiter in waiters:
            waiter.wake()

    def notify_all(self) -> None:
        """Wake all waiters, from any thread: anything may have been committed."""
        with self._lock:
            waiters = {waiter for group in self._waiters.values() for waiter in group}
        for waiter in waiters:
            waiter.wake()

    def rest(self) -> None:
        """Block a thread that polls until a task waits, or until `close`."""
        self._is_needed.wait()

    def close(self) -> None:
        """Let no thread rest, until `open`."""
        with self._lock:
            self._is_closed = True
            self._is_needed.set()

    def open(self) -> None:
        """Let threads rest again."""
        with self._lock:
            self._is_closed = False
            if not self._waiters:
                self._is_needed.clear()
