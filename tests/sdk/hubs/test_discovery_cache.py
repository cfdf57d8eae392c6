"""`DiscoveryProvider`: one fetch for many, and what it says about it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any

import anyio
import pytest

from pellucid import DiscoveryContext, DiscoveryError, DiscoveryProvider, Identity, Tool, semconv
from pellucid.errors import DiscoveryBackoff, DiscoveryTimeout, InvalidCatalog
from pellucid.events import ToolsCatalogStale, ToolsQuarantined
from pellucid.providers import Lister
from pellucid.telemetry import Scope
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured, capture
from support.clock import Clock, pass_time
from support.hubs import HeldHub, named, names, nothing

pytestmark = pytest.mark.anyio

CTX = DiscoveryContext()


def of(tenant: str) -> DiscoveryContext:
    """Return the context of a tenant."""
    return DiscoveryContext(identity=Identity(tenant=tenant))


async def ask(telemetry: Captured, provider: DiscoveryProvider, ctx: DiscoveryContext = CTX) -> Sequence[Tool]:
    """Ask within a boundary, as a run does."""
    return (await Lister(provider).list(Scope(pipeline=telemetry), ctx, None)).tools


def caches(telemetry: Captured) -> Counter[str]:
    """Count discoveries by where their list came from."""
    spans = [span for span in telemetry.spans if span.name.startswith("discover_tools")]
    return Counter(str((span.attributes or {})[semconv.DISCOVERY_CACHE]) for span in spans)


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


async def test_tenants_do_not_share() -> None:
    """Each tenant has a list of its own, from a fetch of its own."""
    hub = FakeHub(lambda number: named(f"t{number}"))
    provider = DiscoveryProvider(hub, id="hub")
    with anyio.fail_after(60):
        first, second = await provider.list_tools(of("acme")), await provider.list_tools(of("globex"))
        assert names(await provider.list_tools(of("acme"))) == names(first)
    assert names(first) != names(second)
    assert [call.identity.tenant for call in hub.calls if call.identity] == ["acme", "globex"]


async def test_time_to_live_counts_from_completion() -> None:
    """A fetch that takes longer than the time to live is cached afterwards all the same."""
    clock = Clock()

    class Slow(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            clock.now += 100
            return await super().fetch_catalog(ctx)

    hub = Slow(named("a"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, clock=clock)
    with anyio.fail_after(60):
        await provider.list_tools(CTX)
        clock.now += 8.9
        await provider.list_tools(CTX)
        assert len(hub.calls) == 1
        clock.now += 1.2
        await provider.list_tools(CTX)
    assert len(hub.calls) == 2


async def test_a_failure_is_not_cached_but_backed_off_from() -> None:
    """The next callers are told when to come again; then the hub is asked, and the wait doubles if it fails again."""
    clock = Clock()
    fault = ConnectionError("refused")
    hub = FakeHub(named("a"), faults=[fault, fault])
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        with pytest.raises(DiscoveryError, match="'hub' failed: ConnectionError: refused") as failed:
            await provider.list_tools(CTX)
        assert failed.value.__cause__ is fault
        with pytest.raises(DiscoveryBackoff) as refused:
            await provider.list_tools(CTX)
        assert refused.value.__cause__ is fault
        assert refused.value.retry_after == pytest.approx(0.5)
        clock.now += 0.5
        with pytest.raises(DiscoveryError, match="refused"):
            await provider.list_tools(CTX)
        with pytest.raises(DiscoveryBackoff) as again:
            await provider.list_tools(CTX)
        assert again.value.retry_after == pytest.approx(1.0)
        clock.now += 1
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert len(hub.calls) == 3


async def test_stale_while_revalidate_serves_the_old_list_and_refreshes_once() -> None:
    """Callers are served at once while one background fetch, a trace of its own, brings the new list."""
    clock = Clock()
    hub = FakeHub(lambda number: named(f"v{number}"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, stale_while_revalidate=100, clock=clock)
    with capture() as telemetry, anyio.fail_after(60):
        await ask(telemetry, provider)
        clock.now += 11
        hub.latency = 0.1
        assert [names(await ask(telemetry, provider)) for _ in range(3)] == [["v1"]] * 3
        while caches(telemetry)["miss"] < 2:
            await anyio.lowlevel.checkpoint()
        assert names(await ask(telemetry, provider)) == ["v2"]
    assert len(hub.calls) == 2
    assert caches(telemetry) == {"miss": 2, "stale": 3, "hit": 1}
    (refresh,) = [span for span in telemetry.spans if span.links]
    assert refresh.parent is None


async def test_stale_if_error_serves_the_old_list_and_says_so() -> None:
    """A list that is not too old is served when a fetch fails; beyond that the failure is raised."""
    clock = Clock()
    hub = FakeHub(named("a"), faults=[None, OSError("down"), OSError("down")])
    provider = DiscoveryProvider(hub, id="hub", ttl=10, stale_if_error=50, clock=clock)
    with capture() as telemetry, anyio.fail_after(60):
        await ask(telemetry, provider)
        clock.now += 20
        assert names(await ask(telemetry, provider)) == ["a"]
        assert names(await ask(telemetry, provider)) == ["a"]  # within the back-off the hub is not asked
        assert len(hub.calls) == 2
        clock.now += 50
        with pytest.raises(DiscoveryError, match="down"):
            await ask(telemetry, provider)
    assert caches(telemetry) == {"miss": 2, "stale": 2}
    assert [event.error_type for event in telemetry.events if isinstance(event, ToolsCatalogStale)] == ["OSError"] * 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned None instead of a list"),
        ("a", "an object of type str"),
        ({"a": 1}, "an object of type dict"),
        (["a"], "an object of type str instead of a Tool"),
        (named("a", "a"), "two tools are called 'a'"),
        (named("not a name"), "tool name 'not a name'"),
        ([Tool(name="a", run=nothing, input_schema={"type": "objekt"})], "schema of tool 'a' is broken"),
        ([Tool(name="a", run=nothing, input_schema={"type": "object", "$ref": "http://x/y"})], "is broken"),
    ],
)
async def test_garbage_is_an_error_and_never_an_empty_list(answer: object, problem: str) -> None:
    """What is no catalogue is `InvalidCatalog`, and is not cached."""
    hub = FakeHub(lambda _: answer)
    with anyio.fail_after(60), pytest.raises(InvalidCatalog, match=problem):
        await DiscoveryProvider(hub, id="hub").list_tools(CTX)


async def test_quarantine_leaves_only_what_is_broken_out() -> None:
    """With `on_invalid="quarantine"` the good tools stay, and each broken one is told of."""
    broken = Tool(name="b", run=nothing, input_schema={"type": "objekt"})
    provider = DiscoveryProvider(FakeHub([*named("a"), broken]), id="hub", on_invalid="quarantine")
    with capture() as telemetry, anyio.fail_after(60):
        assert names(await ask(telemetry, provider)) == ["a"]
    assert [event.tool_name for event in telemetry.events if isinstance(event, ToolsQuarantined)] == ["b"]


class NotACoroutine:
    """An awaitable that is no coroutine."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools

    def __await__(self) -> Any:
        yield from anyio.lowlevel.checkpoint().__await__()
        return self._tools


