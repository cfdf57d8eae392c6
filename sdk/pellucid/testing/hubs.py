"""A test double of a tool hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

import anyio

from pellucid.context import DiscoveryContext
from pellucid.tools import Tool
from pellucid.tools.tool import NO_TOOLS
from pellucid.types import DepsT


class FakeHub(Generic[DepsT]):
    """A hub for `DiscoveryProvider` with configurable latency, changes and failures.

    Args:
        tools: The catalogue: a sequence, or a function of the 1-based number of the call, for catalogues that change
            and for invalid ones.
        latency: Seconds that each fetch takes.
        faults: Exceptions that the first calls raise, one for each call; `None` lets a call succeed.

    Attributes:
        calls: Contexts of the fetches so far.
        cancelled: Number of fetches that were cancelled.
        faults: The exceptions by the number of the call since the hub was made; may be changed at any time. To let the
            next call fail: `hub.faults = [None] * len(hub.calls) + [error]`.
        tools: The catalogue; may be replaced at any time.
        latency: Seconds that each fetch takes; may be changed at any time. With `math.inf` fetches hang.
    """

    def __init__(
        self,
        tools: Sequence[Tool[DepsT]] | Callable[[int], Any] = NO_TOOLS,
        *,
        latency: float = 0.0,
        faults: Sequence[BaseException | None] = (),
    ) -> None:
        self.tools = tools
        self.latency = latency
        self.faults = list(faults)
        self.calls: list[DiscoveryContext] = []
        self.cancelled = 0

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool[DepsT]]:
        """Return the catalogue after the latency.

        Raises:
            BaseException: the fault of this call, if there is one.
        """
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
        tools: Sequence[Tool[DepsT]] = self.tools(number) if callable(self.tools) else self.tools
        return tools
