"""Dashboard `Tool servers`: our hub, seen from inside, beside seen by its callers."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid.semconv.servers import (
    SERVER_INFLIGHT,
    SERVER_INFLIGHT_AGE,
    SERVER_OBJECTIVE,
    SERVER_OPERATION_DURATION,
    SERVER_OVER_OBJECTIVE,
    SERVER_SESSION_DURATION,
    SERVER_SESSIONS,
)
from pellucid_dashboards.explore import TRACED
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.links import traces_link
from pellucid_dashboards.grafana.panels import (
    ALERT_STATES,
    OBJECTIVE,
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
    SERVICE,
    SHOWN,
    alerts,
    calls,
    distribution,
    grouped,
    mean,
    or_none,
    quantile,
    rate,
    select,
    share,
)
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import OWN_FAILURES, REQUESTS, where

UID: Final = "pellucid-tool-servers"

SERVER: Final = f'{label(semconv.MCP_SERVER_NAME)}=~"$server"'
_HERE: Final = (SERVICE, SERVER)
_CALLS: Final = where(semconv.MCP_METHOD_NAME, "=", "tools/call")
_NAME: Final = (semconv.MCP_SERVER_NAME,)
_BY: Final = (semconv.TOOL_NAME,)
_SUBJECT: Final = (semconv.MCP_METHOD_NAME, semconv.TOOL_NAME)
_LEGEND: Final = f"{as_legend(semconv.MCP_METHOD_NAME)} {as_legend(semconv.TOOL_NAME)}"
_ALERTS: Final = ('alertname=~"ToolServer.*"', SERVICE)


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Tool servers`."""
    return assemble(
        UID,
        "Pellucid / Tool servers",
        "Which of our tools is slow, fails or hangs, as our servers see it, and as their callers do?",
        [
            Shelf(panels=[_tools()]),
            Shelf(panels=[_alerts(), _late()], height=6),
            Shelf(panels=[_inside(), _by_callers()]),
            Shelf(panels=[_difference(), _requests()]),
            Shelf(panels=[_failures(), _ages()]),
            Shelf(panels=[_inflight(), _sessions(), _session_durations()]),
            Shelf(panels=[_heat()]),
        ],
        chosen_by=["server", TRACED],
        alerts=_ALERTS,
    )


def _tools() -> Panel:
    made = calls(SERVER_OPERATION_DURATION, *_HERE, _CALLS, by=_BY, window=SHOWN)
    failed = calls(SERVER_OPERATION_DURATION, *_HERE, _CALLS, OWN_FAILURES, by=_BY, window=SHOWN)
    late = rate(SERVER_OVER_OBJECTIVE, *_HERE, _CALLS, by=_BY, window=SHOWN)
    columns = [
        Column(name="Calls per minute", expr=f"60 * {made}", unit="cpm", decimals=1),
        Column(name="Failed", expr=share(failed, made), unit="percentunit", red=0.05),
        Column(name="Over objective", expr=share(late, made), unit="percentunit", red=0.05),
        Column(name="p50", expr=_quantile(0.5), unit="s"),
        Column(name="p95", expr=_quantile(0.95), unit="s"),
    ]
    question = "Which tool is slow or fails, in the time shown? `_OTHER` are names that the server does not have."
    links = [traces_link("tools/call ${__value.raw}")]
    return rows("Tools, seen from inside", question, (semconv.TOOL_NAME, "Tool"), columns, links)


def _quantile(percentile: float) -> str:
    return quantile(percentile, SERVER_OPERATION_DURATION, *_HERE, _CALLS, by=_BY, window=SHOWN)


def _alerts() -> Panel:
    query = Query(expr=or_none(alerts(*_ALERTS, by=("alertname",)), "alertname"), legend="{{alertname}}")
    return states("Alerts", "Which alerts on tool servers fire?", ALERT_STATES, query)


