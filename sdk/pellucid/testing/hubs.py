"""A hub that misbehaves on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from pellucid.context import DiscoveryContext
from pellucid.tools import Tool


class FakeHub:
    """A hub for `DiscoveryProvider` that is slow, changes or fails as told.

    Args:
        tools: Its catalogue: a sequence, or a function of the 1-based number of the call, for catalogues that change
            and answers that are no catalogue at all.
        latency: Seconds that each fetch takes.
        faults: What the first calls raise, one exception each; `None` lets a call pass.

    Attributes:
        calls: Contexts of the fetches so far.
        cancelled: Fetches that were cancelled.
        tools: May be replaced at any time.
        latency: May be changed at any time; `math.inf` hangs.
    """

    def __init__(
        self,
        tools: Sequence[Tool] | Callable[[int], Any] = (),
        *,
        latency: float = 0.0,
        faults: Sequence[BaseException | None] = (),
    ) -> None:
        self.tools = tools
        self.latency = latency
        self.faults = list(faults)
        self.calls: list[DiscoveryContext] = []
        self.cancelled = 0

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the catalogue, after the latency and unless a fault is due."""
        self.calls.append(ctx)
        number = len(self.calls)
        try:
            await anyio.sleep(self.latency)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        fault = self.faults[number - 1] if number <= len(self.faults) else None
        if fault is not None:
            raise fault
        tools: Sequence[Tool] = self.tools(number) if callable(self.tools) else self.tools
        return tools
