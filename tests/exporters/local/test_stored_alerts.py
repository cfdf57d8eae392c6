"""Alerts computed from a local store: each shipped rule that a store can tell, in its words."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from pellucid import (
    Agent,
    Budget,
    DiscoveryProvider,
    Identity,
    Message,
    ModelError,
    ModelRequest,
    ModelResponse,
    PellucidError,
    Reliability,
    Tool,
    ToolCall,
    ToolError,
    Usage,
    tool,
)
from pellucid.budgets.accounts import MemoryAccounts
from pellucid.models import Price, PriceTable
from pellucid.reliability import CircuitBreaker
from pellucid.scores import Score, score
from pellucid.scores.record import record
from pellucid.scores.scored import scored_of
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_dashboards.rules import Alert as Rule
from pellucid_dashboards.rules import Thresholds, all_groups
from pellucid_exporters import StoreReader, Telemetry
from pellucid_exporters.alerting.definition import Context, runbook_address
from pellucid_exporters.stored.alerts import UNTOLD, Alert, evaluate
from support.local_store import eventually, storing

LOW = Thresholds(
    slow_min_round_trips=2,
    hanging_after=0.001,
    cache_misses_min=2,
    cache_misses_near=1e-9,
    hub_down_after=0.001,
    model_slow=0.001,
    model_slow_min=2,
    tokens_per_hour=100,
    cost_per_hour=0.001,
    external_failing_min=1,
    score_objectives=("correct=0.9",),
    score_min=2,
)
"""Thresholds that a few runs exceed."""

pytestmark = pytest.mark.anyio

FILLED = re.compile(r"\{\{ (?:with|if) .*?\{\{ end \}\}|\{\{.*?\}\}")
"""Parts of a template of Prometheus that stand for values."""
TIMES = 6


@tool
def look() -> str:
    """Look something up."""
    raise ToolError("there is no index")


async def hang_about(arguments: dict[str, Any], ctx: object) -> str:
    """Take longer than the deadline."""
    await anyio.sleep_forever()
    raise AssertionError


class World:
    """A service in which everything goes wrong, a few times."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry

    async def run(self, name: str, *, times: int = TIMES, many: bool = False, **options: Any) -> None:
        """Run an agent; what fails has failed."""
        model = options.pop("model", None) or FunctionModel(lambda request: "done", name="good")
        agent = Agent(name, model=model, telemetry=self.telemetry, **options)
        for number in range(times):
            with suppress(PellucidError):
                await agent.run("go", identity=Identity(tenant=f"tenant-{number}") if many else None)

    async def break_hubs(self) -> None:
        """Have hubs be slow, down, refused, changing, and asked too often."""
        slow = DiscoveryProvider(FakeHub(), id="slow", objective=1e-9, ttl=0)
        await self.run("slow", providers=[slow])
        fails = [ConnectionError("gone")] * TIMES
        await self.run("down", providers=[DiscoveryProvider(FakeHub(faults=fails), id="down", ttl=0)], many=True)
        breaker = Reliability(breaker=CircuitBreaker(failures=1, cooldown=3600))
        refused = DiscoveryProvider(FakeHub(faults=fails), id="refused", ttl=0)
        await self.run("refused", providers=[refused], reliability=breaker, times=2, many=True)
        changing = DiscoveryProvider(
            FakeHub(lambda call: [Tool(name=f"t{call}", run=hang_about)]), id="changing", ttl=0
        )
        agent = Agent(
            "changing", model=FunctionModel(lambda request: "done"), providers=[changing], telemetry=self.telemetry
        )
        for _ in range(TIMES):
            await agent.run("go")
        await self.run(
            "stormy", providers=[DiscoveryProvider(FakeHub(), id="stormy", max_entries=1, objective=60)], many=True
        )

    async def break_work(self) -> None:
        """Have tools, models and runs fail, and cost much."""
        await self.run("tooled", model=FunctionModel(call_once("look")), tools=[look])
        await self.run("failing", model=FunctionModel(fail, name="bad"))
        await self.run("thinking", model=FunctionModel(think, name="slow-model"))
        await self.run(
            "spending",
            model=FunctionModel(spend, name="dear"),
            prices=PriceTable({"dear": Price(input=10.0, output=10.0)}),
        )
        budget = Budget("spent", model_calls=TIMES, store=MemoryAccounts())
        await self.run("frugal", model=FunctionModel(lambda request: "done"), budget=budget, many=True)
        agent = Agent("scored", version="2", model=FunctionModel(lambda request: "done"), telemetry=self.telemetry)
        for number in range(TIMES):
            score(await agent.run("go"), "correct", value=number / 10, telemetry=self.telemetry)
        for error in ("LookupError", *["timeout"] * TIMES):
            sick = Score(name="sick", by="sick", error_type=error)
            record(scored_of(await agent.run("go")), sick, self.telemetry)
        few = [Score(name="well", error_type="timeout")] * (TIMES - 2)
        for each in (Score(name="well", value=1), *few):
            record(scored_of(await agent.run("go")), each, self.telemetry)
        background = Tool(name="background", run=hang_about, execution="same-invocation", expires_in=0.01)
        await self.run(
            "waiting", model=ScriptedModel(ToolCall("background"), "wait", "done"), tools=[background], times=1
        )


