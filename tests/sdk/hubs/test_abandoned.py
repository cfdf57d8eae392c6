"""Fetches whose callers have all left: they go on for a moment, and end."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from pellucid import Agent, DiscoveryError, DiscoveryProvider, semconv
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured, CapturedSpan
from support.clock import SOON, pass_time
from support.discovery import CTX, agent_of, gauge, outcomes, until
from support.hubs import HeldHub, named, names
from support.runs import ending, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_a_fetch_that_nobody_waits_for_goes_on_for_a_moment() -> None:
    """Its answer is cached, so that callers with little time get a list from a hub that takes longer."""
    hub = HeldHub(named("a"))
    provider = DiscoveryProvider(hub, id="hub")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.list_tools, CTX)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        hub.released.set()
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert len(hub.calls) == 1


async def test_a_fetch_that_nobody_waits_for_ends() -> None:
    """A hub is not kept busy for nobody for long; the next caller starts afresh, without a back-off."""
    hub = FakeHub(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.list_tools, CTX)
            tasks.start_soon(provider.list_tools, CTX)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await anyio.lowlevel.checkpoint()
        pass_time()
        while not hub.cancelled:
            await anyio.lowlevel.checkpoint()
        hub.latency = 0
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert len(hub.calls) == 2


async def leave(telemetry: Captured, runner: Agent, hub: FakeHub) -> None:
    """Run, and leave as soon as the hub has been called; return when the span of the run has ended."""
    calls = len(hub.calls)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run, "x")
            await until(lambda: len(hub.calls) > calls)
            tasks.cancel_scope.cancel()
    await until(lambda: not [name for name in telemetry.unended if name.startswith("invoke_agent")])


def requests_of(span: CapturedSpan) -> list[Any]:
    """Return the requests of a span."""
    return [event for event in span.events if event.name == semconv.HUB_LISTING]


async def test_a_request_goes_on_when_its_callers_leave(telemetry: Captured) -> None:
    """A hub that answers in good time is well, however little time its callers have."""
    hub = HeldHub(named("a"))
    runner = agent_of(DiscoveryProvider(hub, id="hub", objective=60.0))
    await leave(telemetry, runner, hub)
    assert outcomes(telemetry) == []
    hub.released.set()
    await until(lambda: outcomes(telemetry))
    assert outcomes(telemetry) == [("completed", None)]
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == 0
    await within(telemetry.settle())
    await within(runner.run("x"))
    caches = [span.attributes[semconv.DISCOVERY_CACHE] for span in telemetry.find("discover_tools")]
    assert caches == ["miss", "miss", "hit"]
    left, request, _ = telemetry.find("discover_tools")
    assert (ending(left)[0], ending(request)[0]) == ("cancelled", "completed")
    assert [len(requests_of(span)) for span in (left, request)] == [0, 1]


async def test_a_hub_that_never_answers_is_not_quick(telemetry: Captured) -> None:
    """Requests that nobody waits for end as abandoned, after the objective or 5 s; the age does not start again."""
    hub = FakeHub(latency=math.inf)
    runner = agent_of(DiscoveryProvider(hub, id="hub"))
    ages: list[float] = []
    for number in range(3):
        await leave(telemetry, runner, hub)
        pass_time()  # on the clock of the event loop
        await until(lambda number=number: hub.cancelled > number)
        ages.append(gauge(telemetry, semconv.HUB_UNANSWERED_AGE))
    await within(telemetry.settle())
    assert outcomes(telemetry) == [("abandoned", None)] * 3
    assert 0 < ages[0] < ages[1] < ages[2]
    assert gauge(telemetry, semconv.DISCOVERY_INFLIGHT) == 0


async def test_a_caller_that_comes_in_time_gets_the_whole_timeout(telemetry: Captured) -> None:
    """It joins the request that was left, which then is a timeout if the hub does not answer."""
    hub = FakeHub(latency=math.inf)
    runner = agent_of(DiscoveryProvider(hub, id="hub", timeout=SOON))
    await leave(telemetry, runner, hub)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def join() -> None:
                with pytest.raises(DiscoveryError):
                    await runner.run("x")

            tasks.start_soon(join)
            await until(lambda: "discover_tools hub" in telemetry.unended)
            await anyio.wait_all_tasks_blocked()
            pass_time()
    await until(lambda: outcomes(telemetry))
    assert outcomes(telemetry) == [("timeout", "timeout")]
    assert len(hub.calls) == 1


async def test_closing_leaves_nothing_behind(telemetry: Captured) -> None:
    """`aclose` ends a request that nobody waits for, also an invalidated one; that is no silence of the hub."""
    hub = FakeHub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    await leave(telemetry, agent_of(provider), hub)
    provider.invalidate()
    await within(provider.aclose())
    await until(lambda: hub.cancelled)
    await within(telemetry.settle())
    assert outcomes(telemetry) == [("abandoned", None)]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0
