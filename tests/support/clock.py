"""Clocks for tests of what goes by time."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import anyio
import anyio.lowlevel
import sniffio

SOON: Final = 20.0
"""Seconds: a limit that no busy machine reaches by itself, for `pass_time`."""


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


def pass_time(seconds: float = SOON) -> None:
    """Let time pass on the clock of the running event loop: what is limited to less ends.

    Where a test lets it pass, it passes; not before, however busy the machine is.
    """
    if sniffio.current_async_library() == "trio":
        import trio

        clock: Any = trio.lowlevel.current_clock()
        object.__setattr__(clock, "offset", clock.offset + seconds)
        return
    import asyncio

    loop: Any = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


async def outlast() -> NoReturn:
    """Take longer than what is limited to `SOON` may take."""
    pass_time()
    await anyio.sleep_forever()
    raise AssertionError
