"""Alerts on durable runs and external calls: owed and rejected results, missing and dying workers.

All workers of a database report the same gauges, of which rules take the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import by, number, where
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert, Context
from pellucid_dashboards.rules.queries import increase, select, total
from pellucid_dashboards.rules.words import seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOL: Final = by(semconv.TOOL_NAME)
_AGENT: Final = by(semconv.AGENT_NAME)
_EXTERNAL: Final = where(semconv.DURABLE_KIND, "=", "external")
_BOARD: Final = words.dashboard("pellucid-runs-and-models")
_AGENTS_BOARD: Final = words.dashboard("pellucid-runs-and-models", agent=label(semconv.AGENT_NAME))


def durable_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _overdue(context)
    yield _rejected(context)
    yield _due(context)
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
        dashboard=_BOARD,
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
        dashboard=_BOARD,
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
