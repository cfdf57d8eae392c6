"""The relay of a queue: pieces of answers from workers to readers, by way of the thread of its connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from typing import TypeVarTuple

from pellucid.durable.queue.thread import Thread

Arguments = TypeVarTuple("Arguments")


class NATSRelay:
    """Relay of an open queue; when the queue is closed, it does nothing any longer."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._live = thread.link.live

    def open(self, announced: Callable[[str], None], received: Callable[[str], None]) -> None:
        """Pass announcements and pieces on, in the thread of the connection."""
        self._thread.start(self._live.open, announced, received)

    async def follow(self, run_id: str) -> None:
        """Receive the pieces of a run."""
        await self._call(self._live.follow, run_id)

    def leave(self, run_id: str) -> None:
        """Receive no more pieces of a run."""
        if self._thread.is_open:
            self._thread.start(self._live.leave, run_id)

    async def announce(self, texts: Sequence[str]) -> None:
        """Send announcements."""
        await self._call(self._live.announce, texts)

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send pieces."""
        await self._call(self._live.send, messages)

    async def _call(self, function: Callable[[*Arguments], Awaitable[object]], /, *arguments: *Arguments) -> None:
        if not self._thread.is_open:
            return
        try:
            await self._thread.call(function, *arguments)
        except CancelledError:  # by the end of the thread
            return
