"""Requests to hubs: what a hub did, whoever waited for it, and however late the process noticed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import (
    Agent,
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
from pellucid.reliability import Rule, retry
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters.testing import Captured, CapturedSpan
from support.clock import SOON, Clock, pass_time
from support.hubs import HeldHub, named
from support.runs import ending, within

pytestmark = pytest.mark.anyio

AGAIN = Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(backoff=0.0), kind="again")
CAUSE = ConnectionError("refused")


def agent(*providers: Any, **options: Any) -> Agent:
    """Return an agent that answers at once."""
    return Agent("a", model=FunctionModel(lambda request: "hi"), providers=list(providers), **options)


def requests(telemetry: Captured, provider_id: str = "hub") -> list[dict[str, Any]]:
    """Return the attributes of all requests to a hub, from the events of spans."""
    events = [event for span in telemetry.find("discover_tools") for event in span.events]
    facts = [dict(event.attributes or {}) for event in events if event.name == semconv.HUB_LISTING]
    return [each for each in facts if each[semconv.PROVIDER_ID] == provider_id]


def outcomes(telemetry: Captured, provider_id: str = "hub") -> list[tuple[str, str | None]]:
    """Return outcome and error type of all requests to a hub, as measured."""
    found: list[tuple[str, str | None]] = []
    for point in telemetry.metrics:
        if point.name == semconv.HUB_LISTING_DURATION.name and point.attributes[semconv.PROVIDER_ID] == provider_id:
            labels: Any = point.attributes
            found += [(labels[semconv.OUTCOME], labels.get(semconv.ERROR_TYPE))] * (point.count or 0)
    return sorted(found, key=str)


def gauge(telemetry: Captured, metric: semconv.Metric) -> float:
    """Return a gauge of the hub."""
    return telemetry.value(metric, pellucid_provider_id="hub")


async def until(condition: Any) -> None:
    """Wait until something holds."""
    with anyio.fail_after(60):
        while not condition():
            await checkpoint()


async def leave(telemetry: Captured, runner: Agent, hub: FakeHub) -> None:
    """Run, and leave as soon as the hub has been called; return when the span of the run has ended."""
    calls = len(hub.calls)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run, "x")
            await until(lambda: len(hub.calls) > calls)
            tasks.cancel_scope.cancel()
    await until(lambda: not [name for name in telemetry.unended if name.startswith("invoke_agent")])


# --- what is a request ------------------------------------------------------------------------------------------------


async def test_each_request_is_measured_once(telemetry: Captured) -> None:
    """Hits and joined callers are none; the wait of each run is measured beside it."""
    hub = FakeHub(named("a"), latency=0.01)
    runner = agent(DiscoveryProvider(hub, id="hub"))
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
    """A hub that works at its third call completes a run whose rule allows three, whatever the back-off."""
    hub = FakeHub(named("a"), faults=[CAUSE, CAUSE])
    runner = agent(DiscoveryProvider(hub, id="hub", clock=Clock()), reliability=Reliability(post_decide=[AGAIN]))
    assert (await within(runner.run("x"))).output == "hi"
    assert outcomes(telemetry) == [("completed", None), *[("failed", "ConnectionError")] * 2]
    [span] = telemetry.find("discover_tools")
    assert span.attributes[semconv.DISCOVERY_ATTEMPTS] == 3
    seconds = [each[semconv.HUB_LISTING_SECONDS] for each in requests(telemetry)]
    assert len(seconds) == 3
    assert span.attributes[semconv.HUB_LISTING_SECONDS] == seconds[-1]


async def test_others_are_refused_while_a_rule_tries_again(telemetry: Captured) -> None:
    """The back-off holds for whoever has not been told to try again; refusals are no requests."""
    hub = FakeHub(faults=[CAUSE] * 9)
    provider = DiscoveryProvider(hub, id="hub", clock=Clock())
    with pytest.raises(DiscoveryError):
        await within(agent(provider, reliability=Reliability(post_decide=[AGAIN])).run("x"))
    for runner in (agent(provider), agent(provider, reliability=Reliability(post_decide=[AGAIN]))):
        with pytest.raises(DiscoveryError):
            await within(runner.run("x"))
    assert len(hub.calls) == 3
    assert outcomes(telemetry) == [("failed", "ConnectionError")] * 3


async def test_a_rule_tries_again_through_a_combination(telemetry: Captured) -> None:
    """The back-off of a part does not refuse what the rule of the whole asks for."""
    hub = FakeHub(named("b"), faults=[CAUSE, CAUSE])
    parts = combined(DiscoveryProvider(hub, id="hub", clock=Clock()), Own("other"))
    assert (await within(agent(parts, reliability=Reliability(post_decide=[AGAIN])).run("x"))).output == "hi"
    assert outcomes(telemetry) == [("completed", None), *[("failed", "ConnectionError")] * 2]


async def test_a_refresh_is_a_request_for_which_no_run_waits(telemetry: Captured) -> None:
    """It is measured as a request, and not as a wait."""
    clock = Clock()
    hub = FakeHub(named("a"))
    runner = agent(DiscoveryProvider(hub, id="hub", ttl=10, stale_while_revalidate=10, clock=clock))
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


async def test_wrappers_count_no_request_twice(telemetry: Captured) -> None:
    """A gate and a combination ask the hub once, under the hub's own name and objective."""
    provider = DiscoveryProvider(FakeHub(named("a")), id="hub", objective=0.5)
    both = combined(gated_tools(provider, lambda tool, ctx: True), patience=30.0)
    await within(agent(both).run("x"))
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
    """The same without `async`."""

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:  # type: ignore[override]
        """Answer, or fail."""
        if self.fault is not None:
            raise self.fault
        return named("a")


