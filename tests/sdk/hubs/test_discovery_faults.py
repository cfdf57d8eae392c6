from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Limits,
    ModelError,
    RunCancelled,
    Tool,
    gated_tools,
    semconv,
    tool,
)
from pellucid.errors import DiscoveryBackoff, DiscoveryTimeout, InvalidCatalog
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.clock import SOON, outlast, pass_time
from support.runs import CANCELLED, COMPLETED, TIMEOUT, attributes, ending, span_id, within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

CAUSE = ConnectionError("hub is down")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Answering:
    """A provider that answers whatever a function answers."""

    id = "odd"

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.asked = 0

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Answer."""
        self.asked += 1
        return self._answer()


class Hub:
    """The same as a hub behind a `DiscoveryProvider`, so that every fault is tried with a cache, too."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
        """Answer."""
        return self._answer()


class Later:
    """An awaitable that is no coroutine."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from anyio.lowlevel.checkpoint().__await__()
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def throw() -> Any:
    """Raise at once, before there is anything to wait for."""
    raise CAUSE


async def throw_later() -> Any:
    """Raise when awaited."""
    await anyio.lowlevel.checkpoint()
    raise CAUSE


async def give(value: Any) -> Any:
    """Return later."""
    return value


def broken() -> list[Tool]:
    """Return a list with one tool whose schema is broken."""
    return [Tool(name="broken", run=add.run, input_schema={"type": "object", "properties": {"a": {"type": "strnig"}}})]


@pytest.fixture(params=["provider", "cached"])
def make(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Make a provider of an answer: asked directly, or through a cache."""

    def provider(answer: Callable[[], Any]) -> Any:
        return Answering(answer) if request.param == "provider" else DiscoveryProvider(Hub(answer), id="odd")

    return provider


def agent_of(*providers: Any, **options: Any) -> Agent:
    """Return an agent whose model is not reached."""
    return Agent("a", model=ScriptedModel(), providers=providers, **options)


async def failed(agent: Agent, telemetry: Captured, error_type: str) -> DiscoveryError:
    """Run an agent whose discovery fails; check what is always so, and return the error."""
    with pytest.raises(DiscoveryError) as caught:
        await within(agent.run("x"))
    assert caught.value.provider_id == "odd"
    assert "provider 'odd'" in str(caught.value)
    assert not isinstance(caught.value, ModelError)
    assert "model" not in str(caught.value)
    names = [event.name for event in telemetry.events]
    assert names == ["run.started", "tools.discovery_started", "tools.discovery_failed", "run.failed"]
    for span in telemetry.spans:
        assert ending(span) == ("timeout" if error_type == "timeout" else "failed", "ERROR", error_type)
    assert telemetry.tree() == [("invoke_agent a", [("discover_tools odd", [])])]
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, error_type=error_type).count == 1
    check_telemetry(telemetry)
    return caught.value


# --- what hubs do -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [throw, throw_later, lambda: Later(CAUSE)])
async def test_a_hub_that_raises_fails_the_discovery(telemetry: Captured, make: Any, answer: Callable[[], Any]) -> None:
    """At once or later: the error names the provider, and its cause is the hub's exception itself."""
    error = await failed(agent_of(make(answer)), telemetry, "ConnectionError")
    assert error.__cause__ is CAUSE
    assert "hub is down" in str(error)
    [event] = [event for event in telemetry.events if event.name == "tools.discovery_failed"]
    told: Any = event
    assert (told.provider_id, told.outcome, told.error_type) == ("odd", "failed", "ConnectionError")
    assert "hub is down" in told.error
    assert told.duration_ms > 0


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: None, "returned None instead of a list of tools"),
        (lambda: give(None), "returned None instead of a list of tools"),
        (lambda: give({"tools": []}), "returned an object of type dict instead of a list of tools"),
        (lambda: give("tools"), "returned an object of type str instead of a list of tools"),
        (lambda: (one for one in [add]), "returned an object of type generator instead of a list of tools"),
        (lambda: give([add, "add"]), "its list holds an object of type str instead of a Tool"),
        (lambda: [None], "its list holds None instead of a Tool"),
        (lambda: [add, add], "two tools are called 'add'"),
        (lambda: give([add, add]), "two tools are called 'add'"),
        (broken, "the input schema of tool 'broken' is broken"),
        (lambda: [Tool(name="bad name", run=add.run)], "tool name 'bad name' is not 1 to 64 characters"),
    ],
)
async def test_what_is_no_catalogue_fails_the_discovery(
    telemetry: Captured, make: Any, answer: Callable[[], Any], problem: str
) -> None:
    """It is never taken for an empty one."""
    error = await failed(agent_of(make(answer)), telemetry, "invalid_catalog")
    assert isinstance(error, InvalidCatalog)
    assert problem in str(error)


