"""Passes that run in a worker: their number, and the one that has it for itself."""

from __future__ import annotations

import anyio


class Passes:
    """Passes of one worker.

    Attributes:
        has_suspect: Whether a suspect waits for this worker to run nothing else; no idle worker has claimed it in time.
    """

    def __init__(self) -> None:
        self.has_suspect = False
        self._running = 0
        self._is_one_alone = False
        self._changed: anyio.Event | None = None

    @property
    def are_over(self) -> bool:
        """True if no pass runs."""
        return self._running == 0

    def begin(self, *, is_alone: bool) -> None:
        """Count a pass; no other one may begin beside one that is alone."""
        self._running += 1
        self._is_one_alone = self._is_one_alone or is_alone

    def end(self) -> None:
        """Note that a pass has ended."""
        self._running -= 1
        self._is_one_alone = self._is_one_alone and not self.are_over
        self._notify()

    def expect(self, *, has_suspect: bool) -> None:
        """Note whether a suspect waits for this worker."""
        self.has_suspect = has_suspect
        self._notify()

    async def have_room(self) -> None:
        """Wait until another pass may begin."""
        while self._is_one_alone or (self.has_suspect and not self.are_over):
            self._changed = self._changed or anyio.Event()
            await self._changed.wait()

    async def end_all(self) -> None:
        """Wait until none runs."""
        while not self.are_over:
            self._changed = self._changed or anyio.Event()
            await self._changed.wait()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
