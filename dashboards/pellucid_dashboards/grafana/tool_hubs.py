"""Dashboard `Tool hubs`: slow, silent, failing and changing hubs over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pellucid import semconv
from pellucid.semconv.tool_locks import DEFINITION_CHANGES
from pellucid_dashboards.explore import TRACED
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.links import choice_link, traces_link
from pellucid_dashboards.grafana.panels import (
    ALERT_STATES,
    GREEN,
    OBJECTIVE,
    ORANGE,
    RED,
    Column,
    Panel,
    Query,
    as_legend,
    heat,
    lines,
    percentiles,
    rows,
    states,
)
from pellucid_dashboards.grafana.queries import (
    HUB,
    PROVIDER,
    SERVICE,
    SHOWN,
    WINDOW,
    alerts,
    calls,
    distribution,
    grouped,
    or_none,
    quantile,
    rate,
    select,
    share,
)
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import BROKEN_REQUESTS, BUDGET_SPENT

UID: Final = "pellucid-tool-hubs"

_ALERTS: Final = (
    'alertname=~"ToolHub.*|ToolCatalogChanging|ToolDefinitionsChanged|DiscoveryCacheMissStorm"',
    SERVICE,
    PROVIDER,
)
_BY: Final = (semconv.PROVIDER_ID,)
_LEGEND: Final = as_legend(semconv.PROVIDER_ID)
_HERE: Final = (SERVICE, PROVIDER)


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Tool hubs`."""
    return assemble(
        UID,
        "Pellucid / Tool hubs",
        "Is a tool hub slow, silent, failing or changing, and since when?",
        [
            Shelf(panels=[_hubs()], height=20),
            Shelf(panels=[_alerts(), _breakers()], height=10, title="Alerts, breakers and connections", closed=True),
            Shelf(panels=[_connecting(), _connections()], height=7),
            Shelf(panels=[_latency(), _heat()], height=9, title="Hub $provider", repeat="provider", closed=True),
            Shelf(panels=[_waiting(), _failures()], height=7),
            Shelf(panels=[_cache(), _catalogue(), _budget()], height=7),
        ],
        chosen_by=["hub", TRACED],
        alerts=_ALERTS,
    )


def _gauge(metric: semconv.Metric) -> str:
    return grouped("max", select(series(metric), *_HERE), _BY)


def _hubs() -> Panel:
    p95 = quantile(0.95, semconv.HUB_LISTING_DURATION, *_HERE, by=_BY, window=SHOWN)
    requests = calls(semconv.HUB_LISTING_DURATION, *_HERE, by=_BY, window=SHOWN)
    late = rate(semconv.HUB_OVER_OBJECTIVE, *_HERE, by=_BY, window=SHOWN)
    failed = calls(semconv.HUB_LISTING_DURATION, *_HERE, BROKEN_REQUESTS, by=_BY, window=SHOWN)
    columns = [
        Column(name="State", expr=_state(), unit="none", texts={**ALERT_STATES, 0: ("ok", GREEN)}),
        Column(name="Objective", expr=_gauge(semconv.DISCOVERY_OBJECTIVE), unit="s"),
        Column(
            name="p95",
            expr=p95,
            unit="s",
            links=[traces_link(f"{semconv.DISCOVER_TOOLS} ${{__data.fields.Hub}}")],
        ),
        Column(name="Over objective", expr=f"{late} / ({requests} > 0)", unit="percentunit", red=0.01),
        Column(
            name="Budget spent in 7 d",
            expr=grouped("max", select(BUDGET_SPENT, *_HERE), _BY),
            unit="percentunit",
            red=1,
        ),
        Column(name="Failed", expr=share(failed, requests), unit="percentunit", red=0.05),
        Column(name="Without an answer", expr=_gauge(semconv.HUB_UNANSWERED_AGE), unit="s", red=30),
        Column(name="Since last success", expr=f"time() - {_gauge(semconv.DISCOVERY_LAST_SUCCESS)}", unit="s"),
    ]
    return rows(
        "Hubs",
        "Which hub has an alert, is over its objective, failed, or has not answered for long? Its name chooses it, and"
        " its p95 leads to its traces.",
        (semconv.PROVIDER_ID, "Hub"),
        columns,
        [choice_link("Only this hub", UID, "provider")],
        labels={"alertname": "Alert"},
        sort=["State", "Over objective"],
    )


def _state() -> str:
    """Return the state of each hub by its worst alert, of which there is one, and 0 for a hub without alerts."""
    worst = f"topk by ({label(semconv.PROVIDER_ID)}) (1, {alerts(*_ALERTS, by=('alertname', semconv.PROVIDER_ID))})"
    return f"{worst} or on ({label(semconv.PROVIDER_ID)}) 0 * {_gauge(semconv.HUB_UNANSWERED_AGE)}"


