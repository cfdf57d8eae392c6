"""Hubs that hang: whose limit ends the wait, and what shows while it lasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import DiscoveryContext, DiscoveryError, DiscoveryProvider, Limits, Tool, semconv
from pellucid.errors import DiscoveryTimeout
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured, check_telemetry
from support.clock import SOON, outlast, pass_time
from support.discovery import CTX, Answering, AnsweringHub, add, agent_of, ask, failed, until
from support.runs import TIMEOUT, ending, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.mark.parametrize("cached", [True, False])
async def test_a_hub_that_hangs_is_a_timeout(telemetry: Captured, *, cached: bool) -> None:
    """`timeout` of the provider or of the run bounds it; nothing is in flight afterwards."""

    async def hang() -> Sequence[Tool]:
        await anyio.sleep_forever()
        return []

    provider: Any = DiscoveryProvider(AnsweringHub(hang), id="odd", timeout=0.02) if cached else Answering(hang)
    agent = agent_of(provider, limits=Limits(discovery_timeout=30.0 if cached else 0.02))
    error = await failed(agent, telemetry, "timeout")
    assert isinstance(error, DiscoveryTimeout)
    assert isinstance(error, TimeoutError)
    assert "0.02 s" in str(error)


async def test_a_timeout_holds_whatever_the_hub_does() -> None:
    """A hub that shields itself from cancellation cannot hold its callers beyond the timeout."""
    over = anyio.Event()

    class Stubborn:
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            with anyio.CancelScope(shield=True):
                await over.wait()
            return []

    provider = DiscoveryProvider(Stubborn(), id="hub", timeout=0.05)
    with anyio.fail_after(60), pytest.raises(DiscoveryTimeout, match=r"'hub' failed: .* within 0.05 s"):
        await provider.list_tools(CTX)
    over.set()


@pytest.mark.parametrize("limit", [None, 30.0])
async def test_a_timeout_of_the_hub_s_own_is_not_ours(telemetry: Captured, limit: float | None) -> None:
    """It is a timeout in telemetry, and is not said to have taken as long as we would have waited."""
    fault = TimeoutError()
    with pytest.raises(DiscoveryError, match="'hub' failed: TimeoutError") as caught:
        await ask(telemetry, DiscoveryProvider(FakeHub(faults=[fault]), id="hub", timeout=limit))
    assert caught.value.__cause__ is fault
    assert ending(telemetry.span("discover_tools")) == ("timeout", "ERROR", "timeout")


async def test_a_run_s_deadline_does_not_wait_for_the_hub(telemetry: Captured) -> None:
    """It ends the discovery as a timeout."""
    with pytest.raises(TimeoutError):
        await within(agent_of(Answering(outlast), limits=Limits(timeout=SOON)).run("x"))
    assert ending(telemetry.span("discover_tools")) == TIMEOUT
    check_telemetry(telemetry)


async def test_a_hub_that_hangs_is_visible_while_it_does(telemetry: Captured) -> None:
    """Its age is a gauge, for a histogram sees only what has ended."""
    hub = FakeHub([add], latency=math.inf)
    agent = agent_of(DiscoveryProvider(hub, id="odd"))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "x")
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            assert telemetry.value(semconv.DISCOVERY_INFLIGHT, pellucid_provider_id="odd") == 1
            assert telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="odd") > 0
            tasks.cancel_scope.cancel()
        await anyio.lowlevel.checkpoint()
        pass_time()  # a request that nobody waits for goes on for a moment
        while telemetry.value(semconv.DISCOVERY_INFLIGHT, pellucid_provider_id="odd") or not hub.cancelled:
            await anyio.lowlevel.checkpoint()
    assert telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="odd") == 0
    assert hub.cancelled == 1


async def test_a_fetch_is_in_flight_for_as_long_as_it_is(telemetry: Captured) -> None:
    """Its age shows while the hub hangs, and is 0 when it was cancelled."""
    hub = FakeHub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")

    def age() -> float:
        return telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="hub")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, telemetry, provider)
            await until(lambda: hub.calls)
            first = age()
            assert 0 < first < age()
            assert telemetry.value(semconv.DISCOVERY_INFLIGHT, pellucid_provider_id="hub") == 1
            tasks.cancel_scope.cancel()
        await checkpoint()
        pass_time()  # a request that nobody waits for goes on for a moment
        await until(lambda: hub.cancelled)
        await until(lambda: age() == 0)
    assert telemetry.value(semconv.DISCOVERY_INFLIGHT, pellucid_provider_id="hub") == 0
    assert not [point for point in telemetry.metrics if point.name == semconv.DISCOVERY_LAST_SUCCESS.name]
