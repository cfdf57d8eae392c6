"""Alerts on observability itself: lost telemetry, shared series, busy and missing processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.servers import SERVER_OPERATION_DURATION
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import ALERTS, INSTANCE, JOB, UP, by, number
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.discovery import UNANSWERED_AGE
from pellucid_dashboards.rules.model import Alert, Record
from pellucid_dashboards.rules.queries import increase, quantile, select
from pellucid_exporters.alerting.definition import Context, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

_PART: Final = by(semconv.TELEMETRY_PART)
_OVERVIEW: Final = words.dashboard("pellucid-overview")
_HEALTH: Final = words.dashboard("pellucid-telemetry-health")


_OF_SERVICES: Final = (
    semconv.COMPOSE_DURATION,
    semconv.OPERATION_DURATION,
    SERVER_OPERATION_DURATION,
)
"""Histograms of agents, of model calls (also by other frameworks), and of tool servers; hubs have their own records."""

SERVICES: Final = "pellucid:service_series"


def upkeep_records() -> Iterator[Record]:
    """Yield what is there now of each service: one series of it is read for an hour, instead of all."""
    kinds = (select(metric, suffix=suffix) for metric in _OF_SERVICES for suffix in ("_count", ""))
    yield Record(
        name=SERVICES, expression=" or ".join(f"count by ({JOB}) ({each})" for each in (*kinds, UNANSWERED_AGE))
    )


def upkeep_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _dropping(context)
    yield _overflow(context)
    yield _busy(context)
    yield _target_down(context)
    yield _service_gone(context)


def _dropping(context: Context) -> Alert:
    limit = context.thresholds.telemetry_lost
    ten = context.window(600)
    dropped = increase(semconv.TELEMETRY_DROPPED, window=ten)
    failed = increase(semconv.TELEMETRY_ERRORS, window=ten)
    return Alert(
        name="TelemetryDropping",
        expression=f"""
sum by ({_PART}) (
  label_replace({dropped}, "lost", "dropped", "", "")
  or label_replace({failed}, "lost", "failed", "", "")
) >= {number(limit)}
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.value_of(JOB)} loses telemetry ({words.value_of(label(semconv.TELEMETRY_PART))}): "
        f"{words.NUMBER} items dropped or failed in {ten}; the limit is {limit:g}.",
        description="No run noticed, but traces, metrics, logs or listeners lack something: what you see is not all.",
        dashboard=_HEALTH,
    )


def _overflow(context: Context) -> Alert:
    ten = context.window(600)
    metric = label(semconv.METRIC_NAME)
    return Alert(
        name="MetricLabelsOverflow",
        expression=f"""
sum by ({by(semconv.METRIC_NAME)}) (max_over_time({select(semconv.TELEMETRY_OVERFLOWS)}[{ten}])) > 0
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.value_of(JOB)} has more series of {words.value_of(metric)} than its limit, in {words.NUMBER} "
        "of its processes.",
        description="Further label sets share one series, which names no hub, tool or agent: panels and alerts by "
        "these labels lack them, and say nothing of what they lack.",
        dashboard=_HEALTH,
    )


def _busy(context: Context) -> Alert:
    limit = context.thresholds.process_busy
    five = context.window(300)
    return Alert(
        name="AgentProcessBusy",
        expression=f"""
{quantile(0.9, semconv.WAKEUP_DELAY, window=five, labels=f"{JOB}, {INSTANCE}")}
> {number(limit)}
""",
        severity="ticket",
        after=300.0,
        summary=f"{words.value_of(INSTANCE)} of {words.value_of(JOB)} is busy: a tenth of its runs waited for "
        f"{words.DURATION} or longer, in {five}, until its event loop resumed them; the limit is {seconds(limit)}.",
        description="The process, not a hub, is late: its event loop has more to do than it can, or is often blocked "
        "by code that computes or waits without `await`. Durations that it measures include this delay.",
        dashboard=_HEALTH,
    )


def _seen(context: Context) -> str:
    """Return the number of series of each service when it was last seen, within the time in which it is expected."""
    return f"last_over_time({SERVICES}[{context.window(context.thresholds.target_seen_within)}])"


def _target_down(context: Context) -> Alert:
    thresholds = context.thresholds
    firing = f'{ALERTS}{{alertname="TargetMissing", missing="target", alertstate="firing"}}'
    return Alert(
        name="TargetMissing",
        expression=f"""
{UP} == 0 and on ({JOB}) ({UP}{{{JOB}=~{json.dumps(thresholds.jobs)}}} or {_seen(context)} or {firing})
""",
        severity="ticket",
        after=thresholds.target_missing_after,
        labels={"missing": "target"},
        summary=f"{words.value_of(INSTANCE)} of {words.value_of(JOB)} does not answer Prometheus: up is "
        f"{words.NUMBER} instead of 1, for {seconds(thresholds.target_missing_after * context.scale)}.",
        description="Nothing of that process is seen: it is gone, it hangs, or its port cannot be reached.",
        dashboard=_OVERVIEW,
    )


def _service_gone(context: Context) -> Alert:
    thresholds = context.thresholds
    # A process without work has no series yet. One that restarts repeatedly responds only for a short time.
    answers = f"{UP} == 1 and {UP} offset {context.window(thresholds.target_missing_after / 2)} == 1"
    return Alert(
        name="TargetMissing",
        expression=f"""
{_seen(context)} unless on ({JOB}) ({SERVICES} or {answers})
""",
        severity="page",
        after=thresholds.target_missing_after,
        labels={"missing": "service"},
        summary=f"{words.value_of(JOB)} has gone: none of the {words.NUMBER} series that it had within "
        f"{seconds(thresholds.target_seen_within * context.scale)} is left, for "
        f"{seconds(thresholds.target_missing_after * context.scale)}.",
        description="All of its processes stopped, or nothing scrapes or receives them any more. No other alert on "
        "this service can fire now.",
        dashboard=_OVERVIEW,
    )
