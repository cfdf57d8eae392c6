"""Panels on durable runs, in a row of `Runs and models`.

All workers of a database report the same gauges, of which panels show the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.grafana.assembly import Shelf
from pellucid_dashboards.grafana.panels import Panel, Query, as_legend, lines
from pellucid_dashboards.grafana.queries import AGENT, SERVICE, grouped, or_none, rate, select
from pellucid_dashboards.names import series

if TYPE_CHECKING:
    from pellucid.semconv import Metric

_CALL: Final = (semconv.TOOL_NAME, semconv.DURABLE_KIND)
_CALL_LEGEND: Final = f"{as_legend(semconv.TOOL_NAME)} ({as_legend(semconv.DURABLE_KIND)})"


def shelves() -> list[Shelf]:
    """Return the row."""
    return [
        Shelf(panels=[_runs(), _due(), _passes()], title="Durable runs"),
        Shelf(panels=[_pending(), _ages(), _settlements()]),
    ]


def _largest(metric: Metric, *by: str, where: tuple[str, ...] = (SERVICE,)) -> str:
    return or_none(grouped("max", select(series(metric), *where), by), *by)


def _runs() -> Panel:
    return lines(
        "Open durable runs",
        "How many runs in the store are due, running, or waiting for people and other processes?",
        "none",
        Query(expr=_largest(semconv.DURABLE_RUNS, semconv.DURABLE_STATUS), legend=as_legend(semconv.DURABLE_STATUS)),
        stacked=True,
    )


def _due() -> Panel:
    by = (semconv.AGENT_NAME,)
    return lines(
        "Oldest due run",
        "For how long has a run waited for a worker?",
        "s",
        Query(expr=_largest(semconv.DURABLE_DUE_AGE, *by, where=(SERVICE, AGENT)), legend=as_legend(*by)),
    )


def _passes() -> Panel:
    by = (semconv.DURABLE_PASS,)
    recovered = or_none(f"60 * {rate(semconv.DURABLE_RECOVERIES, SERVICE, AGENT)}")
    return lines(
        "Passes of durable runs",
        "How do passes end, how many in a minute, and how many runs are taken over from workers that died?",
        "cpm",
        Query(expr=or_none(f"60 * {rate(semconv.DURABLE_PASSES, SERVICE, AGENT, by=by)}", *by), legend=as_legend(*by)),
        Query(expr=recovered, legend="taken over"),
    )


def _pending() -> Panel:
    return lines(
        "Calls without a result",
        "For how many results and decisions do runs in the store wait?",
        "none",
        Query(expr=_largest(semconv.DURABLE_PENDING, *_CALL), legend=_CALL_LEGEND),
        stacked=True,
    )


def _ages() -> Panel:
    return lines(
        "Oldest call without a result",
        "For how long has a service or a person not answered?",
        "s",
        Query(expr=_largest(semconv.DURABLE_PENDING_AGE, *_CALL), legend=_CALL_LEGEND),
    )


def _settlements() -> Panel:
    by = (semconv.TOOL_NAME, semconv.DURABLE_SETTLEMENT, semconv.ASYNC_STATUS)
    late = (semconv.TOOL_NAME,)
    return lines(
        "Results and decisions",
        "How many results and decisions come in a minute, and do they settle a call, repeat, differ, or come late?",
        "cpm",
        Query(
            expr=or_none(f"60 * {rate(semconv.DURABLE_SETTLEMENTS, SERVICE, by=by)}", *by),
            legend=" ".join(as_legend(attribute) for attribute in by),
        ),
        Query(
            expr=or_none(f"60 * {rate(semconv.EXTERNAL_LATE, SERVICE, by=late)}", *late),
            legend=f"{as_legend(*late)} late, with or without a store",
        ),
    )