@pytest.mark.parametrize("answer", [lambda: [add], lambda: (add,), lambda: give([add]), lambda: Later([add])])
async def test_any_list_and_any_awaitable_of_one_is_a_catalogue(make: Any, answer: Callable[[], Any]) -> None:
    """Awaitables need not be coroutines."""
    model = ScriptedModel("x")
    await within(Agent("a", model=model, providers=[make(answer)]).run("y"))
    assert [definition.name for definition in model.requests[0].tools] == ["add"]


async def test_an_empty_list_is_a_catalogue(telemetry: Captured, make: Any) -> None:
    """A hub may have nothing."""
    await within(Agent("a", model=ScriptedModel("x"), providers=[make(list)]).run("y"))
    assert attributes(telemetry.span("discover_tools"))[semconv.DISCOVERY_TOOL_COUNT] == 0


@pytest.mark.parametrize("cached", [True, False])
async def test_a_hub_that_hangs_is_a_timeout(telemetry: Captured, *, cached: bool) -> None:
    """`timeout` of the provider or of the run bounds it; nothing is in flight afterwards."""

    async def hang() -> Sequence[Tool]:
        await anyio.sleep_forever()
        return []

    provider: Any = DiscoveryProvider(Hub(hang), id="odd", timeout=0.02) if cached else Answering(hang)
    agent = agent_of(provider, limits=Limits(discovery_timeout=30.0 if cached else 0.02))
    error = await failed(agent, telemetry, "timeout")
    assert isinstance(error, DiscoveryTimeout)
    assert isinstance(error, TimeoutError)
    assert "0.02 s" in str(error)


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


async def test_a_cancelled_discovery_is_no_failure(telemetry: Captured, make: Any) -> None:
    """It is paired like others, with the outcome `cancelled` and no error type."""
    token = CancelToken()

    async def hang() -> Sequence[Tool]:
        token.cancel("enough")
        await anyio.sleep_forever()
        return []

    with pytest.raises(RunCancelled):
        await within(agent_of(make(hang)).run("x", signal=token))
    assert ending(telemetry.span("discover_tools")) == CANCELLED
    [event] = [event for event in telemetry.events if event.name == "tools.discovery_failed"]
    told: Any = event
    assert (told.outcome, told.error, told.error_type) == ("cancelled", None, None)
    check_telemetry(telemetry)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hub_whose_own_task_was_cancelled_fails_the_discovery(telemetry: Captured, make: Any) -> None:
    """A cancellation that nobody asked the run for is the hub's fault."""
    from asyncio import CancelledError

    async def cancelled() -> Sequence[Tool]:
        raise CancelledError

    with pytest.raises(DiscoveryError, match="provider 'odd'"):
        await within(agent_of(make(cancelled)).run("x"))
    assert ending(telemetry.span("discover_tools"))[0] == "failed"
    check_telemetry(telemetry)


