"""Old lists of hubs that are served instead of new ones, and the telemetry of both."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import Agent, DiscoveryContext, DiscoveryError, DiscoveryProvider, Reliability, Tool, gated_tools, semconv
from pellucid.events import ToolsCatalogStale, ToolsDiscoveryPending
from pellucid.reliability import Rule, fallback, last_known_catalog
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters.testing import Captured, capture
from support.clock import SOON, Clock, pass_time
from support.discovery import CTX, HangingHub, agent_of, ask, caches, outcomes, until
from support.hubs import PromisingHub, named, names
from support.late_hub import Late, Talk, background, caches_in_runs, late
from support.runs import attributes, ending, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_stale_while_revalidate_serves_the_old_list_and_refreshes_once() -> None:
    """`stale_while_revalidate` serves the old list at once while one background fetch brings the new one."""
    clock = Clock()
    hub = FakeHub(lambda number: named(f"v{number}"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, stale_while_revalidate=100, clock=clock)
    with capture() as telemetry, anyio.fail_after(60):
        await ask(telemetry, provider)
        clock.now += 11
        hub.latency = 0.1
        assert [await ask(telemetry, provider) for _ in range(3)] == [["v1"]] * 3
        while caches(telemetry)["miss"] < 2:
            await anyio.lowlevel.checkpoint()
        assert await ask(telemetry, provider) == ["v2"]
    assert len(hub.calls) == 2
    assert caches(telemetry) == {"miss": 2, "stale": 3, "hit": 1}
    (refresh,) = [span for span in telemetry.spans if span.links]
    assert refresh.parent is None


async def test_stale_if_error_serves_the_old_list_and_says_so() -> None:
    """`stale_if_error` serves an old list when a fetch fails, and raises the failure when the list is too old."""
    clock = Clock()
    hub = FakeHub(named("a"), faults=[None, OSError("down"), OSError("down")])
    provider = DiscoveryProvider(hub, id="hub", ttl=10, stale_if_error=50, clock=clock)
    with capture() as telemetry, anyio.fail_after(60):
        await ask(telemetry, provider)
        clock.now += 20
        assert await ask(telemetry, provider) == ["a"]
        assert await ask(telemetry, provider) == ["a"]  # within the back-off the hub is not asked
        assert len(hub.calls) == 2
        clock.now += 50
        with pytest.raises(DiscoveryError, match="down"):
            await ask(telemetry, provider)
    assert caches(telemetry) == {"miss": 2, "stale": 2}
    assert [event.error_type for event in telemetry.events if isinstance(event, ToolsCatalogStale)] == ["OSError"] * 2


@pytest.mark.parametrize("within", [None, SOON, 2 * SOON])
async def test_the_old_list_is_served_when_the_hub_hangs(telemetry: Captured, within: float | None) -> None:
    """`stale_if_error` serves the old list after a timeout too, and the back-off holds."""
    clock = Clock()
    hub = HangingHub(named("a"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, timeout=SOON, stale_if_error=100, clock=clock)
    await ask(telemetry, provider, within=within)
    clock.now += 11
    hub.latency = math.inf
    assert await ask(telemetry, provider, within=within) == ["a"]
    assert await ask(telemetry, provider, within=within) == ["a"]
    assert len(hub.calls) == 2
    told = [event for event in telemetry.events if isinstance(event, ToolsCatalogStale)]
    assert [event.error_type for event in told] == ["timeout", "timeout"]


async def test_the_previous_catalogue_is_used_meanwhile(telemetry: Captured) -> None:
    """The old catalogue is used while a background discovery is pending, and the run is degraded."""
    hub = Late()
    hub.release.set()
    talk = Talk(late(hub, ttl=0))
    await within(talk.agent.warm_up())
    hub.release, hub.tools = anyio.Event(), named("newer")
    assert (await within(talk.agent.run("x"))).degraded == ("late",)
    hub.release.set()
    await within(background(telemetry))
    await within(talk.agent.run("x"))
    assert talk.offered == [["fast", "slow"], ["fast", "newer"]]
    event = next(event for event in telemetry.events if isinstance(event, ToolsDiscoveryPending))
    assert event.tool_count == 1


async def test_the_previous_catalogue_replaces_a_failure_in_the_background(telemetry: Captured) -> None:
    """`stale_if_error` serves the old catalogue after a failure in the background, with an event."""
    hub = Late()
    hub.release.set()
    talk = Talk(late(hub, ttl=0, stale_if_error=600))
    await within(talk.agent.warm_up())
    hub.release, hub.fault = anyio.Event(), ConnectionError("no route")
    await within(talk.agent.run("x"))
    hub.release.set()
    await within(background(telemetry))
    assert (await within(talk.agent.run("x"))).degraded == ()
    assert caches_in_runs(telemetry) == ["pending", "stale"]
    assert talk.offered == [["fast", "slow"]] * 2
    [event] = [event for event in telemetry.events if isinstance(event, ToolsCatalogStale)]
    assert event.error_type == "ConnectionError"


async def test_a_hub_that_never_answered_has_no_last_known_catalogue(telemetry: Captured) -> None:
    """A rule cannot fall back to the empty list of a pending discovery."""
    hub = Late()
    hub.fault = ConnectionError("no route")
    rule = Rule(when=lambda s: s.error is not None, then=fallback(last_known_catalog), kind="degraded")
    talk = Talk(late(hub), reliability=Reliability([rule]))
    await within(talk.agent.run("x"))
    hub.release.set()
    await within(background(telemetry))
    with pytest.raises(DiscoveryError, match="no route"):
        await within(talk.agent.run("x"))


# --- refreshes in the background --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shielded", [True, False])
async def test_a_refresh_that_hangs_is_a_timeout(telemetry: Captured, *, shielded: bool) -> None:
    """A background refresh that hangs ends as a timeout, and a later one can begin."""
    clock = Clock()
    over = anyio.Event()

    class Sticky(HangingHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            if self.calls and shielded:
                pass_time()
                with anyio.CancelScope(shield=True):
                    while not over.is_set():
                        with contextlib.suppress(anyio.get_cancelled_exc_class()):  # asyncio's own knows no shield
                            await over.wait()
            return await super().fetch_catalog(ctx)

    hub = Sticky(named("a"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, timeout=SOON, stale_while_revalidate=100, clock=clock)
    await ask(telemetry, provider)
    clock.now += 11
    hub.latency = math.inf
    assert await ask(telemetry, provider) == ["a"]
    await until(lambda: len(telemetry.spans) == 3)
    (refresh,) = [span for span in telemetry.spans if span.links]
    assert ending(refresh) == ("timeout", "ERROR", "timeout")
    assert semconv.RUN_ID not in attributes(refresh)
    over.set()
    hub.latency = 0
    clock.now += 1
    await until(lambda: not provider._flights)
    assert await ask(telemetry, provider) == ["a"]
    told = [event for event in telemetry.events if isinstance(event, ToolsCatalogStale)]
    assert [event.error_type for event in told] == [None, "timeout"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_refresh_that_ends_with_its_event_loop_is_no_failure(backend: str) -> None:
    """A refresh that its event loop ended causes no back-off."""
    clock = Clock()
    hub = FakeHub(lambda number: named(f"v{number}"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, stale_while_revalidate=10, clock=clock)

    async def once() -> list[str]:
        with anyio.fail_after(60):
            found = names(await provider.list_tools(CTX))
            await anyio.wait_all_tasks_blocked()
            return found

    assert anyio.run(once, backend=backend) == ["v1"]
    clock.now += 11
    hub.latency = math.inf
    assert anyio.run(once, backend=backend) == ["v1"]
    assert hub.cancelled == 1
    clock.now += 20
    hub.latency = 0
    assert anyio.run(once, backend=backend) == ["v3"]


async def test_a_refresh_is_a_request_for_which_no_run_waits(telemetry: Captured) -> None:
    """A background refresh is measured as a request and not as the wait of a run."""
    clock = Clock()
    hub = FakeHub(named("a"))
    runner = agent_of(DiscoveryProvider(hub, id="hub", ttl=10, stale_while_revalidate=10, clock=clock))
    await within(runner.run("x"))
    clock.now += 11
    await within(runner.run("x"))
    await within(telemetry.settle())
    assert outcomes(telemetry) == [("completed", None)] * 2
    waits = [point for point in telemetry.metrics if point.name == semconv.DISCOVERY_DURATION.name]
    assert sorted((point.attributes[semconv.DISCOVERY_CACHE], point.count) for point in waits) == [
        ("miss", 1),
        ("stale", 1),
    ]
    [refresh] = [span for span in telemetry.find("discover_tools") if semconv.RUN_ID not in span.attributes]
    assert refresh.attributes[semconv.DISCOVERY_BACKGROUND] is True


async def test_a_refresh_in_the_background_is_judged_too(telemetry: Captured) -> None:
    """A background refresh is measured against the objective of the hub."""
    clock = Clock()
    provider = DiscoveryProvider(
        FakeHub(named("a")), id="hub", ttl=10, stale_while_revalidate=10, objective=1e-9, clock=clock
    )
    await ask(telemetry, provider)
    clock.now += 11
    await ask(telemetry, provider)
    await until(lambda: len(telemetry.find("discover_tools")) == 3)
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, pellucid_outcome="completed").count == 2
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_discovery_cache="miss").count == 1


async def test_what_a_hub_says_of_a_refresh_is_on_the_span_of_the_refresh(telemetry: Captured) -> None:
    """The attributes that a hub adds to a refresh are on the span of the refresh, not on that of the run."""
    clock, hub = Clock(), PromisingHub(lifetime=10)
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


async def test_a_gate_before_a_cache_succeeds_when_the_hub_does(telemetry: Captured) -> None:
    """A gate that serves a cached or stale list does not change the hub's time of last success."""
    clock = Clock()
    hub = FakeHub(named("a"), faults=[None, OSError("down")])
    cached = DiscoveryProvider(hub, id="hub", ttl=10, stale_if_error=3600, clock=clock)
    gate = gated_tools(cached, lambda tool, ctx: True)
    await ask(telemetry, gate)
    before = telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, pellucid_provider_id=cached.id)
    for advance, cache in ((0, "hit"), (60, "stale")):
        clock.now += advance
        assert await ask(telemetry, gate) == ["a"]
        assert attributes(telemetry.find("discover_tools")[-1])[semconv.DISCOVERY_CACHE] == cache
    assert telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, pellucid_provider_id=cached.id) == before
