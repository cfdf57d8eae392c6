"""Hubs that say how long their catalogue is good for, and what they say of a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import Agent, DiscoveryContext, DiscoveryProvider
from pellucid.providers.provider import HubCatalog
from pellucid.testing import FunctionModel
from support.clock import Clock
from support.hubs import named
from support.runs import attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import Tool
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio


class Promising:
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


@pytest.mark.parametrize(("lifetime", "fetches"), [(100.0, 1), (99.0, 2), (0.0, 2), (float("inf"), 1), (None, 2)])
async def test_a_hub_s_own_lifetime_goes_before_ttl(lifetime: float | None, fetches: int) -> None:
    """It is kept to the second, without jitter; `ttl` is for hubs that do not say."""
    clock, hub = Clock(), Promising(lifetime)
    provider = DiscoveryProvider(hub, id="hub", ttl=10, clock=clock)
    with anyio.fail_after(60):
        await provider.list_tools(DiscoveryContext())
        clock.now += 99.5
        await provider.list_tools(DiscoveryContext())
    assert hub.fetches == fetches


async def test_what_a_hub_says_of_a_refresh_is_on_the_span_of_the_refresh(telemetry: Captured) -> None:
    """Not on that of the run which set it off, whose discovery made no round trip."""
    clock, hub = Clock(), Promising(lifetime=10)
    provider = DiscoveryProvider(hub, id="hub", stale_while_revalidate=100, clock=clock)
    agent = Agent("a", model=FunctionModel(lambda request: "x"), providers=[provider])
    with anyio.fail_after(60):
        await agent.run("x")
        clock.now += 11
        await agent.run("x")
        while len(telemetry.find("discover_tools")) < 3:
            await checkpoint()
    described = {
        attributes(span)["pellucid.discovery.cache"]: attributes(span).get("hub.fetch")
        for span in telemetry.find(lambda span: span.name == "discover_tools hub" and not span.links)
    }
    assert described == {"miss": 1, "stale": None}
    [refresh] = [span for span in telemetry.find("discover_tools") if span.links]
    assert attributes(refresh)["hub.fetch"] == 2
