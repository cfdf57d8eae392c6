"""`DiscoveryProvider` at its edges: time, threads, event loops that end, and hubs that misbehave."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import (
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Tool,
    ToolProvider,
    gated_tools,
    semconv,
)
from pellucid.errors import DiscoveryBackoff, DiscoveryTimeout
from pellucid.events import ToolsCatalogStale
from pellucid.providers import Lister
from pellucid.providers.hub import FIRST_BACKOFF, LONGEST_BACKOFF, backoff
from pellucid.telemetry import Scope, enter_scope, leave_scope
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured
from support.clock import SOON, Clock, pass_time
from support.hubs import named, names
from support.runs import attributes, cancel_itself, ending, span_id

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

CTX = DiscoveryContext()


async def ask(telemetry: Captured, provider: ToolProvider, within: float | None = 30) -> list[str]:
    """Ask within a boundary, as a run does, and return names."""
    scope = Scope(run_id="r1", pipeline=telemetry)
    token = enter_scope(scope)
    try:
        with anyio.fail_after(60):
            return names((await Lister(provider).list(scope, CTX, within)).tools)
    finally:
        leave_scope(token)


class Hub(FakeHub):
    """A hub that hangs, once its latency is infinite, for longer than `SOON`."""

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the catalogue, or hang."""
        if self.latency == math.inf:
            pass_time()
        return await super().fetch_catalog(ctx)


async def until(condition: Any) -> None:
    """Wait until something holds."""
    with anyio.fail_after(60):
        while not condition():
            await checkpoint()


