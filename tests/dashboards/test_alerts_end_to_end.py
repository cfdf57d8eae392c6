"""Real applications break in every way that an alert is for, and people are told: by our rules and configuration.

All scenes break at the same time and are mended at the same time; windows and waiting times are a twenty-fifth of
those that are shipped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from pellucid import semconv
from pellucid.semconv.budgets import BUDGET_NAME
from pellucid.semconv.scores import EVALUATION_NAME
from pellucid_dashboards.names import label, series
from pellucid_dashboards.rules import Record, Thresholds, all_groups
from pellucid_dashboards.rules.upkeep import SERVICES
from pellucid_exporters.alerting.definition import Context
from support.observatory import TRACES, Observatory, observatory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.alone, pytest.mark.integration, pytest.mark.prometheus]

SCALE: Final = 0.04
THRESHOLDS: Final = Thresholds(
    hanging_after=2.0,
    model_slow=0.4,
    model_slow_min=3.0,
    approvals_wait=150.0,
    external_overdue=50.0,
    durable_due=150.0,
    durable_retrying=150.0,
    tool_failing_min=3.0,
    server_slow_min=5.0,
    server_hanging_after=2.0,
    cache_misses_min=3.0,
    score_objectives=("correct=0.8",),
    dashboard_base="https://grafana.example",
    runbook_base="https://docs.example/runbooks.md",
)
"""Shipped thresholds, except those that cannot be reached within seconds."""

HUB, TOOL = label(semconv.PROVIDER_ID), label(semconv.TOOL_NAME)
MODEL, AGENT = label(semconv.REQUEST_MODEL), label(semconv.AGENT_NAME)
BUDGET = label(BUDGET_NAME)
SCORE = label(EVALUATION_NAME)
PART = label(semconv.TELEMETRY_PART)

ALERTS: Final[Mapping[str, tuple[Mapping[str, str], tuple[str, ...]]]] = {
    "ToolHubSlow": ({HUB: "slow", "burn": "fast", "severity": "page"}, ("Tool hub slow", "%", "objective of 200ms")),
    "ToolHubSilent": ({HUB: "hanging", "severity": "page"}, ("Tool hub hanging", "UTC", "objective is 200ms")),
    "ToolHubFailing": ({HUB: "flaky", "severity": "page"}, ("Tool hub flaky", "%", "limit is 10%")),
    "ToolHubDown": ({HUB: "down", "severity": "page"}, ("Tool hub down", "objective 200ms")),
    "ToolHubCircuitOpen": ({HUB: "breaker"}, ("Tool hub breaker", "open", "objective is 200ms")),
    "ToolCatalogChanging": ({HUB: "flapping"}, ("Tool hub flapping", "times", "limit is 3")),
    "ToolDefinitionsChanged": ({HUB: "rewritten"}, ("Tool hub rewritten", "differ from the lock file", "runs met")),
    "DiscoveryCacheMissStorm": ({HUB: "storm"}, ("Tool hub storm", "%", "limit is 50%")),
    "ToolFailing": ({TOOL: "lookup"}, ("Tool lookup", "%", "limit is 20%")),
    "ModelSlow": ({MODEL: "slow-model"}, ("Model slow-model", "p95 of its calls", "limit is 0.4 s")),
    "ModelFailing": ({MODEL: "bad-model", "severity": "page"}, ("Model bad-model", "%", "limit is 10%")),
    "RunFailing": ({AGENT: "failing", "severity": "page"}, ("Agent failing", "%", "limit is 10%")),
    "TokenBurn": ({MODEL: "dear-model"}, ("Model dear-model", "tokens")),
    "CostBurn": ({MODEL: "dear-model", "severity": "page"}, ("Model dear-model", "US dollars")),
    "BudgetNearlySpent": ({BUDGET: "scene"}, ("Budget scene", "of its model_calls", "limit of this alert is 80%")),
    "ScoreDropped": ({AGENT: "judged", SCORE: "correct"}, ("Agent judged version 7", "score correct", "scores; in")),
    "ScorerFailing": ({SCORE: "sick"}, ("Scorer sick", "%", "NoCatalogue;", "limit is 50%")),
    "ApprovalsWaiting": ({TOOL: "refund"}, ("Tool refund", "1 calls")),
    "ExternalToolStuck": ({TOOL: "survey"}, ("Tool survey", "has owed the result", "or 2 s without")),
    "ExternalToolFailing": ({TOOL: "audit"}, ("Tool audit", "%", "limit is 20%")),
    "ExternalResultsRejected": ({TOOL: "count"}, ("Tool count", "results of its calls", "limit is 3")),
    "RunsNotContinuing": ({AGENT: "orphan", "severity": "page"}, ("Agent orphan", "has been due", "limit is 6 s")),
    "WorkersBehind": ({AGENT: "busy"}, ("Agent busy", "wait for a worker", "limit is 0.4 s")),
    "DurableRunsRetrying": ({AGENT: "patient"}, ("Agent patient", "have failed for", "limit is 6 s")),
    "DurableWorkersDying": ({AGENT: "mortal"}, ("Agent mortal", "taken over", "limit is 3")),
    "AgentProcessBusy": ({"job": "blocked"}, ("blocked is busy", "limit is 0.1 s")),
    "TelemetryDropping": ({"job": "loser", PART: "span"}, ("loser", "span")),
    "ToolServerSlow": ({"job": "served"}, ("Tool server shop-tools", "%", "objective of 200ms")),
    "ToolServerFailing": ({"job": "served", "severity": "page"}, ("Tool server shop-tools", "%", "limit is 20%")),
    "ToolServerHanging": ({"job": "served", TOOL: "survey"}, ("tools/call survey", "objective is 200ms")),
    "MetricLabelsOverflow": ({"job": "crowded"}, ("crowded", "pellucid.hub.listing.duration", "1 of its processes")),
    "TargetMissing": ({"job": "leaver", "missing": "service"}, ("leaver", "gone")),
}
"""Labels of each alert, and words of its summary."""

RECORDED: Final = [rule.name for group in all_groups(Context()) for rule in group.rules if isinstance(rule, Record)]
WITHOUT_TRACE: Final = (
    "AgentProcessBusy",
    "ApprovalsWaiting",
    "BudgetNearlySpent",
    "RunsNotContinuing",
    "ScorerFailing",
    "TelemetryDropping",
    "MetricLabelsOverflow",
    "TargetMissing",
)
WITH_TRACE: Final = [name for name in ALERTS if name not in WITHOUT_TRACE]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observatory]:
    """Run applications that do well for a while, and then break."""
    with observatory(tmp_path_factory.mktemp("observatory"), THRESHOLDS, scale=SCALE) as running:
        prometheus = running.prometheus
        exemplars = f'{{__name__=~"{series(semconv.HUB_LISTING_DURATION)}.*", {HUB}="hanging"}}'
        prometheus.until(lambda: prometheus.exemplars(exemplars))
        # Recorded, not only scraped: a service that ends before the rule has run was never there.
        prometheus.until(lambda: prometheus.value(f"count({SERVICES})") == len(running.applications))
        running.go_wrong()
        yield running


@pytest.fixture(scope="module")
def mended(broken: Observatory) -> Observatory:
    """Mend everything, once everybody was told."""
    for name, (labels, _) in ALERTS.items():
        broken.told("firing", {"alertname": name, **labels})
    broken.go_well()
    return broken


def test_who_is_paged_first(broken: Observatory, record_property: Any) -> None:
    """A hub that hangs is named while it hangs, with its objective, and with a trace that the collector has."""
    alert = broken.told("firing", {"alertname": "ToolHubSilent", HUB: "hanging"}, annotation="trace_id")
    seconds = time.monotonic() - broken.broken_at
    record_property("seconds from hanging to the page", round(seconds, 1))
    assert broken.has_trace(alert["annotations"]["trace_id"])
    hanging = f'{series(semconv.DISCOVERY_INFLIGHT)}{{{HUB}="hanging"}}'
    broken.prometheus.until(lambda: broken.prometheus.value(hanging) == 1)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_reaches_people(broken: Observatory, name: str) -> None:
    """A message of each alert has its subject, the value, the objective or limit, and links."""
    labels, words = ALERTS[name]
    told = broken.told("firing", {"alertname": name, **labels})
    annotations = told["annotations"]
    if HUB in labels:
        owner = "payments" if labels[HUB] == "slow" else "unassigned"
        assert told["labels"]["owner"] == owner
    for word in words:
        assert word in annotations["summary"]
    assert "error" not in annotations["summary"].lower()  # a template that failed
    assert annotations["runbook_url"] == f"https://docs.example/runbooks.md#{name.lower()}"
    assert annotations["dashboard_url"].startswith("https://grafana.example/d/pellucid-")


def test_a_broken_hub_pages_once(mended: Observatory) -> None:
    """A broken hub pages once: its alert alone tells of runs that got no tools, while other runs that fail page."""
    failing = [dict(labels) for labels in mended.last_told() if ("alertname", "RunFailing") in labels]
    assert {labels[AGENT] for labels in failing} == {"failing", "patient"}
    without_tools = "pellucid:runs_failed_in_discovery:increase10m"
    hubs = mended.prometheus.query(f"last_over_time({without_tools}[10m])")
    assert {"down", "flaky", "breaker"} <= {each["metric"][AGENT] for each in hubs}


@pytest.mark.parametrize("name", WITH_TRACE)
def test_an_alert_has_a_trace(broken: Observatory, name: str) -> None:
    """A message has a link to a trace that the collector has."""
    labels, _ = ALERTS[name]
    # On a busy machine the first message goes out before the relay has asked for the trace; the next one has it.
    annotations = broken.told("firing", {"alertname": name, **labels}, annotation="trace_url")["annotations"]
    assert annotations["trace_url"] == f"{TRACES}/trace/{annotations['trace_id']}"
    assert broken.has_trace(annotations["trace_id"])


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_over_when_things_are_well_again(mended: Observatory, name: str) -> None:
    """People are told when an alert is over."""
    labels, _ = ALERTS[name]
    mended.prometheus.until(lambda: mended.is_over({"alertname": name, **labels}), timeout=300.0)


STILL_FIRING: Final = 'ALERTS{alertstate="firing", alertname!="Watchdog", burn!="steady"}'


def test_nothing_is_left(mended: Observatory) -> None:
    """No alert fires once all is well again, except those of budgets, which look at 6 h."""
    mended.prometheus.until(lambda: not mended.prometheus.query(STILL_FIRING), timeout=300.0)
    mended.until_over(("burn", "steady"))


def test_nobody_is_told_of_what_is_normal(mended: Observatory) -> None:
    """No alert has ever fired, or been told, of the application that did well all the time."""
    assert mended.prometheus.value('count(pellucid_compose_duration_seconds_count{job="normal"})')
    assert mended.prometheus.query('last_over_time(ALERTS{job="normal", alertstate="firing"}[10m])') == []
    assert [labels for labels in mended.last_told() if ("job", "normal") in labels] == []


def test_each_alert_that_there_is_has_a_scene(broken: Observatory) -> None:
    """Each alert that the rules have on services has a scene here; those on the stack are in `test_stack_alerts.py`."""
    groups = broken.prometheus.api("rules", type="alert")["groups"]
    of_services = [group for group in groups if group["name"] != "pellucid-stack"]
    assert {rule["name"] for group in of_services for rule in group["rules"]} == set(ALERTS)


@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_series_has_data(mended: Observatory, name: str) -> None:
    """Each recording rule has data: one with a misspelt name in its expression would record nothing."""
    found = f"last_over_time({name}[10m])"
    mended.prometheus.until(lambda: mended.prometheus.query(found), timeout=300.0)  # a week begins two hours ago