def call_once(name: str) -> Any:
    """Return a model that calls a tool once."""
    return lambda request: "done" if request.messages[-1].role == "tool" else ToolCall(name, {})


def fail(request: ModelRequest) -> str:
    """Refuse."""
    raise ModelError("bad", "overloaded", error_kind="unavailable")


async def think(request: ModelRequest) -> str:
    """Think."""
    await anyio.sleep(0.02)
    return "done"


def spend(request: ModelRequest) -> ModelResponse:
    """Use many tokens."""
    return ModelResponse(message=Message("assistant", "done"), usage=Usage(input_tokens=200_000, output_tokens=1))


async def alerts_of(path: Path) -> tuple[list[Alert], StoreReader]:
    """Let everything go wrong; return what fires meanwhile."""
    with storing(path) as telemetry:
        world, reader = World(telemetry), StoreReader(path)
        await world.break_hubs()
        await world.break_work()
        async with anyio.create_task_group() as tasks:
            hanging = DiscoveryProvider(FakeHub(latency=1e6), id="hanging", objective=1e-9)
            tasks.start_soon(lambda: world.run("hanging", providers=[hanging], times=1))
            with anyio.fail_after(60):
                await anyio.to_thread.run_sync(lambda: eventually(reader.in_flight))
            await anyio.to_thread.run_sync(telemetry.flush, 10)
            found = await anyio.to_thread.run_sync(lambda: [*evaluate(reader, later(), LOW), *failing(reader)])
            tasks.cancel_scope.cancel()
    return sorted(found, key=lambda alert: alert.severity), reader


def later() -> int:
    """Return a time more than a minute from now: a store knows only the minute since when a hub is down."""
    return time.time_ns() + 70 * 10**9


def failing(reader: StoreReader) -> list[Alert]:
    """Return what a hub that is down would be if it were so for less time: the one explains the other."""
    alerts = evaluate(reader, time.time_ns(), replace(LOW, hub_down_after=3600))
    return [alert for alert in alerts if alert.name == "ToolHubFailing"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Alert], StoreReader]:
    """Give what fires in a store of which all alerts fire."""
    return anyio.run(alerts_of, tmp_path_factory.mktemp("alerts") / "store.db")


RULES = [rule for group in all_groups(Context(thresholds=LOW)) for rule in group.rules if isinstance(rule, Rule)]


def test_each_rule_is_evaluated_or_a_store_cannot_tell_it(scene: tuple[list[Alert], StoreReader]) -> None:
    """The names of what fires, and of what is written down with a reason, are those of the shipped rules."""
    fired = {alert.name for alert in scene[0]}
    assert not fired & UNTOLD.keys()
    assert fired | UNTOLD.keys() == {rule.name for rule in RULES}


def test_an_alert_says_what_the_rule_says(scene: tuple[list[Alert], StoreReader]) -> None:
    """Severity, description and runbook are the rule's; the summary is its template filled in."""
    for alert in scene[0]:
        rules = [rule for rule in RULES if (rule.name, rule.severity) == (alert.name, alert.severity)]
        assert any(re.fullmatch(pattern(rule.description), alert.description) for rule in rules), alert.description
        assert any(re.fullmatch(pattern(rule.summary), alert.summary) for rule in rules), alert.summary
        hub = f"pellucid_provider_id={alert.provider_id}" if alert.provider_id else ""
        assert alert.runbook == runbook_address(alert.name, LOW, hub)
    assert ("ToolHubSlow", "page") in {(alert.name, alert.severity) for alert in scene[0]}