async def test_hubs_may_answer_at_once_or_with_any_awaitable() -> None:
    """A list, a coroutine and an object with `__await__` are all understood."""

    class Plain:
        def __init__(self, answer: Sequence[Tool] | Awaitable[Sequence[Tool]]) -> None:
            self.answer = answer

        def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
            return self.answer

    for answer in (named("a"), NotACoroutine(named("a"))):
        with anyio.fail_after(60):
            assert names(await DiscoveryProvider(Plain(answer), id="hub").list_tools(CTX)) == ["a"]


async def test_a_hub_that_raises_at_once_poisons_nothing() -> None:
    """After a synchronous exception the next fetch is a fresh one."""
    clock = Clock()

    class Throwing:
        def __init__(self) -> None:
            self.calls = 0

        def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
            self.calls += 1
            raise RuntimeError("no")

    hub = Throwing()
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        for call in range(3):
            clock.now += 60
            with pytest.raises(DiscoveryError, match="RuntimeError: no"):
                await provider.list_tools(CTX)
            assert hub.calls == call + 1


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


async def test_invalidate_forgets_and_ignores_what_is_under_way() -> None:
    """A fetch that began before `invalidate` is not used for callers after it."""
    hub = FakeHub(lambda number: named(f"v{number}"), latency=0.02)
    provider = DiscoveryProvider(hub, id="hub")
    got: list[list[str]] = []

    async def early() -> None:
        got.append(names(await provider.list_tools(CTX)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(early)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            provider.invalidate()
            assert names(await provider.list_tools(CTX)) == ["v2"]
        assert got == [["v1"]]
        assert names(await provider.list_tools(CTX)) == ["v2"]


async def test_entries_are_bounded() -> None:
    """The least recently used list goes first."""
    hub = FakeHub(named("a"))
    provider = DiscoveryProvider(hub, id="hub", max_entries=2)
    with anyio.fail_after(60):
        for tenant in ("a", "b", "a", "c", "a", "b"):
            await provider.list_tools(of(tenant))
    assert [call.identity.tenant for call in hub.calls if call.identity] == ["a", "b", "c", "b"]


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
