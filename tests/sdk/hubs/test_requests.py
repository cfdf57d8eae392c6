"""Requests to hubs: their outcomes, times and objectives."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from pellucid import (
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Reliability,
    Tool,
    combined,
    gated_tools,
    semconv,
)
from pellucid.errors import DiscoveryTimeout
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured
from support.clock import Clock
from support.discovery import AGAIN, CAUSE, agent_of, ask, gauge, outcomes
from support.hubs import named
from support.runs import attributes, span_id, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def requests(telemetry: Captured, provider_id: str = "hub") -> list[dict[str, Any]]:
    """Return the attributes of all requests to a hub, from the events of spans."""
    events = [event for span in telemetry.find("discover_tools") for event in span.events]
    facts = [dict(event.attributes or {}) for event in events if event.name == semconv.HUB_LISTING]
    return [each for each in facts if each[semconv.PROVIDER_ID] == provider_id]


async def test_each_request_is_measured_once(telemetry: Captured) -> None:
    """A request that many runs share is measured once, and the wait of each run is measured beside it."""
    hub = FakeHub(named("a"), latency=0.01)
    runner = agent_of(DiscoveryProvider(hub, id="hub"))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(runner.run, "x")
        await runner.run("x")
    assert outcomes(telemetry) == [("completed", None)]
    assert [each[semconv.OUTCOME] for each in requests(telemetry)] == ["completed"]
    waits = [telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_discovery_cache=c) for c in ("joined", "hit")]
    assert [point.count for point in waits] == [19, 1]


async def test_each_attempt_of_a_rule_is_a_request(telemetry: Captured) -> None:
    """Each attempt that a rule makes is a request, also during the back-off."""
    hub = FakeHub(named("a"), faults=[CAUSE, CAUSE])
    runner = agent_of(DiscoveryProvider(hub, id="hub", clock=Clock()), reliability=Reliability(post_decide=[AGAIN]))
    assert (await within(runner.run("x"))).output == "hi"
    assert outcomes(telemetry) == [("completed", None), *[("failed", "ConnectionError")] * 2]
    [span] = telemetry.find("discover_tools")
    assert span.attributes[semconv.DISCOVERY_ATTEMPTS] == 3
    seconds = [each[semconv.HUB_LISTING_SECONDS] for each in requests(telemetry)]
    assert len(seconds) == 3
    assert span.attributes[semconv.HUB_LISTING_SECONDS] == seconds[-1]


async def test_wrappers_count_no_request_twice(telemetry: Captured) -> None:
    """A gate and a combination of a hub count no request of their own."""
    provider = DiscoveryProvider(FakeHub(named("a")), id="hub", objective=0.5)
    both = combined(gated_tools(provider, lambda tool, ctx: True), patience=30.0)
    await within(agent_of(both).run("x"))
    points = [point for point in telemetry.metrics if point.name == semconv.HUB_LISTING_DURATION.name]
    assert [(point.attributes[semconv.PROVIDER_ID], point.count) for point in points] == [("hub", 1)]
    assert gauge(telemetry, semconv.DISCOVERY_OBJECTIVE) == 0.5


class Own:
    """A provider of an application, which makes its requests itself."""

    objective = 60.0

    def __init__(self, id: str = "hub", fault: Exception | None = None, cache: str | None = None) -> None:  # noqa: A002
        self.id = id
        self.fault = fault
        self.cache = cache

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Answer, or fail."""
        if self.cache is not None:
            ctx.report(cache=self.cache)
        if self.fault is not None:
            raise self.fault
        return named("a")


class Sync(Own):
    """A provider of an application with a sync `list_tools`."""

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:  # type: ignore[override]
        """Answer, or fail."""
        if self.fault is not None:
            raise self.fault
        return named("a")


