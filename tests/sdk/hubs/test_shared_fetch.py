"""One fetch for all that ask at the same time, from whatever run, task, thread or event loop."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    RunCancelled,
    Tool,
    semconv,
)
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters.testing import Captured, capture, check_telemetry
from support.discovery import CAUSE, CTX, add, agent_of, ask, caches, until
from support.hubs import named, names
from support.runs import CANCELLED, COMPLETED, attributes, ending, span_id

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_two_hundred_callers_share_one_fetch() -> None:
    """One caller makes the round trip, the others join it and link to it."""
    hub = FakeHub(named("a"), latency=0.05)
    provider = DiscoveryProvider(hub, id="hub")
    with capture() as telemetry, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(ask, telemetry, provider)
    assert len(hub.calls) == 1
    assert caches(telemetry) == {"miss": 1, "joined": 199}
    (miss,) = [span for span in telemetry.spans if (span.attributes or {})[semconv.DISCOVERY_CACHE] == "miss"]
    leader = miss.get_span_context()
    assert leader is not None
    assert {link.context.span_id for span in telemetry.spans for link in span.links} == {leader.span_id}


async def discover_at_once(agent: Agent, identities: Sequence[Identity | None]) -> None:
    """Run an agent for all of these at the same time."""

    async def run(identity: Identity | None) -> None:
        await agent.run("x", identity=identity)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for identity in identities:
                tasks.start_soon(run, identity)


async def test_runs_at_the_same_time_share_one_fetch(telemetry: Captured) -> None:
    """200 runs, one round trip: one `miss`, and 199 that joined it and link to it."""
    hub = FakeHub([add], latency=0.05)
    agent = Agent("a", model=FunctionModel(lambda request: "x"), providers=[DiscoveryProvider(hub, id="odd")])
    await discover_at_once(agent, [None] * 200)
    assert len(hub.calls) == 1
    assert caches(telemetry) == {"joined": 199, "miss": 1}
    [miss] = telemetry.find(lambda span: attributes(span).get(semconv.DISCOVERY_CACHE) == "miss")
    joined = telemetry.find(lambda span: attributes(span).get(semconv.DISCOVERY_CACHE) == "joined")
    assert {tuple(link.context.span_id for link in span.links) for span in joined} == {(int(span_id(miss), 16),)}
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_discovery_cache="joined").count == 199
    check_telemetry(telemetry)


async def test_tenants_do_not_share(telemetry: Captured) -> None:
    """Each tenant's catalogue is fetched for it, once."""
    hub = FakeHub([add], latency=0.05)
    agent = Agent("a", model=FunctionModel(lambda request: "x"), providers=[DiscoveryProvider(hub, id="odd")])
    await discover_at_once(agent, [Identity(tenant=tenant) for tenant in ("t1", "t2")] * 100)
    assert sorted(str(ctx.identity and ctx.identity.tenant) for ctx in hub.calls) == ["t1", "t2"]
    assert caches(telemetry) == {"joined": 198, "miss": 2}
    check_telemetry(telemetry)


async def test_a_failing_fetch_fails_all_that_wait_for_it(telemetry: Captured) -> None:
    """Each gets an error of its own, with the same cause."""
    hub = FakeHub(latency=0.05, faults=[CAUSE])
    agent = agent_of(DiscoveryProvider(hub, id="odd"))
    raised: list[DiscoveryError] = []

    async def run() -> None:
        with pytest.raises(DiscoveryError) as caught:
            await agent.run("x")
        raised.append(caught.value)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(run)
    assert len(set(map(id, raised))) == 50
    assert {error.__cause__ for error in raised} == {CAUSE}
    assert len(hub.calls) == 1
    check_telemetry(telemetry)


def test_event_loops_in_several_threads_share_one_fetch() -> None:
    """The cache and the fetch under way are the process's, not the loop's."""
    hub = FakeHub(named("a"), latency=0.2)
    provider = DiscoveryProvider(hub, id="hub")
    ready = threading.Barrier(4)
    got: list[list[str]] = []

    def loop(backend: str) -> None:
        async def main() -> None:
            ready.wait(5)
            with anyio.fail_after(60):
                got.append(names(await provider.list_tools(CTX)))

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=loop, args=(backend,)) for backend in ("asyncio", "trio") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == [["a"]] * 4
    assert len(hub.calls) == 1


# --- callers that leave -----------------------------------------------------------------------------------------------


async def test_a_cancelled_first_caller_takes_nobody_with_it() -> None:
    """The first caller leaves at once; the other 199 get the list, from that fetch."""
    calls, released = 0, anyio.Event()

    class Held:
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            nonlocal calls
            calls += 1
            await released.wait()
            return named("a")

    provider = DiscoveryProvider(Held(), id="hub")
    got: list[Sequence[Tool]] = []
    first = anyio.CancelScope()

    async def lead() -> None:
        with first:
            await provider.list_tools(CTX)

    async def follow() -> None:
        got.append(await provider.list_tools(CTX))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead)
            await anyio.wait_all_tasks_blocked()
            for _ in range(199):
                tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            released.set()
    assert first.cancelled_caught
    assert len(got) == 199
    assert calls == 1


async def test_a_cancelled_run_leaves_the_fetch_to_the_others(telemetry: Captured) -> None:
    """The run that began the fetch leaves at once; the one that joined gets the catalogue."""
    hub = FakeHub([add], latency=0.05)
    agent = Agent("a", model=FunctionModel(lambda request: "x"), providers=[DiscoveryProvider(hub, id="odd")])
    token = CancelToken()

    async def first() -> None:
        with pytest.raises(RunCancelled):
            await agent.run("x", signal=token)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(agent.run, "x")
            while telemetry.unended.count("discover_tools odd") < 2:
                await anyio.lowlevel.checkpoint()
            token.cancel()
    assert (len(hub.calls), hub.cancelled) == (1, 0)
    in_runs = [span for span in telemetry.find("discover_tools") if semconv.RUN_ID in attributes(span)]
    assert sorted(map(ending, in_runs)) == sorted([CANCELLED, COMPLETED])
    check_telemetry(telemetry)


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


def test_a_caller_joins_no_fetch_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the thread that gives it up has not come to take it off the list: it asks once, by itself."""
    hub = FakeHub(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    settle, given_up, asked = provider._settle, threading.Event(), threading.Event()
    reported: list[str | None] = []

    def settle_late(key: Any, flight: Any) -> None:
        if flight.abandoned and not given_up.is_set():
            given_up.set()
            assert asked.wait(60)
        settle(key, flight)

    monkeypatch.setattr(provider, "_settle", settle_late)
    monkeypatch.setattr("pellucid.providers.hub.LINGER", 0)

    async def first(thread: threading.Thread) -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(provider.list_tools, CTX)
                await until(lambda: hub.calls)
                thread.start()
                tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(thread.join)

    async def second() -> None:
        assert await anyio.to_thread.run_sync(given_up.wait, 60)
        hub.latency = 0
        with anyio.fail_after(60):
            await provider.list_tools(DiscoveryContext(report=lambda *, cache=None, link=None: reported.append(cache)))
        asked.set()

    run_in_two_loops(provider, hub, first, second, "asyncio")
    assert reported == ["miss"]


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
