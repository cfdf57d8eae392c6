"""Alerts on the work of agents: tools, models, runs, cost, and pending approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.budgets import BUDGET_KIND, BUDGET_MOST, BUDGET_NAME, BUDGET_SPENT
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import FAILED, NOT_HALTED, approvals_pending, by, number, where
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert, Record, alert
from pellucid_dashboards.rules.queries import added, mostly, quantile, select, summed, total
from pellucid_exporters.alerting import work
from pellucid_exporters.alerting.definition import Context, Words, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOL: Final = by(semconv.TOOL_NAME)
_MODEL: Final = by(semconv.PROVIDER_NAME, semconv.REQUEST_MODEL)
_AGENT: Final = by(semconv.AGENT_NAME)
_BUDGET: Final = by(BUDGET_NAME, BUDGET_KIND)

TOOL_CALLS: Final = "pellucid:tool_calls:increase10m"
MODEL_CALLS: Final = "pellucid:model_calls:increase10m"
MODEL_P95: Final = "pellucid:model_call_duration_seconds:p95_10m"
RUNS: Final = "pellucid:runs:increase10m"
RUNS_WITHOUT_TOOLS: Final = "pellucid:runs_failed_in_discovery:increase10m"
APPROVALS: Final = "pellucid:approvals_decided:increase"
APPROVALS_PENDING: Final = "pellucid:approvals_pending"
TOKENS: Final = "pellucid:tokens:increase1h"
COST: Final = "pellucid:cost_usd:increase1h"

_TOOLS_BOARD: Final = words.dashboard("pellucid-tools", tool=label(semconv.TOOL_NAME))
_MODELS_BOARD: Final = words.dashboard("pellucid-runs-and-models", model=label(semconv.REQUEST_MODEL))
_RUNS_BOARD: Final = words.dashboard("pellucid-runs-and-models", agent=label(semconv.AGENT_NAME))


def work_records(context: Context) -> Iterator[Record]:
    """Yield the series that the alerts read.

    Calls and runs of 10 min are by `error.type`, tokens and costs of an hour.
    """
    ten, hour = context.window(600), context.window(3600)
    of_tools = by(semconv.TOOL_NAME, semconv.ERROR_TYPE)
    of_models = by(semconv.PROVIDER_NAME, semconv.REQUEST_MODEL, semconv.ERROR_TYPE)
    of_runs = by(semconv.AGENT_NAME, semconv.ERROR_TYPE)
    yield Record(name=TOOL_CALLS, expression=total(semconv.TOOL_DURATION, window=ten, labels=of_tools))
    yield Record(name=MODEL_CALLS, expression=total(semconv.OPERATION_DURATION, window=ten, labels=of_models))
    p95 = quantile(0.95, semconv.OPERATION_DURATION, window=ten, labels=_MODEL)
    yield Record(name=MODEL_P95, expression=p95)
    yield Record(name=RUNS, expression=total(semconv.AGENT_DURATION, window=ten, labels=of_runs))
    in_discovery = where(semconv.PHASE, "=", semconv.DISCOVERY)
    without_tools = total(semconv.RUN_FAILURES, in_discovery, window=ten, labels=_AGENT)
    yield Record(name=RUNS_WITHOUT_TOOLS, expression=without_tools)
    patience = context.window(context.thresholds.approvals_wait)
    yield Record(name=APPROVALS, expression=_decided(patience))
    yield Record(name=APPROVALS_PENDING, expression=approvals_pending(_TOOL))
    yield Record(name=TOKENS, expression=added(semconv.TOKEN_USAGE, window=hour, labels=_MODEL))
    yield Record(name=COST, expression=total(semconv.COST, window=hour, labels=_MODEL))


def _decided(window: str) -> str:
    """Return the decisions that runs have read, or else those that the store got, for which a run may not go on yet."""
    read = total(semconv.APPROVAL_WAIT, window=window, labels=_TOOL)
    decision = (where(semconv.DURABLE_KIND, "=", "approval"), where(semconv.DURABLE_SETTLEMENT, "=", "settled"))
    decided = where(semconv.ASYNC_STATUS, "=", "completed")
    stored = total(semconv.DURABLE_SETTLEMENTS, *decision, decided, window=window, labels=_TOOL)
    return f"{read} > 0\nor {stored}"


def work_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _tool_failing(context)
    yield _model_slow(context)
    yield _model_failing(context)
    yield _run_failing(context)
    yield _token_burn(context)
    yield _cost_burn(context)
    yield _budget_nearly_spent(context)
    yield _approvals_waiting(context)


def _tool_failing(context: Context) -> Alert:
    thresholds = context.thresholds
    context.window(600)
    limit, least = thresholds.tool_failing, thresholds.tool_failing_min
    made = [where(semconv.ERROR_TYPE, "!~", *thresholds.tool_refusals)] if thresholds.tool_refusals else []
    return alert(
        work.tool_failing(context, Words(subject=words.TOOL, value=words.SHARE)),
        expression=mostly(TOOL_CALLS, _TOOL, [*made, FAILED], made, above=limit, least=least),
        dashboard=_TOOLS_BOARD,
    )


def _model_failing(context: Context) -> Alert:
    limit, least = context.thresholds.model_failing, context.thresholds.model_failing_min
    context.window(600)
    return alert(
        work.model_failing(context, Words(subject=words.MODEL, value=words.SHARE)),
        expression=mostly(MODEL_CALLS, _MODEL, [FAILED], [], above=limit, least=least),
        dashboard=_MODELS_BOARD,
    )


def _run_failing(context: Context) -> Alert:
    limit, least = context.thresholds.run_failing, context.thresholds.run_failing_min
    failed, runs = (_with_tools(NOT_HALTED, FAILED), _with_tools(NOT_HALTED))
    return alert(
        work.run_failing(context, Words(subject=words.AGENT, value=words.SHARE)),
        expression=f"""
{failed}
/ ({runs} > 0)
> {number(limit)}
and on ({_AGENT}) {failed} >= {number(least)}
""",
        dashboard=_RUNS_BOARD,
    )


def _with_tools(*matchers: str) -> str:
    """Return the number of runs without those that failed in discovery, whose hub has alerts of its own.

    Processes of versions that do not count these have no such series: nothing is taken off.
    """
    runs = summed(RUNS, _AGENT, *matchers)
    return f"({runs} - {RUNS_WITHOUT_TOOLS} or {runs})"


def _model_slow(context: Context) -> Alert:
    thresholds = context.thresholds
    context.window(600)
    return alert(
        work.model_slow(context, Words(subject=words.MODEL, value=words.DURATION)),
        expression=f"""
{MODEL_P95} > {number(thresholds.model_slow)}
and on ({_MODEL}) {summed(MODEL_CALLS, _MODEL)} >= {number(thresholds.model_slow_min)}
""",
        dashboard=_MODELS_BOARD,
    )


def _token_burn(context: Context) -> Alert:
    limit = context.thresholds.tokens_per_hour
    context.window(3600)
    return alert(
        work.token_burn(context, Words(subject=words.MODEL, value="{{ $value | humanize }}")),
        expression=f"{TOKENS} > {number(limit * context.scale)}",
        dashboard=_MODELS_BOARD,
    )


def _cost_burn(context: Context) -> Alert:
    limit = context.thresholds.cost_per_hour
    context.window(3600)
    return alert(
        work.cost_burn(context, Words(subject=words.MODEL, value='{{ $value | printf "%.2f" }}')),
        expression=f"{COST} > {number(limit * context.scale)}",
        dashboard=_MODELS_BOARD,
    )


def _budget_nearly_spent(context: Context) -> Alert:
    """Define the alert on the account of a budget, of which each process knows what it saw last."""
    spent, limit = (f"max by ({_BUDGET}) ({select(metric)})" for metric in (BUDGET_SPENT, BUDGET_MOST))
    value = f"{words.SHARE} of its {words.value_of(label(BUDGET_KIND))}"
    return alert(
        work.budget_nearly_spent(context, Words(subject=words.BUDGET, value=value)),
        expression=f"{spent} / ({limit} > 0) >= {number(context.thresholds.budget_spent)}",
        dashboard=words.dashboard("pellucid-runs-and-models"),
    )


def _approvals_waiting(context: Context) -> Alert:
    thresholds = context.thresholds
    many = number(thresholds.approvals_many)
    ago = context.window(thresholds.approvals_wait)
    before = f"and on ({_TOOL}) {APPROVALS_PENDING} offset {ago}"
    return Alert(
        name="ApprovalsWaiting",
        expression=f"""
{APPROVALS_PENDING} >= 1 {before} >= 1 unless on ({_TOOL}) {APPROVALS} > 0
or {APPROVALS_PENDING} >= {many} {before} >= {many}
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.TOOL}: {words.NUMBER} calls wait for approval, without a decision for "
        f"{seconds(thresholds.approvals_wait * context.scale)}, or they are {thresholds.approvals_many:g} and more.",
        description="Their runs have stopped and go on when somebody decides.",
        dashboard=_TOOLS_BOARD,
    )
