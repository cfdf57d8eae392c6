"""Patience: a run goes on without a hub that does not answer in time, and gets its tools when it does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import (
    Agent,
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Tool,
    ToolCall,
    combined,
    gated_tools,
    semconv,
)
from pellucid.events import ToolsCatalogStale, ToolsDiscoveryFailed, ToolsDiscoveryPending
from pellucid.reliability import Reliability, Rule, fallback, last_known_catalog
from pellucid.replay import replay
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_dashboards.rules import Thresholds
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import evaluate
from support.hubs import named
from support.local_store import storing
from support.runs import attributes, ending, span_id, within
from support.tapes import recording, tapes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid import ToolProvider
    from pellucid_exporters.testing import Captured, CapturedSpan

pytestmark = pytest.mark.anyio

LATE = "discover_tools late"


class Late:
    """A hub that answers when the test lets it."""

    def __init__(self, *names: str) -> None:
        self.tools = named(*names or ("slow",))
        self.release = anyio.Event()
        self.fault: Exception | None = None
        self.calls = 0
        self.cancelled = anyio.Event()

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tools, or fail, after the release."""
        self.calls += 1
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        if self.fault is not None:
            raise self.fault
        return self.tools


class Talk:
    """An agent beside a fast hub: its model calls a tool once, when `between` has ended, and then answers."""

    def __init__(self, provider: ToolProvider, between: Any = None, **options: Any) -> None:
        self.offered: list[list[str]] = []
        self.instructions: list[str | None] = []
        self.between = between
        fast = DiscoveryProvider(FakeHub(named("fast")), id="fast")
        self.agent = Agent("a", model=FunctionModel(self._answer), providers=[fast, provider], **options)

    async def _answer(self, request: Any) -> Any:
        self.offered.append([definition.name for definition in request.tools])
        self.instructions.append(request.instructions)
        if self.between is None or any(message.tool_calls for message in request.messages):
            return "done"
        await self.between()
        return ToolCall("fast", {}, "call_1")


def late(hub: Any, patience: float | None = 0.05, **options: Any) -> DiscoveryProvider:
    """Return a provider of a late hub."""
    return DiscoveryProvider(hub, id="late", patience=patience, **options)


def in_runs(telemetry: Captured) -> list[ReadableSpan]:
    """Return the discoveries of the late hub that belong to runs."""
    return [span for span in telemetry.find(LATE) if semconv.RUN_ID in attributes(span)]


def caches(telemetry: Captured) -> list[str]:
    """Return their cache outcomes."""
    return [attributes(span)[semconv.DISCOVERY_CACHE] for span in in_runs(telemetry)]


async def background(telemetry: Captured) -> list[ReadableSpan]:
    """Return the round trips in the background, once there are any; a warm-up has no links."""

    def found() -> list[ReadableSpan]:
        return [span for span in telemetry.find(LATE) if span.links and semconv.RUN_ID not in attributes(span)]

    while not found():
        await checkpoint()
    return found()


async def test_a_stream_has_no_events_of_the_round_trip(telemetry: Captured) -> None:
    """It belongs to no run, and may end in another one."""
    hub = Late()

    async def answer_of_the_hub() -> None:
        hub.release.set()
        await background(telemetry)

    with anyio.fail_after(60):
        async with Talk(late(hub), answer_of_the_hub).agent.stream("x") as events:
            runs = {event.run_id async for event in events}
        assert runs == {events.result.run_id}


async def test_the_tools_join_in_the_next_iteration_and_run(telemetry: Captured) -> None:
    """The first answer comes without the late hub; its span ends and links to the round trip, which is measured."""
    hub = Late()

    async def answer_of_the_hub() -> None:
        hub.release.set()
        await background(telemetry)

    provider = late(hub, objective=0.001)
    talk = Talk(provider, answer_of_the_hub)
    first = await within(talk.agent.run("x"))
    second = await within(talk.agent.run("x"))
    assert talk.offered == [["fast"], ["fast", "slow"], ["fast", "slow"], ["fast", "slow"]]
    assert (first.degraded, second.degraded, hub.calls) == (("late",), (), 1)
    assert caches(telemetry) == ["pending", "hit", "hit", "hit"]
    [round_trip], [pending, *_] = await background(telemetry), in_runs(telemetry)
    assert [f"{link.context.span_id:016x}" for link in pending.links] == [span_id(round_trip)]
    assert ending(round_trip) == ("completed", "UNSET", None)
    assert attributes(round_trip)[semconv.DISCOVERY_TOOL_COUNT] == 1
    [event] = [event for event in telemetry.events if isinstance(event, ToolsDiscoveryPending)]
    assert (event.provider_id, event.tool_count, event.run_id) == ("late", 0, first.run_id)
    labels = {"pellucid_provider_id": "late"}
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_discovery_cache="pending", **labels).count == 1
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, **labels).count == 1
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, **labels) == 1
    assert telemetry.histogram(semconv.DISCOVERY_PENDING_DURATION, **labels).count == 1
    assert not [point for point in telemetry.metrics if point.name == semconv.CATALOG_CHANGES.name]


