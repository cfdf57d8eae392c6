"""Dashboard `Overview`: state of the agents, and current problems."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid_dashboards.explore import TRACED
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.links import dashboard_link, traces_link
from pellucid_dashboards.grafana.panels import (
    ALERT_STATES,
    Column,
    Panel,
    Query,
    as_legend,
    lines,
    percentiles,
    rows,
    states,
    tiles,
)
from pellucid_dashboards.grafana.queries import (
    AGENT,
    MADE,
    SERVICE,
    SHOWN,
    alerts,
    calls,
    grouped,
    mean,
    or_none,
    quantile,
    rate,
    select,
    share,
    total,
)
from pellucid_dashboards.names import series
from pellucid_dashboards.promql import BROKEN_REQUESTS, FAILED, NOT_HALTED, SUCCEEDED, approvals_pending, by

UID: Final = "pellucid-overview"
_NAMES: Final = (
    "ToolHub.*",
    "ToolServer.*",
    "ToolCatalogChanging",
    "ToolDefinitionsChanged",
    "DiscoveryCacheMissStorm",
    "ToolFailing",
    "ModelSlow",
    "ModelFailing",
    "RunFailing",
    "TokenBurn",
    "CostBurn",
    "BudgetNearlySpent",
    "ScoreDropped",
    "ScorerFailing",
    "ApprovalsWaiting",
    "External.*",
    "RunsNotContinuing",
    "WorkersBehind",
    "DurableRunsRetrying",
    "DurableWorkersDying",
    "AgentProcessBusy",
    "TelemetryDropping",
    "MetricLabelsOverflow",
    "TargetMissing",
    "Collector(QueueFull|Refusing|Failing)",
    "Prometheus(NotificationsFailing|RulesFailing|DiskFilling|DiskFailing)",
    "ConfigReloadFailing",
    "AlertmanagerFailing",
    "TracesDiskFilling",
)
ALERTS: Final = f'alertname=~"{"|".join(_NAMES)}"'
"""Alerts of the shipped rules, but for `Watchdog`, which always fires."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Overview`."""
    return assemble(
        UID,
        "Pellucid / Overview",
        "How do the agents do, and what is wrong now?",
        [
            Shelf(panels=[_wrong()], height=5),
            Shelf(panels=[_alerts()], height=4),
            Shelf(panels=[_outcomes(), _durations()]),
            Shelf(panels=[_cost(), _tokens()]),
            Shelf(panels=[_agents()]),
        ],
        chosen_by=["agent", TRACED],
        alerts=(ALERTS, SERVICE),
    )


def _wrong() -> Panel:
    provider = (semconv.PROVIDER_ID,)
    p95 = quantile(0.95, semconv.HUB_LISTING_DURATION, SERVICE, by=provider)
    objective = grouped("max", select(series(semconv.DISCOVERY_OBJECTIVE), SERVICE), provider)
    firing = select("ALERTS", ALERTS, SERVICE, 'alertstate="firing"')
    waiting = grouped("sum", approvals_pending(by(semconv.TOOL_NAME), SERVICE), ())
    columns = [
        Column(name="Alerts firing", expr=or_none(f"count({firing})"), unit="none", red=1),
        Column(
            name="Runs failed",
            expr=share(
                calls(semconv.AGENT_DURATION, SERVICE, AGENT, FAILED, NOT_HALTED),
                calls(semconv.AGENT_DURATION, SERVICE, AGENT),
            ),
            unit="percentunit",
            red=0.05,
        ),
        Column(name="Model calls failed", expr=_failed(semconv.OPERATION_DURATION), unit="percentunit", red=0.05),
        Column(
            name="Tool calls failed",
            expr=share(
                calls(semconv.TOOL_DURATION, SERVICE, AGENT, FAILED, MADE),
                calls(semconv.TOOL_DURATION, SERVICE, AGENT, MADE),
            ),
            unit="percentunit",
            red=0.05,
        ),
        Column(
            name="Hub requests failed",
            expr=share(
                calls(semconv.HUB_LISTING_DURATION, SERVICE, BROKEN_REQUESTS),
                calls(semconv.HUB_LISTING_DURATION, SERVICE),
            ),
            unit="percentunit",
            red=0.05,
        ),
        Column(name="Hubs over objective", expr=or_none(f"count({p95} > {objective})"), unit="none", red=1),
        Column(name="Approvals waiting", expr=or_none(waiting), unit="none"),
        Column(name="Telemetry lost", expr=or_none(rate(semconv.TELEMETRY_DROPPED, SERVICE)), unit="ops", red=0.001),
    ]
    links = {
        "Runs failed": dashboard_link("Runs and models", "pellucid-runs-and-models"),
        "Model calls failed": dashboard_link("Runs and models", "pellucid-runs-and-models"),
        "Tool calls failed": dashboard_link("Tools", "pellucid-tools"),
        "Hub requests failed": dashboard_link("Tool hubs", "pellucid-tool-hubs"),
        "Hubs over objective": dashboard_link("Tool hubs", "pellucid-tool-hubs"),
        "Approvals waiting": dashboard_link("Tools", "pellucid-tools"),
        "Telemetry lost": dashboard_link("Telemetry health", "pellucid-telemetry-health"),
    }
    return tiles("What is wrong now", "What is wrong now, and on which dashboard is it explained?", columns, links)