def test_a_scorer_that_fails_is_named(scene: tuple[list[Alert], StoreReader]) -> None:
    """With the most frequent error, and how many there are; few errors tell nobody."""
    [found] = [alert.summary for alert in scene[0] if alert.name == "ScorerFailing"]
    errors = "100% of its scores in 1h, 7, have no judgement, mostly timeout; the limit is 50%."
    assert found == f"Scorer sick (shop) fails: {errors}"


def pattern(template: str) -> str:
    """Return the pattern of what a template of Prometheus may become."""
    return ".*".join(map(re.escape, FILLED.split(template)))


def test_an_alert_leads_to_a_span_that_shows_it(scene: tuple[list[Alert], StoreReader]) -> None:
    """The exemplar is in the store, and is about the hub that the alert names."""
    found, reader = scene
    assert [alert.severity for alert in found] == sorted(alert.severity for alert in found)
    for alert in found:
        assert alert.run_id is not None
        spans = {span.span_id: span for span in reader.spans(alert.run_id)}
        span = spans[alert.span_id or ""]
        assert alert.provider_id in {None, span.attributes.get("pellucid.provider.id")}
        if alert.name.endswith("Failing") and alert.name != "ScorerFailing":  # of which the run is well
            assert span.error_type is not None
        assert f"{alert.provider_id or ''}" in alert.summary
        assert "(shop)" in alert.summary
        assert reader.runs()[-1].start - 60 * 10**9 <= alert.since <= span.start  # minutes for hubs that are slow
    by_name = {(alert.name, alert.provider_id): alert for alert in found}
    assert by_name["ToolHubDown", "down"].value == TIMES
    assert by_name["ToolHubFailing", "down"].value == 1.0


def test_quantiles_of_models_are_exact(scene: tuple[list[Alert], StoreReader]) -> None:
    """A model's p95 is the duration of one of its calls."""
    found, reader = scene
    (alert,) = [alert for alert in found if alert.name == "ModelSlow" and "slow-model" in alert.summary]
    spans = [span for run in reader.runs(model="slow-model") for span in reader.spans(run.run_id)]
    durations = [(span.end - span.start) / 1e9 for span in spans if span.end and span.phase == "inference"]
    assert len(durations) == TIMES
    assert alert.value == max(durations)


def test_limits_are_those_of_the_rules(scene: tuple[list[Alert], StoreReader]) -> None:
    """With the shipped thresholds only what fails often enough fires, and nothing does at other times."""
    _, reader = scene
    now = time.time_ns()
    fired = {alert.name for alert in evaluate(reader, now)}
    assert fired == {
        "ToolHubFailing",
        "ToolHubSlow",  # each time, although it was called too seldom for a share
        "ToolHubCircuitOpen",
        "ToolCatalogChanging",
        "ToolFailing",
        "ModelFailing",
        "RunFailing",
        "ScorerFailing",
        "BudgetNearlySpent",  # at any number of calls
    }
    strict = replace(Thresholds(), hub_failing_min=TIMES + 1, run_failing_min=100)
    assert {alert.name for alert in evaluate(reader, now, strict)} == fired - {"ToolHubFailing", "RunFailing"}
    for moment in (now - 3600 * 10**9, now + 86_400 * 10**9):
        assert evaluate(reader, moment, LOW) == []


async def test_a_hub_whose_callers_gave_up_is_silent(tmp_path: Path) -> None:
    """Its requests got no answer, however short the time was that callers waited; that is the one alert on it."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        hub = FakeHub(latency=1e6)
        provider = DiscoveryProvider(hub, id="quiet", objective=1e-9)
        agent = Agent("leaver", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.run, "go")
                while not hub.calls:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await provider.aclose()
        await anyio.to_thread.run_sync(telemetry.flush, 10)
    [alert] = evaluate(StoreReader(path), later(), LOW)
    assert (alert.name, alert.severity, alert.provider_id) == ("ToolHubSilent", "page", "quiet")
    assert "requests without an answer: 1;" in alert.summary


async def test_a_page_on_a_hub_is_the_one_alert_on_it(tmp_path: Path) -> None:
    """A hub that is slow, and that a cache spares nothing, has no tickets beside its page."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        slow = DiscoveryProvider(FakeHub(), id="slow", objective=1e-9, max_entries=1)
        await World(telemetry).run("slow", providers=[slow], many=True)
        await anyio.to_thread.run_sync(telemetry.flush, 10)
    alerts = evaluate(StoreReader(path), time.time_ns(), LOW)
    assert [(alert.name, alert.severity) for alert in alerts if alert.provider_id == "slow"] == [
        ("ToolHubSlow", "page")
    ]