async def test_a_hub_that_answers_in_time_is_waited_for(telemetry: Captured) -> None:
    """Patience changes nothing then: the round trip belongs to the run. A warm-up waits without a limit."""
    hub = Late()
    hub.release.set()
    talk = Talk(late(hub, patience=600))
    assert (await within(talk.agent.run("x"))).degraded == ()
    assert caches(telemetry) == ["miss"]
    warmed = Talk(combined(late(FakeHub(named("slow"), latency=0.01), patience=0), patience=0))
    await within(warmed.agent.warm_up())
    await within(warmed.agent.run("x"))
    assert warmed.offered == [["fast", "slow"]]


async def test_the_previous_catalogue_is_used_meanwhile(telemetry: Captured) -> None:
    """The run is degraded by an old catalogue, too; the next one has the new tools."""
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


async def test_runs_share_the_round_trip(telemetry: Captured) -> None:
    """Several runs go on without one fetch, which outlives them all and has one span."""
    hub = Late()
    provider = late(hub)
    talks = [Talk(provider) for _ in range(5)]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for talk in talks:
                tasks.start_soon(talk.agent.run, "x")
        hub.release.set()
        [round_trip] = await background(telemetry)
    assert hub.calls == 1
    assert caches(telemetry) == ["pending"] * 5
    linked = {f"{span.links[-1].context.span_id:016x}" for span in in_runs(telemetry)}
    assert linked == {span_id(round_trip)}


async def test_a_round_trip_that_a_warm_up_waits_for_is_measured_once(telemetry: Captured) -> None:
    """A run does not wait for it; the warm-up then counts as joined to the round trip, which has a span of its own."""
    hub = Late()
    talk = Talk(late(hub, objective=1e-9))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk.agent.warm_up)
        while not hub.calls:
            await checkpoint()
        assert (await within(talk.agent.run("x"))).degraded == ("late",)
        hub.release.set()
    in_no_run: dict[str, CapturedSpan] = {}
    with anyio.fail_after(60):
        while len(in_no_run) < 2:
            await checkpoint()
            spans = [span for span in telemetry.find(LATE) if semconv.RUN_ID not in span.attributes]
            in_no_run = {span.attributes[semconv.DISCOVERY_CACHE]: span for span in spans}
    assert in_no_run["joined"].links[0].context.span_id == in_no_run["miss"].context.span_id
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, pellucid_provider_id="late").count == 1
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="late") == 1


async def test_a_failure_in_the_background_fails_the_next_discovery(telemetry: Captured) -> None:
    """The failure is raised once, with its cause; afterwards the back-off applies."""
    hub = Late()
    hub.fault = ConnectionError("no route")
    vars(hub.fault)["retry_after"] = 30.0  # longer than this takes on a busy machine
    provider = late(hub)
    await within(Talk(provider).agent.run("x"))
    hub.release.set()
    [round_trip] = await within(background(telemetry))
    assert ending(round_trip) == ("failed", "ERROR", "ConnectionError")
    with pytest.raises(DiscoveryError, match="no route") as raised:
        await within(Talk(provider).agent.run("x"))
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert caches(telemetry) == ["pending", "pending"]
    assert ending(in_runs(telemetry)[1]) == ("failed", "ERROR", "ConnectionError")
    failed = [event for event in telemetry.events if isinstance(event, ToolsDiscoveryFailed)]
    assert [bool(event.run_id) for event in failed if event.provider_id == "late"] == [False, True]
    labels = {"pellucid_provider_id": "late", "error_type": "ConnectionError"}
    assert telemetry.histogram(semconv.HUB_LISTING_DURATION, **labels).count == 1
    assert telemetry.histogram(semconv.DISCOVERY_PENDING_DURATION, **labels).count == 1
    with pytest.raises(DiscoveryError, match="called again in"):
        await within(Talk(provider).agent.run("x"))
    assert hub.calls == 1


async def test_a_failure_in_the_background_can_be_skipped(telemetry: Captured) -> None:
    """`combined(on_error="skip")` continues without the hub then, too."""
    hub = Late()
    hub.fault = ConnectionError("no route")
    talk = Talk(combined(late(hub), on_error="skip"))
    for _ in range(2):
        assert (await within(talk.agent.run("x"))).degraded == ("late",)
        hub.release.set()
        await within(background(telemetry))


async def test_the_previous_catalogue_replaces_a_failure_in_the_background(telemetry: Captured) -> None:
    """`stale_if_error` applies to it; its event has the error."""
    hub = Late()
    hub.release.set()
    talk = Talk(late(hub, ttl=0, stale_if_error=600))
    await within(talk.agent.warm_up())
    hub.release, hub.fault = anyio.Event(), ConnectionError("no route")
    await within(talk.agent.run("x"))
    hub.release.set()
    await within(background(telemetry))
    assert (await within(talk.agent.run("x"))).degraded == ()
    assert caches(telemetry) == ["pending", "stale"]
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


