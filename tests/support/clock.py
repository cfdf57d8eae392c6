"""A clock for tests of what goes by time."""

from __future__ import annotations

import anyio.lowlevel


class Clock:
    """A clock that stands until it is moved, or somebody sleeps by it. Attributes: slept: how long, each time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        """Read the clock."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass, without waiting."""
        self.slept.append(seconds)
        self.now += seconds
        await anyio.lowlevel.checkpoint()