def _late() -> Panel:
    late = rate(SERVER_OVER_OBJECTIVE, *_HERE, by=_SUBJECT)
    return lines(
        "Over the objective",
        "How many requests in a minute take longer than the server's objective?",
        "cpm",
        Query(expr=or_none(f"60 * {late}", *_SUBJECT), legend=_LEGEND),
        stacked=True,
    )


def _inside() -> Panel:
    objective = grouped("max", select(series(SERVER_OBJECTIVE), *_HERE), _NAME)
    return lines(
        "Calls, seen from inside",
        "How long do the slowest calls of each tool take in the server, beside its objective?",
        "s",
        *percentiles(SERVER_OPERATION_DURATION, *_HERE, _CALLS, by=_BY, shares=(0.95,)),
        Query(expr=objective, legend=f"{OBJECTIVE} {as_legend(semconv.MCP_SERVER_NAME)}"),
    )


def _by_callers() -> Panel:
    return lines(
        "Calls, seen by their callers",
        "How long do calls of tools take for instrumented agents, of any service and server?",
        "s",
        *percentiles(semconv.MCP_OPERATION_DURATION, _CALLS, by=_BY, shares=(0.95,)),
    )


def _difference() -> Panel:
    outside = mean(semconv.MCP_OPERATION_DURATION, _CALLS, by=_BY)
    inside = mean(SERVER_OPERATION_DURATION, *_HERE, _CALLS, by=_BY)
    return lines(
        "Network and queueing",
        "How much longer does a call take on average for its callers than in the server?",
        "s",
        Query(expr=or_none(f"({outside}) - ({inside})", *_BY), legend=as_legend(semconv.TOOL_NAME)),
    )


def _requests() -> Panel:
    made = calls(SERVER_OPERATION_DURATION, *_HERE, REQUESTS, by=_SUBJECT)
    return lines(
        "Requests",
        "What is asked, how often in a minute?",
        "cpm",
        Query(expr=f"60 * {made}", legend=_LEGEND),
        stacked=True,
    )


def _failures() -> Panel:
    by = (*_SUBJECT, semconv.ERROR_TYPE)
    failed = calls(SERVER_OPERATION_DURATION, *_HERE, where(semconv.ERROR_TYPE, "!="), by=by)
    return lines(
        "Failures",
        "How many requests fail in a minute, and how? Cancelled and wrong ones are shown, too.",
        "cpm",
        Query(expr=or_none(f"60 * {failed}", *by), legend=f"{_LEGEND}: {as_legend(semconv.ERROR_TYPE)}"),
        stacked=True,
    )


def _ages() -> Panel:
    age = grouped("max", select(series(SERVER_INFLIGHT_AGE), *_HERE), _SUBJECT)
    return lines(
        "Oldest request in flight",
        "Does a request hang, and which?",
        "s",
        Query(expr=age, legend=_LEGEND),
    )


def _inflight() -> Panel:
    return _counted("In flight", "How many requests do the servers work on?", series(SERVER_INFLIGHT))


def _sessions() -> Panel:
    return _counted("Sessions", "How many sessions are open?", series(SERVER_SESSIONS))


def _counted(title: str, question: str, name: str) -> Panel:
    counted = grouped("sum", select(name, *_HERE), _NAME)
    return lines(title, question, "none", Query(expr=counted, legend=as_legend(semconv.MCP_SERVER_NAME)), stacked=True)


def _session_durations() -> Panel:
    return lines(
        "Duration of sessions",
        "How long were the sessions that have ended open, on average?",
        "s",
        Query(expr=mean(SERVER_SESSION_DURATION, *_HERE, by=_NAME), legend=as_legend(semconv.MCP_SERVER_NAME)),
    )


def _heat() -> Panel:
    return heat(
        "Distribution of calls",
        "Are some calls much slower than the others?",
        "s",
        distribution(SERVER_OPERATION_DURATION, *_HERE, _CALLS),
    )
