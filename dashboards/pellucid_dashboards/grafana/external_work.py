"""Dashboard `External work and workers`: what durable runs wait for, who continues them, messages and requests.

All workers of a database report the same gauges of the store, of which panels show the largest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.panels import Panel, Query, as_legend, lines, percentiles
from pellucid_dashboards.grafana.queries import (
    AGENT,
    SERVICE,
    TOOL,
    calls,
    grouped,
    or_none,
    rate,
    select,
    share,
)
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import JOB, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.semconv import Metric

UID: Final = "pellucid-external-work"

_CALL: Final = (semconv.TOOL_NAME, semconv.DURABLE_KIND)
_CALL_LEGEND: Final = f"{as_legend(semconv.TOOL_NAME)} ({as_legend(semconv.DURABLE_KIND)})"
_TOOL: Final = (semconv.TOOL_NAME,)
_AGENT: Final = (semconv.AGENT_NAME,)
_ROUTE: Final = (semconv.HTTP_REQUEST_METHOD, semconv.HTTP_ROUTE)
_ROUTE_LEGEND: Final = " ".join(map(as_legend, _ROUTE))
_REQUESTS: Final = (SERVICE, f'{label(semconv.HTTP_ROUTE)}=~".*/(runs|async-tools)(/.*)?"')
"""Requests to our server; an application may have others of its own under the same name."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard `External work and workers`."""
    return assemble(
        UID,
        "Pellucid / External work and workers",
        "For which results, people and workers do runs wait, and does the server answer?",
        [
            Shelf(panels=[_pending(), _ages(), _deadlines()], title="External work"),
            Shelf(panels=[_waits(), _settlements(), _rejected()]),
            Shelf(panels=[_runs(), _due_ages(), _due_waits()], title="Workers"),
            Shelf(panels=[_workers(), _slots(), _passes(), _recoveries(), _retrying()]),
            Shelf(panels=[_messages(), _lost_messages(), _callbacks(), _callback_age()], title="Queue and callbacks"),
            Shelf(panels=[_requests(), _errors(), _durations()], title="Server"),
        ],
        chosen_by=["agent", "tool"],
        alerts=('alertname=~"External.*|Runs.*|Workers.*|Durable.*|ApprovalsWaiting"', SERVICE),
    )


def _largest(metric: Metric, *matchers: str, by: tuple[str, ...]) -> str:
    return or_none(grouped("max", select(series(metric), SERVICE, *matchers), by), *by)


def _per_minute(metric: Metric, *matchers: str, by: tuple[str, ...]) -> str:
    return or_none(f"60 * {rate(metric, SERVICE, *matchers, by=by)}", *by)


def _filled(queries: Sequence[Query], *by: str) -> list[Query]:
    return [replace(query, expr=or_none(query.expr, *by)) for query in queries]


def _pending() -> Panel:
    return lines(
        "Calls without a result",
        "For how many results and decisions do runs in the store wait?",
        "none",
        Query(expr=_largest(semconv.DURABLE_PENDING, TOOL, by=_CALL), legend=_CALL_LEGEND),
        stacked=True,
    )


def _ages() -> Panel:
    return lines(
        "Oldest call without a result",
        "For how long has a service or a person not answered?",
        "s",
        Query(expr=_largest(semconv.DURABLE_PENDING_AGE, TOOL, by=_CALL), legend=_CALL_LEGEND),
    )


def _deadlines() -> Panel:
    return lines(
        "Deadline used",
        "Which share of its time until the deadline has a call without a result used? At 100% it expires.",
        "percentunit",
        Query(expr=_largest(semconv.DURABLE_DEADLINE_USED, TOOL, by=_CALL), legend=_CALL_LEGEND),
    )


def _waits() -> Panel:
    by = (*_TOOL, semconv.ASYNC_STATUS)
    return lines(
        "Time until a result",
        "How long do the slowest results of a tool take, by status? Also of asynchronous calls without a store.",
        "s",
        *_filled(percentiles(semconv.EXTERNAL_WAIT, SERVICE, TOOL, by=by, shares=(0.95,)), *by),
    )


def _settlements() -> Panel:
    by = (*_TOOL, semconv.DURABLE_SETTLEMENT, semconv.ASYNC_STATUS)
    taken = where(semconv.DURABLE_SETTLEMENT, "!~", "conflict", "late")
    return lines(
        "Results and decisions",
        "How many results and decisions settle a call in a minute, or repeat one? Rejected ones have their own panel.",
        "cpm",
        Query(
            expr=_per_minute(semconv.DURABLE_SETTLEMENTS, TOOL, taken, by=by),
            legend=" ".join(as_legend(attribute) for attribute in by),
        ),
        stacked=True,
    )


def _rejected() -> Panel:
    conflict = where(semconv.DURABLE_SETTLEMENT, "=", "conflict")
    return lines(
        "Rejected results",
        "How many results in a minute are late, or differ from the first? The model does not read them.",
        "cpm",
        Query(expr=_per_minute(semconv.EXTERNAL_LATE, TOOL, by=_TOOL), legend=f"{as_legend(*_TOOL)} late"),
        Query(
            expr=_per_minute(semconv.DURABLE_SETTLEMENTS, TOOL, conflict, by=_TOOL),
            legend=f"{as_legend(*_TOOL)} conflict",
        ),
        stacked=True,
    )


def _runs() -> Panel:
    by = (semconv.DURABLE_STATUS,)
    return lines(
        "Open durable runs",
        "How many runs in the store are due, retrying, running, or waiting for people and other processes?",
        "none",
        Query(expr=_largest(semconv.DURABLE_RUNS, by=by), legend=as_legend(*by)),
        stacked=True,
    )


