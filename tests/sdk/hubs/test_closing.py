"""`aclose` of a provider: what it ends, who is told, and that the provider can be used again."""

from __future__ import annotations

import math

import anyio
import pytest

from pellucid import DiscoveryError, DiscoveryProvider
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured
from support.discovery import CTX, ask, until
from support.hubs import named
from support.late_hub import Late, Talk, background, late
from support.runs import ending, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_closing_ends_what_is_under_way() -> None:
    """`aclose` cancels a fetch; those who wait get an error that names the hub."""
    hub = FakeHub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")

    async def wait() -> None:
        with pytest.raises(DiscoveryError, match="'hub'"):
            await provider.list_tools(CTX)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            await provider.aclose()
        while not hub.cancelled:
            await anyio.lowlevel.checkpoint()


async def test_a_closed_provider_says_so_and_can_be_used_again(telemetry: Captured) -> None:
    """Those who wait are told that it was closed, which is no timeout; the hub is closed too."""
    closed: list[bool] = []

    class Closable(FakeHub):
        async def aclose(self) -> None:
            closed.append(True)

    hub = Closable(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub", timeout=None)

    async def wait() -> None:
        with pytest.raises(DiscoveryError, match="was closed during the fetch"):
            await ask(telemetry, provider)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: hub.calls)
            await provider.aclose()
    assert closed == [True]
    assert ending(telemetry.span("discover_tools"))[0] == "failed"
    hub.latency = 0
    assert await ask(telemetry, provider) == ["a"]


@pytest.mark.parametrize("forgotten", [False, True])
async def test_closing_cancels_the_round_trip(telemetry: Captured, forgotten: bool) -> None:
    """`aclose` ends what continues in the background, also after the provider dropped its catalogues."""
    hub = Late()
    provider = late(hub)
    await within(Talk(provider).agent.run("x"))
    if forgotten:
        provider.invalidate()
    await within(provider.aclose())
    await within(hub.cancelled.wait())
    [round_trip] = await within(background(telemetry))
    assert ending(round_trip) == ("cancelled", "UNSET", None)