async def test_a_gate_that_raises_stays_shut(telemetry: Captured) -> None:
    """A predicate that cannot decide fails the discovery."""

    def gate(offered: Tool, ctx: DiscoveryContext) -> bool:
        raise CAUSE

    with pytest.raises(DiscoveryError, match=r"gated\(odd\)") as caught:
        await within(agent_of(gated_tools(Answering(lambda: [add]), gate)).run("x"))
    assert caught.value.__cause__ is CAUSE
    check_telemetry(telemetry)


async def test_one_failing_provider_cancels_the_others(telemetry: Captured) -> None:
    """The run fails with the failure, not with a group; every discovery is paired."""
    slow = DiscoveryProvider(FakeHub([add], latency=math.inf), id="slow")

    async def fail_when_both_are_asked() -> Sequence[Tool]:
        while "discover_tools slow" not in telemetry.unended:
            await anyio.lowlevel.checkpoint()
        raise CAUSE

    with pytest.raises(DiscoveryError) as caught:
        await within(agent_of(slow, Answering(fail_when_both_are_asked)).run("x"))
    assert caught.value.__cause__ is CAUSE
    assert ending(telemetry.span("discover_tools slow")) == CANCELLED
    assert ending(telemetry.span("discover_tools odd")) == ("failed", "ERROR", "ConnectionError")
    check_telemetry(telemetry)


async def test_a_failing_hub_is_left_alone_for_a_moment(telemetry: Captured) -> None:
    """The next run fails at once, with what failed before as the cause."""
    hub = FakeHub(faults=[CAUSE])
    agent = agent_of(DiscoveryProvider(hub, id="odd"))
    await failed(agent, telemetry, "ConnectionError")
    with pytest.raises(DiscoveryBackoff, match="will be called again in") as caught:
        await within(agent.run("x"))
    assert caught.value.__cause__ is CAUSE
    assert len(hub.calls) == 1


async def test_a_failure_poisons_nothing(telemetry: Captured) -> None:
    """Once the moment has passed, the hub is asked again and its answer is used."""
    now = 0.0
    provider = DiscoveryProvider(FakeHub([add], faults=[CAUSE]), id="odd", clock=lambda: now)
    agent = Agent("a", model=ScriptedModel("x"), providers=[provider])
    await failed(agent, telemetry, "ConnectionError")
    now = 60.0
    assert (await within(agent.run("x"))).output == "x"


# --- many runs --------------------------------------------------------------------------------------------------------


async def discover_at_once(agent: Agent, identities: Sequence[Identity | None]) -> None:
    """Run an agent for all of these at the same time."""

    async def run(identity: Identity | None) -> None:
        await agent.run("x", identity=identity)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for identity in identities:
                tasks.start_soon(run, identity)


def outcomes(telemetry: Captured) -> list[str]:
    """Return the cache outcomes of all discoveries."""
    return sorted(attributes(span)[semconv.DISCOVERY_CACHE] for span in telemetry.find("discover_tools"))


async def test_runs_at_the_same_time_share_one_fetch(telemetry: Captured) -> None:
    """200 runs, one round trip: one `miss`, and 199 that joined it and link to it."""
    hub = FakeHub([add], latency=0.05)
    agent = Agent("a", model=FunctionModel(lambda request: "x"), providers=[DiscoveryProvider(hub, id="odd")])
    await discover_at_once(agent, [None] * 200)
    assert len(hub.calls) == 1
    assert outcomes(telemetry) == ["joined"] * 199 + ["miss"]
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
    assert outcomes(telemetry) == ["joined"] * 198 + ["miss"] * 2
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


async def test_a_run_s_deadline_does_not_wait_for_the_hub(telemetry: Captured) -> None:
    """It ends the discovery as a timeout."""
    with pytest.raises(TimeoutError):
        await within(agent_of(Answering(outlast), limits=Limits(timeout=SOON)).run("x"))
    assert ending(telemetry.span("discover_tools")) == TIMEOUT
    check_telemetry(telemetry)