async def test_the_model_is_told_once(telemetry: Captured) -> None:
    """The sentence stays for the rest of the run, so that the prompt cache keeps what follows."""
    hub = Late()

    async def answer_of_the_hub() -> None:
        hub.release.set()
        await background(telemetry)

    talk = Talk(late(hub, tell_model=True), answer_of_the_hub, instructions="Be brief.")
    await within(talk.agent.run("x"))
    await within(talk.agent.run("x"))
    told = "Tools of 'late' may be missing at first: it is slow to list them. They are added when it does."
    assert talk.instructions == [f"Be brief.\n\n{told}"] * 2 + ["Be brief."] * 2


class Own:
    """A provider of the application, which makes round trips and knows no patience."""

    id = "late"

    def __init__(self, hub: Late) -> None:
        self.hub = hub

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """List the tools of the hub."""
        return await self.hub.fetch_catalog(ctx)


def open_gate(provider: ToolProvider) -> ToolProvider:
    """Return a gate that every tool passes."""
    return gated_tools(provider, lambda _tool, _ctx: True)


@pytest.mark.parametrize(
    ("provider", "provider_id", "kind"),
    [
        (lambda hub: late(hub, patience=None), "late", "hub"),
        (Own, "late", "custom"),
        (lambda hub: open_gate(late(hub, patience=None)), "gated(late)", "gated"),
        (lambda hub: open_gate(Own(hub)), "gated(late)", "gated"),
        (lambda hub: combined(Own(hub)), "late", "custom"),
    ],
    ids=["hub", "own", "gated", "gated-own", "combined-own"],
)
async def test_combined_has_patience_with_each_provider(
    telemetry: Captured, provider: Callable[[Late], ToolProvider], provider_id: str, kind: str
) -> None:
    """Those without patience of their own get that of `combined`; the model is told, and tools keep their source."""
    hub = Late()
    talk = Talk(combined(provider(hub), patience=0.05, tell_model=True))
    result = await within(talk.agent.run("x"))
    assert result.degraded == (provider_id,)
    assert talk.instructions[0] is not None
    hub.release.set()
    await within(background(telemetry))
    while "slow" not in talk.offered[-1]:
        await within(talk.agent.run("x"))
    assert (await within(talk.agent.explain("slow"))).visible
    span = telemetry.find(f"discover_tools {provider_id}")[0]
    assert attributes(span)[semconv.PROVIDER_KIND] == kind


async def test_a_hub_that_hangs_costs_patience_once() -> None:
    """Patience counts from the start of the round trip: later discoveries, as in the last iteration, do not wait."""
    provider = late(Late())
    with anyio.fail_after(60):
        assert await provider.list_tools(DiscoveryContext()) == ()
        discovery = provider.list_tools(DiscoveryContext())
        with pytest.raises(StopIteration):
            discovery.send(None)
        await provider.aclose()


async def test_a_pending_discovery_is_replayed_as_it_was() -> None:
    """The replay has the same requests, with the sentence for the model, and is degraded, too."""
    hub = Late()
    provider = late(hub, tell_model=True)
    model = ScriptedModel("done")
    with recording() as (telemetry, listings):
        agent = Agent("a", model=model, providers=[provider], instructions="Be brief.")
        await within(agent.run("x"))
        await provider.aclose()
        await within(background(telemetry))
    [tape] = tapes_of(telemetry, listings)
    for replayed in (Agent("a", model=model, providers=[late(Late())], instructions="Be brief."), None):
        outcome = (await within(replay(replayed, tape))).check()
        assert outcome.result is not None
        assert outcome.result.degraded == ("late",)


async def test_the_alert_on_slow_hubs_counts_the_round_trips(tmp_path: Path) -> None:
    """`ToolHubSlow` fires for a hub that no run waits for, from the round trips in the background."""
    with storing(tmp_path / "runs.db") as telemetry, anyio.fail_after(60):
        for _ in range(2):
            hub, ended = Late(), anyio.Event()
            agent = Agent("a", model=ScriptedModel("done"), providers=[late(hub, objective=0.001)], telemetry=telemetry)
            assert (await agent.run("x")).degraded == ("late",)
            agent.on("tools.discovery_completed", lambda _event: ended.set())  # noqa: B023  (emitted before the next round)
            hub.release.set()
            await ended.wait()
    found = evaluate(StoreReader(tmp_path / "runs.db"), time.time_ns(), Thresholds(slow_min_round_trips=2))
    assert ("ToolHubSlow", "late") in {(alert.name, alert.provider_id) for alert in found}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"patience": -1}, "not negative"),
        ({"patience": float("inf")}, "finite"),
        ({"patience": float("nan")}, "finite"),
        ({"tell_model": True}, "needs patience"),
    ],
)
async def test_bad_options_are_refused(options: dict[str, Any], problem: str) -> None:
    """The error names the provider and the option."""
    with pytest.raises(ConfigError, match=f"'h'.*{problem}"):
        DiscoveryProvider(FakeHub(), id="h", **options)
    with pytest.raises(ConfigError, match=f"combined: .*{problem}"):
        combined(DiscoveryProvider(FakeHub(), id="h"), **options)