def _due_ages() -> Panel:
    return lines(
        "Oldest due run",
        "For how long has a run waited for a worker?",
        "s",
        Query(expr=_largest(semconv.DURABLE_DUE_AGE, AGENT, by=_AGENT), legend=as_legend(*_AGENT)),
    )


def _retrying() -> Panel:
    return lines(
        "Oldest retrying run",
        "For how long have the passes of a run failed?",
        "s",
        Query(expr=_largest(semconv.DURABLE_RETRYING_AGE, AGENT, by=_AGENT), legend=as_legend(*_AGENT)),
    )


def _due_waits() -> Panel:
    return lines(
        "Time until a worker claims a run",
        "How long are runs due before a worker continues them?",
        "s",
        *_filled(percentiles(semconv.DURABLE_DUE_WAIT, SERVICE, AGENT, by=_AGENT, shares=(0.5, 0.95)), *_AGENT),
    )


def _workers() -> Panel:
    workers = grouped("count", f"{select(series(semconv.DURABLE_SLOTS), SERVICE)} > 0", (JOB,))
    return lines(
        "Workers",
        "How many processes work on durable runs?",
        "none",
        Query(expr=or_none(workers, JOB), legend=as_legend(JOB)),
        stacked=True,
    )


def _slots() -> Panel:
    used, slots = (
        grouped("sum", select(series(metric), SERVICE), (JOB,))
        for metric in (semconv.DURABLE_SLOTS_USED, semconv.DURABLE_SLOTS)
    )
    return lines(
        "Slots used",
        "Which share of the runs that workers can continue at once do they continue now? At 100% due runs wait.",
        "percentunit",
        Query(expr=or_none(share(used, slots), JOB), legend=as_legend(JOB)),
    )


def _passes() -> Panel:
    by, source = (semconv.DURABLE_PASS,), (semconv.DURABLE_SOURCE,)
    return lines(
        "Claims and passes",
        "How many runs do workers claim in a minute, found by a message or in the store, and how do the passes end?",
        "cpm",
        Query(
            expr=_per_minute(semconv.DURABLE_CLAIMS, AGENT, by=source), legend=f"claimed from the {as_legend(*source)}"
        ),
        Query(expr=_per_minute(semconv.DURABLE_PASSES, AGENT, by=by), legend=as_legend(*by)),
    )


def _recoveries() -> Panel:
    return lines(
        "Recoveries",
        "How many runs in a minute are taken over from workers that died or hung?",
        "cpm",
        Query(expr=_per_minute(semconv.DURABLE_RECOVERIES, AGENT, by=_AGENT), legend=as_legend(*_AGENT)),
        stacked=True,
    )


def _messages() -> Panel:
    by = (semconv.QUEUE_MESSAGE,)
    return lines(
        "Messages",
        "How many messages does the queue store in a minute? `none`: the store alone wakes the workers.",
        "cpm",
        Query(expr=_per_minute(semconv.QUEUE_PUBLISHED, by=by), legend=as_legend(*by)),
        stacked=True,
    )


def _lost_messages() -> Panel:
    reason = (semconv.QUEUE_REASON,)
    return lines(
        "Messages in trouble",
        "How many messages in a minute are not sent, delivered again, or moved to the dead letters, and why?",
        "cpm",
        Query(expr=_per_minute(semconv.QUEUE_DROPPED, by=reason), legend=f"dropped: {as_legend(*reason)}"),
        Query(expr=_per_minute(semconv.QUEUE_REDELIVERED, AGENT, by=_AGENT), legend=f"{as_legend(*_AGENT)} again"),
        Query(
            expr=_per_minute(semconv.QUEUE_DEAD_LETTERED, AGENT, by=reason), legend=f"dead letter: {as_legend(*reason)}"
        ),
    )


def _callbacks() -> Panel:
    by = (semconv.DURABLE_CALLBACK,)
    return lines(
        "Callbacks",
        "How many attempts are made in a minute to deliver the states of runs, and are they accepted?",
        "cpm",
        Query(expr=_per_minute(semconv.DURABLE_CALLBACKS, by=by), legend=as_legend(*by)),
        stacked=True,
    )


def _callback_age() -> Panel:
    return lines(
        "Oldest callback",
        "For how long has a state waited for a receiver that accepts it?",
        "s",
        Query(expr=_largest(semconv.DURABLE_CALLBACK_AGE, by=()), legend="oldest"),
    )


def _requests() -> Panel:
    served = calls(semconv.HTTP_SERVER_DURATION, *_REQUESTS, by=_ROUTE)
    return lines(
        "Requests",
        "How many requests does the server answer in a minute?",
        "cpm",
        Query(expr=or_none(f"60 * {served}", *_ROUTE), legend=_ROUTE_LEGEND),
        stacked=True,
    )


def _errors() -> Panel:
    by = (*_ROUTE, semconv.HTTP_RESPONSE_STATUS_CODE)
    refused = calls(
        semconv.HTTP_SERVER_DURATION, *_REQUESTS, where(semconv.HTTP_RESPONSE_STATUS_CODE, "=~", "[45].."), by=by
    )
    return lines(
        "Refused and failed requests",
        "How many requests in a minute does the server refuse (4xx), and at how many does it fail (5xx)?",
        "cpm",
        Query(
            expr=or_none(f"60 * {refused}", *by),
            legend=f"{_ROUTE_LEGEND} {as_legend(semconv.HTTP_RESPONSE_STATUS_CODE)}",
        ),
        stacked=True,
    )


def _durations() -> Panel:
    return lines(
        "Duration of requests",
        "How long do the slowest requests take? Streams last as long as their run.",
        "s",
        *_filled(percentiles(semconv.HTTP_SERVER_DURATION, *_REQUESTS, by=_ROUTE, shares=(0.95,)), *_ROUTE),
    )