@pytest.mark.parametrize("kind", [Own, Sync])
async def test_providers_of_applications_are_measured_too(telemetry: Captured, kind: type[Own]) -> None:
    """Their answers and failures are those of a hub, unless they say that a list was cached."""
    await within(agent(kind()).run("x"))
    with pytest.raises(DiscoveryError):
        await within(agent(kind(fault=CAUSE)).run("x"))
    await within(agent(Own(cache="hit")).run("x"))
    assert outcomes(telemetry) == [("completed", None), ("failed", "ConnectionError")]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0


class Wrapper:
    """A provider of an application that asks another one."""

    id = "hub"

    def __init__(self, inner: DiscoveryProvider) -> None:
        self.inner = inner

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Ask the other one."""
        return await self.inner.list_tools(ctx)


async def test_a_wrapper_of_an_application_makes_no_requests(telemetry: Captured) -> None:
    """What it wraps does; and who is refused by the back-off asks nobody."""
    hub = FakeHub(named("a"), faults=[None, CAUSE])
    runner = agent(Wrapper(DiscoveryProvider(hub, id="hub", ttl=0, clock=Clock())))
    await within(runner.run("x"))
    for _ in range(3):
        with pytest.raises(DiscoveryError):
            await within(runner.run("x"))
    assert outcomes(telemetry) == [("completed", None), ("failed", "ConnectionError")]


# --- callers that leave -----------------------------------------------------------------------------------------------


async def test_a_request_goes_on_when_its_callers_leave(telemetry: Captured) -> None:
    """A hub that answers in good time is well, however little time its callers have."""
    hub = HeldHub(named("a"))
    runner = agent(DiscoveryProvider(hub, id="hub", objective=60.0))
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


def requests_of(span: CapturedSpan) -> list[Any]:
    """Return the requests of a span."""
    return [event for event in span.events if event.name == semconv.HUB_LISTING]


async def test_a_hub_that_never_answers_is_not_quick(telemetry: Captured) -> None:
    """Requests that nobody waits for end as abandoned, after the objective or 5 s; the age does not start again."""
    hub = FakeHub(latency=math.inf)
    runner = agent(DiscoveryProvider(hub, id="hub"))
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
    runner = agent(DiscoveryProvider(hub, id="hub", timeout=SOON))
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
    await leave(telemetry, agent(provider), hub)
    provider.invalidate()
    await within(provider.aclose())
    await until(lambda: hub.cancelled)
    await within(telemetry.settle())
    assert outcomes(telemetry) == [("abandoned", None)]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_any_answer_ends_the_silence(telemetry: Captured) -> None:
    """An error and a refused connection are answers; a timeout is none."""
    hub = FakeHub(named("a"), faults=[None, None, CAUSE], latency=math.inf)
    runner = agent(DiscoveryProvider(hub, id="hub", ttl=0, timeout=0.02, clock=Clock()), reliability=None)
    with pytest.raises(DiscoveryError):
        await within(runner.run("x"))
    assert outcomes(telemetry) == [("timeout", "timeout")]
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) > 0
    hub.latency = 0
    retrying = agent(DiscoveryProvider(hub, id="hub", ttl=0, clock=Clock()))
    await within(retrying.run("x"))
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0
    with pytest.raises(DiscoveryError):
        await within(retrying.run("x"))
    assert gauge(telemetry, semconv.HUB_UNANSWERED_AGE) == 0
    assert outcomes(telemetry)[-1] == ("timeout", "timeout")


async def test_slow_answers_in_a_row_are_counted(telemetry: Captured) -> None:
    """An answer within the objective starts anew."""
    hub = FakeHub(named("a"), latency=0.15)
    runner = agent(DiscoveryProvider(hub, id="hub", ttl=0, objective=0.1))
    for streak in (1, 2, 3):
        await within(runner.run("x"))
        assert gauge(telemetry, semconv.HUB_STREAK) == streak
    hub.latency = 0
    await within(runner.run("x"))
    assert gauge(telemetry, semconv.HUB_STREAK) == 0
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == 3


# --- a busy process ---------------------------------------------------------------------------------------------------


async def test_a_busy_process_does_not_blame_its_hub(telemetry: Captured) -> None:
    """While the event loop stands still, the hub is not late: the request is not over the objective."""

    async def compute() -> None:
        time.sleep(0.3)  # noqa: ASYNC251  (as code does that has a lot to compute)

    class Quick(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(compute)
            return await super().fetch_catalog(ctx)

    await within(agent(DiscoveryProvider(Quick(named("a")), id="hub", objective=0.1)).run("x"))
    [request] = requests(telemetry)
    assert request[semconv.HUB_LISTING_SECONDS] >= 0.3
    assert request[semconv.WAKEUP_DELAY_SECONDS] >= 0.25
    assert request[semconv.HUB_LATE] is False
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="hub") == 0
    assert telemetry.histogram(semconv.WAKEUP_DELAY).count == 1


def test_requests_of_tenants_are_those_of_one_hub(telemetry: Captured) -> None:
    """Each key has a request of its own; the hub is one."""
    runner = agent(DiscoveryProvider(FakeHub(named("a")), id="hub"))
    for tenant in ("t1", "t2"):
        runner.run_sync("x", identity=Identity(tenant=tenant))
    assert outcomes(telemetry) == [("completed", None)] * 2
