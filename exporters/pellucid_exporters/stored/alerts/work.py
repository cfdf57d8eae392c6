"""Conditions of the alerts on tools, models, runs, cost and asynchronous calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pellucid import semconv
from pellucid.events import BudgetLow
from pellucid_exporters.alerting import work
from pellucid_exporters.alerting.definition import HALF_HOUR, HOUR, TEN_MINUTES, Context, Definition, Words
from pellucid_exporters.alerting.outcomes import HALTED, UNDELIVERED
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.counts import (
    SECOND,
    Window,
    exemplar,
    first,
    has_failed,
    mostly,
    named,
    number,
    percentage,
    window,
)
from pellucid_exporters.stored.quantiles import percentile
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import CallRow

_MODEL = (semconv.INFERENCE, semconv.PROVIDER_NAME, semconv.REQUEST_MODEL)


def work_alerts(reader: Reader, now: int, context: Context) -> Iterator[Alert]:
    """Yield the alerts on work that fire."""
    recent = window(reader, now, TEN_MINUTES, [semconv.RUN, semconv.INFERENCE, semconv.DISPATCH])
    yield from _tool_failing(recent, context)
    yield from _model_slow(recent, context)
    yield from _model_failing(recent, context)
    yield from _run_failing(recent, context)
    yield from _burning(window(reader, now, HOUR, [semconv.INFERENCE]), context)
    yield from _budgets(reader, now, context)
    yield from _external_failing(window(reader, now, HALF_HOUR, [semconv.AWAIT]), context)


def _tool_failing(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, tool), rows in recent.by(semconv.DISPATCH, semconv.TOOL_NAME).items():
        made = [row for row in rows if row.labels.get(semconv.ERROR_TYPE) not in thresholds.tool_refusals]
        found = mostly(made, has_failed, above=thresholds.tool_failing, least=thresholds.tool_failing_min)
        yield from _failing(work.tool_failing, context, named("Tool", tool, service), found)


def _model_failing(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, _, model), rows in recent.by(*_MODEL).items():
        found = mostly(rows, has_failed, above=thresholds.model_failing, least=thresholds.model_failing_min)
        yield from _failing(work.model_failing, context, named("Model", model, service), found)


def _run_failing(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, agent), rows in recent.by(semconv.RUN, semconv.AGENT_NAME).items():
        ended = [row for row in rows if row.labels.get(semconv.ERROR_TYPE) != HALTED]
        found = mostly(ended, has_failed, above=thresholds.run_failing, least=thresholds.run_failing_min)
        yield from _failing(work.run_failing, context, named("Agent", agent, service), found)


def _budgets(reader: Reader, now: int, context: Context) -> Iterator[Alert]:
    """Yield an alert for each budget that a run of the last hour saw nearly spent, in its present period.

    More may be spent by now: a run tells when it first finds that a budget is nearly spent, and that all of it is.
    """
    limit, seen = context.thresholds.budget_spent, set[tuple[str, str]]()
    today = datetime.fromtimestamp(now / SECOND, UTC).isoformat()
    for event in reader.events_named(BudgetLow.name, now - round(HOUR * SECOND), now):  # the newest first
        facts = event.payload
        name, kind, most = str(facts.get("budget")), str(facts.get("limit")), float(facts.get("value") or 0.0)
        used = float(facts.get("spent") or 0.0) / most if most else 1.0
        if (name, kind) in seen or used < limit or not today.startswith(str(facts.get("period"))):
            continue
        run = reader.run(event.run_id)
        if run is not None and not run.is_measured:
            continue
        seen.add((name, kind))
        subject = named("Budget", name, run.service if run is not None else "")
        words = Words(subject=subject, value=f"at least {percentage(used)} of its {kind}")
        since = run.start if run is not None else event.time
        where = (event.run_id, event.span_id or "")
        definition = work.budget_nearly_spent(context, words)
        yield fire(definition, context.thresholds, value=used, since=since, exemplar=where)


def _external_failing(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, tool), rows in recent.by(semconv.AWAIT, semconv.TOOL_NAME).items():
        found = mostly(rows, _is_undelivered, above=thresholds.external_failing, least=thresholds.external_failing_min)
        yield from _failing(work.external_failing, context, named("Tool", tool, service), found)


def _is_undelivered(row: CallRow) -> bool:
    return row.labels.get(semconv.ASYNC_STATUS) in UNDELIVERED


def _failing(
    define: Callable[[Context, Words], Definition],
    context: Context,
    subject: str,
    found: tuple[float, list[CallRow]] | None,
) -> Iterator[Alert]:
    if found is not None:
        share, failed = found
        yield fire(
            define(context, Words(subject=subject, value=percentage(share))),
            context.thresholds,
            value=share,
            since=first(failed),
            exemplar=exemplar(failed),
        )


def _model_slow(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, _, model), rows in recent.by(*_MODEL).items():
        p95 = percentile(0.95, sorted(duration for row in rows for duration in row.durations)) or 0.0
        if p95 <= thresholds.model_slow or number(rows) < thresholds.model_slow_min:
            continue
        slowest = max(rows, key=lambda row: row.durations[-1])
        yield fire(
            work.model_slow(context, Words(subject=named("Model", model, service), value=text.seconds(p95))),
            thresholds,
            value=p95,
            since=first(rows),
            exemplar=(slowest.run_id, slowest.span_id),
        )


def _burning(recent: Window, context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    for (service, _, model), rows in recent.by(*_MODEL).items():
        tokens = sum(row.sums[semconv.USAGE_INPUT_TOKENS] + row.sums[semconv.USAGE_OUTPUT_TOKENS] for row in rows)
        cost = sum(row.sums[semconv.COST_USD] for row in rows)
        subject = named("Model", model, service)
        for value, limit, shown, define in (
            (tokens, thresholds.tokens_per_hour, f"{tokens:,.0f}", work.token_burn),
            (cost, thresholds.cost_per_hour, f"{cost:.2f}", work.cost_burn),
        ):
            if value > limit:
                definition = define(context, Words(subject=subject, value=shown))
                yield fire(definition, thresholds, value=value, since=first(rows), exemplar=exemplar(rows))
