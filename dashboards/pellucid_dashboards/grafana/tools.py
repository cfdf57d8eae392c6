"""Dashboard `Tools`: failing and slow tools, and pending approvals."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid.tools.names import LAZY_DISCOVERY, LOAD_SKILL, TOOL_SEARCH
from pellucid_dashboards.explore import TRACED
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.links import traces_link
from pellucid_dashboards.grafana.panels import Column, Panel, Query, as_legend, lines, percentiles, rows
from pellucid_dashboards.grafana.queries import (
    AGENT,
    MADE,
    PROVIDER,
    REFUSED,
    SERVICE,
    SHOWN,
    TOOL,
    calls,
    grouped,
    or_none,
    quantile,
    share,
)
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import FAILED, approvals_pending, by

UID: Final = "pellucid-tools"

_BY: Final = (semconv.TOOL_NAME,)
_LEGEND: Final = as_legend(semconv.TOOL_NAME)
_HERE: Final = (SERVICE, AGENT, PROVIDER, TOOL)


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Tools`."""
    return assemble(
        UID,
        "Pellucid / Tools",
        "Which tool fails, is slow, or waits for a person?",
        [
            Shelf(panels=[_tools()]),
            Shelf(panels=[_calls(), _durations()]),
            Shelf(panels=[_failures(), _refusals()]),
            Shelf(panels=[_approvals(), _discoveries()]),
        ],
        chosen_by=["agent", "provider", "tool", TRACED],
        alerts=('alertname=~"ToolFailing|ApprovalsWaiting"', SERVICE),
    )


def _tools() -> Panel:
    made = calls(semconv.TOOL_DURATION, *_HERE, MADE, by=_BY, window=SHOWN)
    failed = calls(semconv.TOOL_DURATION, *_HERE, FAILED, MADE, by=_BY, window=SHOWN)
    columns = [
        Column(name="Calls per minute", expr=f"60 * {made}", unit="cpm", decimals=1),
        Column(name="Failed", expr=share(failed, made), unit="percentunit", red=0.05),
        Column(name="p50", expr=quantile(0.5, semconv.TOOL_DURATION, *_HERE, by=_BY, window=SHOWN), unit="s"),
        Column(name="p95", expr=quantile(0.95, semconv.TOOL_DURATION, *_HERE, by=_BY, window=SHOWN), unit="s"),
    ]
    links = [traces_link(f"{semconv.EXECUTE_TOOL} ${{__value.raw}}")]
    question = (
        "Which tool fails or is slow, in the time shown? Its name leads to its traces; `_OTHER` are invented ones."
    )
    return rows("Tools", question, (semconv.TOOL_NAME, "Tool"), columns, links)


def _calls() -> Panel:
    return lines(
        "Calls",
        "Which tools are called, how often in a minute?",
        "cpm",
        Query(expr=f"60 * {calls(semconv.TOOL_DURATION, *_HERE, by=_BY)}", legend=_LEGEND),
        stacked=True,
    )


def _durations() -> Panel:
    return lines(
        "Duration of calls",
        "How long do the slowest calls of each tool take?",
        "s",
        *percentiles(semconv.TOOL_DURATION, *_HERE, by=_BY, shares=(0.95,)),
    )


def _failures() -> Panel:
    return _by_error(
        "Failures",
        "How many calls fail in a minute, and how? What was refused is not counted here.",
        FAILED,
        MADE,
    )


def _refusals() -> Panel:
    return _by_error(
        "Refused calls",
        "How many calls in a minute are not made: a person, a policy or a limit refuses, or there is no such tool?",
        REFUSED,
    )


def _by_error(title: str, question: str, *where: str) -> Panel:
    found = calls(semconv.TOOL_DURATION, *_HERE, *where, by=(*_BY, semconv.ERROR_TYPE))
    legend = f"{_LEGEND}: {as_legend(semconv.ERROR_TYPE)}"
    return lines(
        title,
        question,
        "cpm",
        Query(expr=or_none(f"60 * {found}", *_BY, semconv.ERROR_TYPE), legend=legend),
        stacked=True,
    )


def _approvals() -> Panel:
    pending = grouped("sum", approvals_pending(by(semconv.TOOL_NAME), SERVICE, TOOL), _BY)
    return lines(
        "Approvals waiting",
        "How many calls wait for a person to approve of them?",
        "none",
        Query(expr=or_none(pending, *_BY), legend=_LEGEND),
        stacked=True,
    )


def _discoveries() -> Panel:
    names = f"{TOOL_SEARCH}|{LAZY_DISCOVERY}|{LOAD_SKILL}"
    made = calls(semconv.TOOL_DURATION, SERVICE, AGENT, f'{label(semconv.TOOL_NAME)}=~"{names}"', by=_BY)
    return lines(
        "Lazy discovery",
        "How often in a minute do models look for tools, or load a skill, before they can call what they need?",
        "cpm",
        Query(expr=or_none(f"60 * {made}", *_BY), legend=_LEGEND),
        stacked=True,
    )