def _alerts() -> Panel:
    return states(
        "Alerts",
        "Which alert of which hub is pending or firing, and since when?",
        ALERT_STATES,
        Query(expr=alerts(*_ALERTS, by=("alertname", semconv.PROVIDER_ID)), legend=f"{_LEGEND}: {{{{alertname}}}}"),
        Query(expr=f"0 * {_gauge(semconv.DISCOVERY_INFLIGHT_AGE)}", legend=_LEGEND),
    )


def _breakers() -> Panel:
    circuit = _gauge(semconv.CIRCUIT_STATE)
    return states(
        "Circuit breakers",
        "Which hub is not asked, because its circuit breaker is open?",
        {-1: ("never opened", "text"), 0: ("closed", GREEN), 1: ("half-open", ORANGE), 2: ("open", RED)},
        Query(expr=f"{circuit} or 0 * {_gauge(semconv.DISCOVERY_INFLIGHT_AGE)} - 1", legend=_LEGEND),
    )


def _connecting() -> Panel:
    connects = percentiles(semconv.MCP_CONNECT_DURATION, SERVICE, by=_BY, shares=(0.5, 0.95))
    return lines(
        "Time to connect to MCP servers",
        "How long does it take to reach each MCP server and shake hands, before a listing begins? Of Pellucid's own"
        " providers and of instrumented frameworks; of all hubs, because a gate has another name than its server.",
        "s",
        *(replace(query, expr=or_none(query.expr, *_BY)) for query in connects),
    )


def _connections() -> Panel:
    opened = calls(semconv.MCP_CONNECT_DURATION, SERVICE, by=_BY)
    return lines(
        "Connections to MCP servers",
        "How many connections a minute are opened to each MCP server, also those that fail? Frameworks that open a"
        " session for each call show it here.",
        "cpm",
        Query(expr=or_none(f"60 * {opened}", *_BY), legend=_LEGEND),
        stacked=True,
    )


def _latency() -> Panel:
    return lines(
        "Requests against the objective",
        "How long does the hub take to list its tools, and is that within its objective (dashed, if it has one)?",
        "s",
        *percentiles(semconv.HUB_LISTING_DURATION, *_HERE),
        Query(expr=f"max({select(series(semconv.DISCOVERY_OBJECTIVE), *_HERE)})", legend=OBJECTIVE),
    )


def _heat() -> Panel:
    return heat(
        "Requests",
        "How are the durations of requests spread: are all of them slow, or a few?",
        "s",
        distribution(semconv.HUB_LISTING_DURATION, *_HERE),
    )


def _waiting() -> Panel:
    return lines(
        "Time without an answer",
        "Does the hub hang: how long has it not answered, and how old is the oldest request in flight?",
        "s",
        Query(expr=f"max({select(series(semconv.HUB_UNANSWERED_AGE), *_HERE)})", legend="without an answer"),
        Query(expr=f"max({select(series(semconv.DISCOVERY_INFLIGHT_AGE), *_HERE)})", legend="oldest request"),
        Query(expr=f"max({select(series(semconv.DISCOVERY_OBJECTIVE), *_HERE)})", legend=OBJECTIVE),
    )


def _failures() -> Panel:
    kinds = (semconv.OUTCOME, semconv.ERROR_TYPE)
    failed = calls(semconv.HUB_LISTING_DURATION, *_HERE, f'{label(semconv.OUTCOME)}!="completed"', by=kinds)
    return lines(
        "Failures",
        "How many requests a minute fail, time out or are abandoned by their callers, and how?",
        "cpm",
        Query(expr=or_none(f"60 * {failed}", *kinds), legend=" ".join(map(as_legend, kinds))),
        stacked=True,
    )


def _cache() -> Panel:
    outcomes = calls(semconv.DISCOVERY_DURATION, *_HERE, HUB, by=(semconv.DISCOVERY_CACHE,))
    return lines(
        "Where catalogues came from",
        "How many discoveries a minute asked the hub (`miss`, `none`), and how many were spared?",
        "cpm",
        Query(expr=f"60 * {outcomes}", legend=as_legend(semconv.DISCOVERY_CACHE)),
        stacked=True,
    )


def _budget() -> Panel:
    return lines(
        "Budget of slow requests",
        "How much of what it may spend in 7 days has the hub spent, and how fast does that grow?",
        "percentunit",
        Query(expr=f"max({select(BUDGET_SPENT, *_HERE)})", legend="spent"),
        Query(expr="vector(1)", legend=f"{OBJECTIVE}: all of it"),
    )


def _catalogue() -> Panel:
    changes = f"sum(increase({select(series(semconv.CATALOG_CHANGES), *_HERE)}[{WINDOW}]))"
    unlocked = f"sum(increase({select(series(DEFINITION_CHANGES), *_HERE)}[{WINDOW}]))"
    return lines(
        "Catalogue",
        "How many tools does the hub list, how often does that change, and how often do they differ from a lock file?",
        "none",
        Query(expr=f"max({select(series(semconv.CATALOG_SIZE), *_HERE)})", legend="tools"),
        Query(expr=or_none(changes), legend="changes"),
        Query(expr=or_none(unlocked), legend="differ from the lock"),
    )