@pytest.mark.parametrize("kind", [Own, Sync])
async def test_providers_of_applications_are_measured_too(telemetry: Captured, kind: type[Own]) -> None:
    """Listings of an application's provider are measured as requests, except cached ones."""
    await within(agent_of(kind()).run("x"))
    with pytest.raises(DiscoveryError):
        await within(agent_of(kind(fault=CAUSE)).run("x"))
    await within(agent_of(Own(cache="hit")).run("x"))
    assert outcomes(telemetry) == [("completed", None), ("failed", "ConnectionError")]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0


class Wrapper:
    """A provider of an application that asks another provider."""

    id = "hub"

    def __init__(self, inner: DiscoveryProvider) -> None:
        self.inner = inner

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Ask the other provider."""
        return await self.inner.list_tools(ctx)


async def test_a_wrapper_of_an_application_makes_no_requests(telemetry: Captured) -> None:
    """A wrapper of an application counts no request of its own, and a refusal by the back-off is none."""
    hub = FakeHub(named("a"), faults=[None, CAUSE])
    runner = agent_of(Wrapper(DiscoveryProvider(hub, id="hub", ttl=0, clock=Clock())))
    await within(runner.run("x"))
    for _ in range(3):
        with pytest.raises(DiscoveryError):
            await within(runner.run("x"))
    assert outcomes(telemetry) == [("completed", None), ("failed", "ConnectionError")]


def test_requests_of_tenants_are_those_of_one_hub(telemetry: Captured) -> None:
    """Requests of several tenants are counted for one hub."""
    runner = agent_of(DiscoveryProvider(FakeHub(named("a")), id="hub"))
    for tenant in ("t1", "t2"):
        runner.run_sync("x", identity=Identity(tenant=tenant))
    assert outcomes(telemetry) == [("completed", None)] * 2


# --- what is measured of a hub ----------------------------------------------------------------------------------------


async def test_what_is_known_of_a_hub_is_exported(telemetry: Captured) -> None:
    """The objective, address, size and last success of a hub are exported with the first discovery."""
    hub = FakeHub(named("a", "b"))
    vars(hub).update(server_address="hub.example.com", server_port=8443)
    await ask(telemetry, DiscoveryProvider(hub, id="hub", objective=0.2))
    assert telemetry.value(semconv.DISCOVERY_OBJECTIVE, pellucid_provider_id="hub") == 0.2
    assert telemetry.value(semconv.CATALOG_SIZE, pellucid_provider_id="hub") == 2
    assert telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, pellucid_provider_id="hub") > 1.7e9
    found = attributes(telemetry.span("discover_tools hub"))
    assert (found[semconv.SERVER_ADDRESS], found[semconv.SERVER_PORT]) == ("hub.example.com", 8443)


async def test_what_is_declared_about_a_hub_is_exported(telemetry: Captured) -> None:
    """The SLO of a hub is a gauge, and its owner and runbook are labels of another one."""
    declared: dict[str, Any] = {
        "objective": 0.1,
        "slo": 0.99,
        "owner": "payments",
        "runbook": "https://wiki.example/hub",
    }
    hub = DiscoveryProvider(FakeHub(named("a")), id="hub", **declared)
    await ask(telemetry, hub)
    assert gauge(telemetry, semconv.HUB_SLO) == 0.99
    labels = {"pellucid_hub_owner": "payments", "pellucid_hub_runbook": "https://wiki.example/hub"}
    assert telemetry.value(semconv.HUB_INFO, pellucid_provider_id="hub", **labels) == 1


@pytest.mark.parametrize("options", [{"slo": 0.99}, {"slo": 1.0, "objective": 1.0}, {"slo": 0, "objective": 1.0}])
async def test_an_slo_is_a_share_beside_an_objective(options: dict[str, Any]) -> None:
    """A provider is refused if its SLO is no share below 1 or has no objective."""
    with pytest.raises(ConfigError, match=r"provider 'hub': slo=\S+ must be a share below 1 beside an objective"):
        agent_of(DiscoveryProvider(FakeHub(), id="hub", **options))


@pytest.mark.telemetry(fixed=True)
@pytest.mark.parametrize(("objective", "over"), [(0.0009, 1), (0.001, 0)])
async def test_requests_over_the_objective_are_counted(telemetry: Captured, objective: float, over: int) -> None:
    """A request over the objective is counted, and one that takes exactly the objective is not."""

    class Immediate:
        """A hub that the event loop cannot delay: its delay is measured by the real clock."""

        async def fetch_catalog(self, ctx: DiscoveryContext) -> list[Tool]:
            return named("a")

    provider = DiscoveryProvider(Immediate(), id="hub", objective=objective)
    await ask(telemetry, provider)
    await ask(telemetry, provider)
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == over
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, pellucid_provider_id="hub").count == 1
    for cache in ("miss", "hit"):
        assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_discovery_cache=cache).count == 1


async def test_nothing_is_over_an_objective_that_nobody_declared(telemetry: Captured) -> None:
    """A hub without an objective has no counter of requests over it."""
    await ask(telemetry, DiscoveryProvider(FakeHub(named("a")), id="hub"))
    with pytest.raises(LookupError, match="0 points"):
        telemetry.value(semconv.HUB_OVER_OBJECTIVE)


async def test_a_round_trip_that_fails_or_hangs_is_judged_too(telemetry: Captured) -> None:
    """A request that times out counts as over the objective, with its error and an exemplar of its span."""
    hub = FakeHub(named("a"), latency=math.inf)
    with pytest.raises(DiscoveryTimeout):
        await ask(telemetry, DiscoveryProvider(hub, id="hub", objective=0.001, timeout=0.05))
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, error_type="timeout") == 1
    (point,) = [point for point in telemetry.metrics if point.name == semconv.HUB_OVER_OBJECTIVE.name]
    assert [exemplar.span_id for exemplar in point.exemplars] == [span_id(telemetry.span("discover_tools"))]


async def test_any_answer_ends_the_silence(telemetry: Captured) -> None:
    """An error or a refused connection ends the time without an answer, and a timeout does not."""
    hub = FakeHub(named("a"), faults=[None, None, CAUSE], latency=math.inf)
    runner = agent_of(DiscoveryProvider(hub, id="hub", ttl=0, timeout=0.02, clock=Clock()), reliability=None)
    with pytest.raises(DiscoveryError):
        await within(runner.run("x"))
    assert outcomes(telemetry) == [("timeout", "timeout")]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) > 0
    hub.latency = 0
    retrying = agent_of(DiscoveryProvider(hub, id="hub", ttl=0, clock=Clock()))
    await within(retrying.run("x"))
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0
    with pytest.raises(DiscoveryError):
        await within(retrying.run("x"))
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0
    assert outcomes(telemetry)[-1] == ("timeout", "timeout")


async def test_slow_answers_in_a_row_are_counted(telemetry: Captured) -> None:
    """Slow answers in a row are counted, and an answer within the objective resets the count."""
    hub = FakeHub(named("a"), latency=0.15)
    runner = agent_of(DiscoveryProvider(hub, id="hub", ttl=0, objective=0.1))
    for streak in (1, 2, 3):
        await within(runner.run("x"))
        assert gauge(telemetry, semconv.HUB_STREAK) == streak
    hub.latency = 0
    await within(runner.run("x"))
    assert gauge(telemetry, semconv.HUB_STREAK) == 0
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == 3


async def test_a_busy_process_does_not_blame_its_hub(telemetry: Captured) -> None:
    """The time for which the event loop stands still does not count against the hub's objective."""

    async def compute() -> None:
        time.sleep(0.3)  # noqa: ASYNC251  (as code does that has a lot to compute)

    class Quick(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(compute)
            return await super().fetch_catalog(ctx)

    await within(agent_of(DiscoveryProvider(Quick(named("a")), id="hub", objective=0.1)).run("x"))
    [request] = requests(telemetry)
    assert request[semconv.HUB_LISTING_SECONDS] >= 0.3
    assert request[semconv.WAKEUP_DELAY_SECONDS] >= 0.25
    assert request[semconv.HUB_LATE] is False
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == 0
    assert telemetry.histogram(semconv.WAKEUP_DELAY).count == 1