def _failed(metric: semconv.Metric) -> str:
    return share(calls(metric, SERVICE, FAILED), calls(metric, SERVICE))


def _alerts() -> Panel:
    return states(
        "Alerts",
        "Which alert is pending or firing, and since when?",
        ALERT_STATES,
        Query(expr=or_none(alerts(ALERTS, SERVICE, by=("alertname",)), "alertname"), legend="{{alertname}}"),
    )


def _outcomes() -> Panel:
    ended = f"60 * {calls(semconv.AGENT_DURATION, SERVICE, AGENT, SUCCEEDED)}"
    failed = f"60 * {calls(semconv.AGENT_DURATION, SERVICE, AGENT, FAILED, by=(semconv.ERROR_TYPE,))}"
    return lines(
        "Runs by outcome",
        "How many runs end in a minute, and how many of them fail with which error?",
        "cpm",
        Query(expr=ended, legend="without an error"),
        Query(expr=or_none(failed, semconv.ERROR_TYPE), legend=as_legend(semconv.ERROR_TYPE)),
        stacked=True,
    )


def _durations() -> Panel:
    return lines(
        "Duration of runs",
        "How long do users wait for a run to end?",
        "s",
        *percentiles(semconv.AGENT_DURATION, SERVICE, AGENT),
    )


def _cost() -> Panel:
    model = (semconv.REQUEST_MODEL,)
    spent = f"3600 * {rate(semconv.COST, SERVICE, by=model)}"
    return lines(
        "Cost per hour",
        "What do model calls cost in an hour, at the present rate? Calls of unknown price add nothing.",
        "currencyUSD",
        Query(expr=or_none(spent, *model), legend=as_legend(semconv.REQUEST_MODEL)),
        stacked=True,
    )


def _tokens() -> Panel:
    used = total(semconv.TOKEN_USAGE, SERVICE, by=(semconv.TOKEN_TYPE,))
    return lines(
        "Tokens per second",
        "How many tokens go into models, and come out of them?",
        "short",
        Query(expr=used, legend=as_legend(semconv.TOKEN_TYPE)),
        stacked=True,
    )


def _agents() -> Panel:
    agent = (semconv.AGENT_NAME,)
    here = (SERVICE, AGENT)
    runs = calls(semconv.AGENT_DURATION, *here, by=agent, window=SHOWN)
    failed = calls(semconv.AGENT_DURATION, *here, FAILED, NOT_HALTED, by=agent, window=SHOWN)
    p50, p95 = (quantile(share, semconv.AGENT_DURATION, *here, by=agent, window=SHOWN) for share in (0.5, 0.95))
    iterations = mean(semconv.RUN_ITERATIONS, *here, by=agent, window=SHOWN)
    columns = [
        Column(name="Runs per minute", expr=f"60 * {runs}", unit="cpm", decimals=1),
        Column(name="Failed", expr=share(failed, runs), unit="percentunit", red=0.05),
        Column(name="p50", expr=p50, unit="s"),
        Column(name="p95", expr=p95, unit="s"),
        Column(name="Iterations", expr=iterations, unit="none", decimals=1),
    ]
    links = [traces_link(f"{semconv.INVOKE_AGENT} ${{__value.raw}}")]
    question = "Which agent failed or was slow in the time shown? Its name leads to its traces."
    return rows("Agents", question, (semconv.AGENT_NAME, "Agent"), columns, links)