# --- hubs that hang ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [None, SOON, 2 * SOON])
async def test_the_old_list_is_served_when_the_hub_hangs(telemetry: Captured, within: float | None) -> None:
    """`stale_if_error` holds for timeouts too, whatever the limit of the run, and so does the back-off."""
    clock = Clock()
    hub = Hub(named("a"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, timeout=SOON, stale_if_error=100, clock=clock)
    await ask(telemetry, provider, within)
    clock.now += 11
    hub.latency = math.inf
    assert await ask(telemetry, provider, within) == ["a"]
    assert await ask(telemetry, provider, within) == ["a"]
    assert len(hub.calls) == 2
    told = [event for event in telemetry.events if isinstance(event, ToolsCatalogStale)]
    assert [event.error_type for event in told] == ["timeout", "timeout"]


async def test_a_hub_that_hangs_is_left_alone_for_a_moment(telemetry: Captured) -> None:
    """A timeout opens the back-off like any failure."""
    hub = Hub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub", timeout=SOON, clock=lambda: 0.0)
    with pytest.raises(DiscoveryTimeout, match=r"'hub' failed: the hub did not answer within 20 s"):
        await ask(telemetry, provider)
    with pytest.raises(DiscoveryBackoff) as caught:
        await ask(telemetry, provider)
    assert caught.value.retry_after == 0.5
    assert len(hub.calls) == 1


@pytest.mark.parametrize("limit", [None, 30.0])
async def test_a_timeout_of_the_hub_s_own_is_not_ours(telemetry: Captured, limit: float | None) -> None:
    """It is a timeout in telemetry, and is not said to have taken as long as we would have waited."""
    fault = TimeoutError()
    with pytest.raises(DiscoveryError, match="'hub' failed: TimeoutError") as caught:
        await ask(telemetry, DiscoveryProvider(FakeHub(faults=[fault]), id="hub", timeout=limit))
    assert caught.value.__cause__ is fault
    assert ending(telemetry.span("discover_tools")) == ("timeout", "ERROR", "timeout")


@pytest.mark.parametrize("shielded", [True, False])
async def test_a_refresh_that_hangs_is_a_timeout(telemetry: Captured, *, shielded: bool) -> None:
    """In the background nobody waits; its span says what happened, and the next one can begin."""
    clock = Clock()
    over = anyio.Event()

    class Sticky(Hub):
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


# --- hubs that misbehave ----------------------------------------------------------------------------------------------


async def test_a_hub_that_cancels_itself_fails(telemetry: Captured, anyio_backend: str) -> None:
    """Neither the caller nor the event loop is cancelled, and the hub is left alone for a moment."""

    class Cancelling:
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            await cancel_itself(anyio_backend)

    provider = DiscoveryProvider(Cancelling(), id="hub")
    with pytest.raises(DiscoveryError, match="'hub' failed: ForeignCancellation"):
        await ask(telemetry, provider)
    with pytest.raises(DiscoveryBackoff):
        await ask(telemetry, provider)
    assert [ending(span)[0] for span in telemetry.spans] == ["failed", "failed"]


@pytest.mark.parametrize("key", [lambda ctx: [], lambda ctx: 1 / 0], ids=["unhashable", "raises"])
async def test_a_key_that_is_none_fails(telemetry: Captured, key: Any) -> None:
    """A key that cannot be had fails the discovery; tenants are never mixed instead."""
    hub = FakeHub(named("a"))
    with pytest.raises(DiscoveryError, match="'hub' failed"):
        await ask(telemetry, DiscoveryProvider(hub, id="hub", key=key))
    assert hub.calls == []


async def test_a_hub_that_is_down_for_long_is_asked_every_now_and_then() -> None:
    """The back-off grows to its bound, and no number overflows however often it failed."""
    clock = Clock()
    hub = FakeHub(lambda _: None)
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        for _ in range(1100):
            with pytest.raises(DiscoveryError):
                await provider.list_tools(CTX)
            clock.now += LONGEST_BACKOFF
        hub.tools = named("a")
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert [backoff(count) for count in (1, 2, 3, 100, 10**6)] == [
        FIRST_BACKOFF,
        1.0,
        2.0,
        LONGEST_BACKOFF,
        LONGEST_BACKOFF,
    ]


# --- callers that come and go -----------------------------------------------------------------------------------------


def run_in_two_loops(
    provider: DiscoveryProvider,
    hub: FakeHub,
    first: Callable[[threading.Thread], Awaitable[None]],
    second: Callable[[], Awaitable[None]],
    backend: str,
) -> None:
    """Run both on a hub that hangs, each in an event loop of its own; `first` starts the thread of the other one."""
    provider.invalidate()
    hub.calls.clear()
    hub.latency = math.inf
    thread = threading.Thread(target=anyio.run, args=(second,), kwargs={"backend": backend})
    anyio.run(first, thread, backend=backend)
    thread.join(20)


def test_a_caller_that_comes_as_the_last_one_leaves_asks_by_itself() -> None:
    """Between joining a fetch and waiting for it, it may have been cancelled for want of anybody who waits."""
    hub = FakeHub(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    joined, left = threading.Event(), threading.Event()
    got: list[list[str]] = []
    caches: list[str | None] = []

    def report(*, cache: str | None = None, link: object = None) -> None:
        caches.append(cache)
        if cache == "joined":
            hub.latency = 0
            joined.set()
            assert left.wait(5)

    async def first(thread: threading.Thread) -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(provider.list_tools, CTX)
                await until(lambda: hub.calls)
                thread.start()
                await anyio.to_thread.run_sync(joined.wait, 5)
                tasks.cancel_scope.cancel()
        left.set()

    async def second() -> None:
        with anyio.fail_after(60):
            got.append(names(await provider.list_tools(DiscoveryContext(report=report))))

    for backend in ("asyncio", "trio"):
        joined.clear()
        left.clear()
        run_in_two_loops(provider, hub, first, second, backend)
    assert got == [["a"]] * 2
    assert caches == ["joined", "miss"] * 2


def test_a_fetch_does_not_end_with_the_event_loop_that_began_it() -> None:
    """Whoever waits in another event loop asks by itself then."""
    hub = FakeHub(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    waiting = threading.Event()
    got: list[list[str]] = []

    async def first(thread: threading.Thread) -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(provider.list_tools, CTX)
                await until(lambda: hub.calls)
                thread.start()
                await anyio.to_thread.run_sync(waiting.wait, 5)
                hub.latency = 0
                tasks.cancel_scope.cancel()

    async def second() -> None:
        async def tell() -> None:
            await anyio.wait_all_tasks_blocked()
            waiting.set()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell)
                got.append(names(await provider.list_tools(CTX)))

    for backend in ("asyncio", "trio"):
        waiting.clear()
        run_in_two_loops(provider, hub, first, second, backend)
    assert got == [["a"]] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_refresh_that_ends_with_its_event_loop_is_no_failure(backend: str) -> None:
    """A hub that was not given the time to answer is not backed off from."""
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


async def test_tenants_that_share_a_key_share_a_list() -> None:
    """`key` says who may share, and `invalidate` takes such a key."""
    hub = FakeHub(lambda number: named(f"v{number}"))
    provider = DiscoveryProvider(hub, id="hub", key=lambda ctx: ctx.identity and ctx.identity.principal)

    async def of(tenant: str, principal: str) -> list[str]:
        return names(await provider.list_tools(DiscoveryContext(identity=Identity(tenant=tenant, principal=principal))))

    with anyio.fail_after(60):
        assert [await of("acme", "ann"), await of("globex", "ann"), await of("acme", "bob")] == [["v1"], ["v1"], ["v2"]]
        provider.invalidate("ann")
        assert [await of("acme", "ann"), await of("acme", "bob")] == [["v3"], ["v2"]]


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


# --- facts ------------------------------------------------------------------------------------------------------------


async def test_what_is_known_of_a_hub_is_exported(telemetry: Captured) -> None:
    """Objective, address, size and time of the last success come with the first discovery."""
    hub = FakeHub(named("a", "b"))
    vars(hub).update(server_address="hub.example.com", server_port=8443)
    await ask(telemetry, DiscoveryProvider(hub, id="hub", objective=0.2))
    assert telemetry.value(semconv.DISCOVERY_OBJECTIVE, pellucid_provider_id="hub") == 0.2
    assert telemetry.value(semconv.CATALOG_SIZE, pellucid_provider_id="hub") == 2
    assert telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, pellucid_provider_id="hub") > 1.7e9
    found = attributes(telemetry.span("discover_tools hub"))
    assert (found[semconv.SERVER_ADDRESS], found[semconv.SERVER_PORT]) == ("hub.example.com", 8443)


async def test_a_gate_before_a_cache_succeeds_when_the_hub_does(telemetry: Captured) -> None:
    """What it lets through of an old catalogue is no round trip: that the hub is down must not be hidden by it."""
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


@pytest.mark.telemetry(fixed=True)
@pytest.mark.parametrize(("objective", "over"), [(0.0009, 1), (0.001, 0)])
async def test_requests_over_the_objective_are_counted(telemetry: Captured, objective: float, over: int) -> None:
    """Exactly, whatever the bounds of the histogram, and from the first one on: by this clock one takes 1 ms."""

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
    """The counter has no series then: what nobody promised is neither kept nor broken."""
    await ask(telemetry, DiscoveryProvider(FakeHub(named("a")), id="hub"))
    with pytest.raises(LookupError, match="0 points"):
        telemetry.value(semconv.HUB_OVER_OBJECTIVE)


async def test_a_round_trip_that_fails_or_hangs_is_judged_too(telemetry: Captured) -> None:
    """By how long it took, with its error; its exemplar leads to its span."""
    hub = FakeHub(named("a"), latency=math.inf)
    with pytest.raises(DiscoveryTimeout):
        await ask(telemetry, DiscoveryProvider(hub, id="hub", objective=0.001, timeout=0.05))
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, error_type="timeout") == 1
    (point,) = [point for point in telemetry.metrics if point.name == semconv.HUB_OVER_OBJECTIVE.name]
    assert [exemplar.span_id for exemplar in point.exemplars] == [span_id(telemetry.span("discover_tools"))]


async def test_a_refresh_in_the_background_is_judged_too(telemetry: Captured) -> None:
    """Nobody waits for it, but it says how fast the hub is."""
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


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"ttl": -1},
        {"timeout": -1},
        {"stale_if_error": -1},
        {"stale_while_revalidate": -1},
        {"max_entries": 0},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """The error names the option."""
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        DiscoveryProvider(FakeHub(), **{"id": "hub", **options})
