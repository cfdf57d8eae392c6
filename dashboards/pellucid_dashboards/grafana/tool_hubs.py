"""Dashboard `Tool hubs`: slow, hanging, failing and changing hubs over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pellucid import semconv
from pellucid_dashboards.grafana.assembly import Shelf, alert_annotation, assemble
from pellucid_dashboards.grafana.links import TRACED, traces_link
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
    ROUND_TRIP,
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
from pellucid_dashboards.promql import FAILED

UID: Final = "pellucid-tool-hubs"

_ALERTS: Final = ('alertname=~"ToolHub.*"', SERVICE, PROVIDER)
_BY: Final = (semconv.PROVIDER_ID,)
_LEGEND: Final = as_legend(semconv.PROVIDER_ID)
_HERE: Final = (SERVICE, PROVIDER)


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Tool hubs`."""
    return assemble(
        UID,
        "Pellucid / Tool hubs",
        "Is a tool hub slow, hanging, failing or changing, and since when?",
        [
            Shelf(panels=[_hubs()], height=8),
            Shelf(panels=[_alerts(), _breakers()], height=6),
            Shelf(panels=[_connecting(), _connections()], height=7),
            Shelf(panels=[_latency(), _heat()], height=9, title="Hub $provider", repeat="provider"),
            Shelf(panels=[_waiting(), _failures()], height=7),
            Shelf(panels=[_cache(), _catalogue()], height=7),
        ],
        chosen_by=["hub", TRACED],
        annotations=[alert_annotation(*_ALERTS)],
    )


def _gauge(metric: semconv.Metric) -> str:
    return grouped("max", select(series(metric), *_HERE), _BY)


def _hubs() -> Panel:
    p95 = quantile(0.95, semconv.DISCOVERY_DURATION, *_HERE, *ROUND_TRIP, by=_BY, window=SHOWN)
    objective = _gauge(semconv.DISCOVERY_OBJECTIVE)
    fetches = calls(semconv.DISCOVERY_DURATION, *_HERE, *ROUND_TRIP, by=_BY, window=SHOWN)
    late = rate(semconv.DISCOVERY_OVER_OBJECTIVE, *_HERE, *ROUND_TRIP, by=_BY, window=SHOWN)
    failed = calls(semconv.DISCOVERY_DURATION, *_HERE, *ROUND_TRIP, FAILED, by=_BY, window=SHOWN)
    cached = f'{label(semconv.DISCOVERY_CACHE)}=~"hit|joined|stale"'
    spared = calls(semconv.DISCOVERY_DURATION, *_HERE, HUB, cached, by=_BY, window=SHOWN)
    every = calls(semconv.DISCOVERY_DURATION, *_HERE, HUB, by=_BY, window=SHOWN)
    columns = [
        Column(name="p95", expr=p95, unit="s"),
        Column(name="Objective", expr=objective, unit="s"),
        Column(name="p95 of objective", expr=f"{p95} / {objective}", unit="percentunit", red=1),
        Column(name="Over objective", expr=f"{late} / ({fetches} > 0)", unit="percentunit", red=0.01),
        Column(name="Failed", expr=share(failed, fetches), unit="percentunit", red=0.05),
        Column(name="Waiting now", expr=_gauge(semconv.DISCOVERY_INFLIGHT_AGE), unit="s", red=30),
        Column(name="Since last success", expr=f"time() - {_gauge(semconv.DISCOVERY_LAST_SUCCESS)}", unit="s"),
        Column(name="From cache", expr=share(spared, every), unit="percentunit"),
        Column(name="Tools", expr=_gauge(semconv.CATALOG_SIZE), unit="none"),
    ]
    links = [traces_link(f"{semconv.DISCOVER_TOOLS} ${{__value.raw}}")]
    question = "Which hub was over its objective, failed, or has not answered for long? Its name leads to its traces."
    return rows("Hubs", question, (semconv.PROVIDER_ID, "Hub"), columns, links)


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
        "Round trips against the objective",
        "How long does the hub take to list its tools, and is that within its objective (dashed, if it has one)?",
        "s",
        *percentiles(semconv.DISCOVERY_DURATION, *_HERE, *ROUND_TRIP),
        Query(expr=f"max({select(series(semconv.DISCOVERY_OBJECTIVE), *_HERE)})", legend=OBJECTIVE),
    )


def _heat() -> Panel:
    return heat(
        "Round trips",
        "How are the hub's round trips spread: are all of them slow, or a few?",
        "s",
        distribution(semconv.DISCOVERY_DURATION, *_HERE, *ROUND_TRIP),
    )


def _waiting() -> Panel:
    return lines(
        "Age of the oldest fetch",
        "Does the hub hang: how long has it kept somebody waiting, who has no answer yet?",
        "s",
        Query(expr=f"max({select(series(semconv.DISCOVERY_INFLIGHT_AGE), *_HERE)})", legend="oldest fetch"),
        Query(expr=f"max({select(series(semconv.DISCOVERY_OBJECTIVE), *_HERE)})", legend=OBJECTIVE),
    )


def _failures() -> Panel:
    failed = calls(semconv.DISCOVERY_DURATION, *_HERE, HUB, FAILED, by=(semconv.ERROR_TYPE,))
    return lines(
        "Failures",
        "How many fetches fail in a minute, and how? Of `backoff` and `circuit_open` the hub was not asked.",
        "cpm",
        Query(expr=or_none(f"60 * {failed}", semconv.ERROR_TYPE), legend=as_legend(semconv.ERROR_TYPE)),
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


def _catalogue() -> Panel:
    changes = f"sum(increase({select(series(semconv.CATALOG_CHANGES), *_HERE)}[{WINDOW}]))"
    return lines(
        "Catalogue",
        "How many tools does the hub list, and how often does that change?",
        "none",
        Query(expr=f"max({select(series(semconv.CATALOG_SIZE), *_HERE)})", legend="tools"),
        Query(expr=or_none(changes), legend="changes"),
    )
