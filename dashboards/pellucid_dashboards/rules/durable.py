"""Rules on durable runs and external calls: owed, failed and rejected results; missing, slow and dying workers.

All workers of a database report the same gauges, of which rules take the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import by, number, where
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert, Record, alert
from pellucid_dashboards.rules.queries import increase, mostly, quantile, select, total
from pellucid_exporters.alerting import work
from pellucid_exporters.alerting.definition import Context, Words, seconds, share
from pellucid_exporters.alerting.outcomes import UNDELIVERED

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOL: Final = by(semconv.TOOL_NAME)
_AGENT: Final = by(semconv.AGENT_NAME)
_EXTERNAL: Final = where(semconv.DURABLE_KIND, "=", "external")
_TOOLS_BOARD: Final = words.dashboard("pellucid-external-work", tool=label(semconv.TOOL_NAME))
_AGENTS_BOARD: Final = words.dashboard("pellucid-external-work", agent=label(semconv.AGENT_NAME))

EXTERNAL_RESULTS: Final = "pellucid:external_results:increase30m"
CLAIMS: Final = "pellucid:durable_claims:increase10m"
CLAIM_P95: Final = "pellucid:durable_due_wait_seconds:p95_10m"


def durable_records(context: Context) -> Iterator[Record]:
    """Yield the series that the alerts read: results by status, claims, and how long the claimed runs had been due."""
    ten, thirty = context.window(600), context.window(1800)
    of_status = by(semconv.TOOL_NAME, semconv.ASYNC_STATUS)
    yield Record(name=EXTERNAL_RESULTS, expression=total(semconv.EXTERNAL_WAIT, window=thirty, labels=of_status))
    yield Record(name=CLAIMS, expression=total(semconv.DURABLE_DUE_WAIT, window=ten, labels=_AGENT))
    p95 = quantile(0.95, semconv.DURABLE_DUE_WAIT, window=ten, labels=_AGENT)
    yield Record(name=CLAIM_P95, expression=p95)


def durable_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _overdue(context)
    yield _failing(context)
    yield _rejected(context)
    yield _due(context)
    yield _behind(context)
    yield _retrying(context)
    yield _recovered(context)


def _overdue(context: Context) -> Alert:
    used_limit = context.thresholds.external_deadline_used
    limit = context.thresholds.external_overdue * context.scale
    age = f"max by ({_TOOL}) ({select(semconv.DURABLE_PENDING_AGE, _EXTERNAL)})"
    used = f"max by ({_TOOL}) ({select(semconv.DURABLE_DEADLINE_USED, _EXTERNAL)})"
    return Alert(
        name="ExternalToolStuck",
        expression=f"""
{age} > {number(limit)} unless on ({_TOOL}) {used}
or {age} and on ({_TOOL}) {used} > {number(used_limit)}
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.TOOL} has owed the result of an external call for {words.DURATION}; the limit is "
        f"{share(used_limit)} of the time until its deadline, or {seconds(limit)} without one.",
        description="The process that does the work has not settled the call. Its run waits, and goes on when the "
        "result is there or the call expires.",
        dashboard=_TOOLS_BOARD,
    )


def _failing(context: Context) -> Alert:
    limit, least = context.thresholds.external_failing, context.thresholds.external_failing_min
    context.window(1800)
    missing = [where(semconv.ASYNC_STATUS, "=~", *UNDELIVERED)]
    return alert(
        work.external_failing(context, Words(subject=words.TOOL, value=words.SHARE)),
        expression=mostly(EXTERNAL_RESULTS, _TOOL, missing, [], above=limit, least=least),
        dashboard=_TOOLS_BOARD,
    )


def _rejected(context: Context) -> Alert:
    limit = context.thresholds.external_rejected
    ten = context.window(600)
    late = increase(semconv.EXTERNAL_LATE, window=ten)
    different = increase(
        semconv.DURABLE_SETTLEMENTS, _EXTERNAL, where(semconv.DURABLE_SETTLEMENT, "=", "conflict"), window=ten
    )
    return Alert(
        name="ExternalResultsRejected",
        expression=f"""
sum by ({_TOOL}) (
  label_replace({late}, "rejected", "late", "", "")
  or label_replace({different}, "rejected", "conflict", "", "")
) >= {number(limit)}
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.TOOL}: {words.NUMBER} results of its calls in {ten} were late, or differed from the first; "
        f"the limit is {limit:g}.",
        description="They were ignored: the model read the first result, or that the call had expired or was stopped.",
        dashboard=_TOOLS_BOARD,
    )


def _due(context: Context) -> Alert:
    limit = context.thresholds.durable_due * context.scale
    return Alert(
        name="RunsNotContinuing",
        expression=f"max by ({_AGENT}) ({select(semconv.DURABLE_DUE_AGE)}) > {number(limit)}",
        severity="page",
        after=0.0,
        summary=f"{words.AGENT}: a durable run has been due for {words.DURATION}, and no worker continues it; "
        f"the limit is {seconds(limit)}.",
        description="No worker has this agent, or all of them are busy. Nothing is lost, but callers wait.",
        dashboard=_AGENTS_BOARD,
    )


def _behind(context: Context) -> Alert:
    thresholds = context.thresholds
    limit = number(thresholds.durable_behind * context.scale)
    ten, lately = context.window(600), context.window(180)
    due = f"max by ({_AGENT}) (max_over_time({select(semconv.DURABLE_DUE_AGE)}[{lately}]))"
    return Alert(
        name="WorkersBehind",
        expression=f"""
{CLAIM_P95} > {limit}
and on ({_AGENT}) {CLAIMS} >= {number(thresholds.durable_behind_min)}
and on ({_AGENT}) {due} > {limit}
""",
        severity="ticket",
        after=300.0,
        summary=f"{words.AGENT}: due runs wait for a worker, p95 {words.DURATION} in {ten}; the limit is "
        f"{seconds(thresholds.durable_behind * context.scale)}.",
        description="Workers take the runs, but later than they become due: there are too few workers or slots, or "
        "passes take longer than they did.",
        dashboard=_AGENTS_BOARD,
    )


def _retrying(context: Context) -> Alert:
    limit = context.thresholds.durable_retrying * context.scale
    lately = context.window(180)  # while a pass is another attempt, its run is not retrying
    age = f"max by ({_AGENT}) (max_over_time({select(semconv.DURABLE_RETRYING_AGE)}[{lately}]))"
    return Alert(
        name="DurableRunsRetrying",
        expression=f"{age} > {number(limit)}",
        severity="ticket",
        after=0.0,
        summary=f"{words.AGENT}: the passes of a durable run have failed for {words.DURATION}; the limit is "
        f"{seconds(limit)}.",
        description="Each was retried, and the run fails once its attempts or its time are over. A model, a tool hub "
        "or another service does not answer. Runs that have failed can be retried.",
        dashboard=_AGENTS_BOARD,
    )


def _recovered(context: Context) -> Alert:
    limit = context.thresholds.durable_recoveries
    hour = context.window(3600)
    return Alert(
        name="DurableWorkersDying",
        expression=f"{total(semconv.DURABLE_RECOVERIES, window=hour, labels=_AGENT)} >= {number(limit)}",
        severity="ticket",
        after=0.0,
        summary=f"{words.AGENT}: {words.NUMBER} durable runs in {hour} were taken over from workers that had died or "
        f"hung; the limit is {limit:g}.",
        description="Workers that are stopped give their runs back at once. These were killed, ran out of memory, or "
        "blocked for longer than the lease. The runs were continued.",
        dashboard=_AGENTS_BOARD,
    )
