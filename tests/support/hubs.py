"""Helpers for tests of hubs: tools that do nothing, and a hub that waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from pellucid import DiscoveryContext, Tool
from pellucid.providers.provider import HubCatalog
from pellucid.testing import FakeHub


async def nothing(arguments: dict[str, Any], ctx: object) -> None:
    """Do nothing."""


def named(*names: str) -> list[Tool]:
    """Return tools of these names."""
    return [Tool(name=name, run=nothing) for name in names]


def names(tools: Sequence[Tool]) -> list[str]:
    """Return the names of tools."""
    return [tool.name for tool in tools]


class HeldHub(FakeHub):
    """Hub that answers when `released` is set.

    Args:
        tools: Its answer.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self.released = anyio.Event()
        self._held = tools

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Record the call, and answer when `released` is set."""
        self.calls.append(ctx)
        await self.released.wait()
        return self._held


class PromisingHub:
    """A hub that says how long its catalogue is good for. Attributes: fetches: how many there were."""

    def __init__(self, lifetime: float | None) -> None:
        self.fetches = 0
        self._lifetime = lifetime

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool] | HubCatalog:
        """Return tools, and describe the round trip."""
        self.fetches += 1
        ctx.describe({"hub.fetch": self.fetches})
        tools = tuple(named("a"))
        return tools if self._lifetime is None else HubCatalog(tools, self._lifetime)
