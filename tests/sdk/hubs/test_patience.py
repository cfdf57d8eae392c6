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
    combined,
    gated_tools,
    semconv,
)
from pellucid.events import ToolsDiscoveryFailed, ToolsDiscoveryPending
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_dashboards.rules import Thresholds
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import evaluate
from pellucid_replay import replay
from support.hubs import named
from support.late_hub import LATE, Late, Talk, background, caches_in_runs, in_runs, late
from support.local_store import storing
from support.runs import attributes, ending, span_id, within
from support.tapes import recording, tapes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pellucid import ToolProvider
    from pellucid_exporters.testing import Captured, CapturedSpan

pytestmark = pytest.mark.anyio


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
    assert caches_in_runs(telemetry) == ["pending", "hit", "hit", "hit"]
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
    assert caches_in_runs(telemetry) == ["miss"]
    warmed = Talk(combined(late(FakeHub(named("slow"), latency=0.01), patience=0), patience=0))
    await within(warmed.agent.warm_up())
    await within(warmed.agent.run("x"))
    assert warmed.offered == [["fast", "slow"]]


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
    assert caches_in_runs(telemetry) == ["pending"] * 5
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
    assert caches_in_runs(telemetry) == ["pending", "pending"]
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
