"""Dashboard `Runs and models`: time, tokens and cost of runs, and slow or failing models."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid.semconv.budgets import (
    BUDGET_KIND,
    BUDGET_MOST,
    BUDGET_NAME,
    BUDGET_REFUSED,
    BUDGET_RESERVED,
    BUDGET_SPENT,
)
from pellucid.semconv.scores import EVALUATION_NAME, EVALUATION_SCORE
from pellucid_dashboards.explore import TRACED
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.links import traces_link
from pellucid_dashboards.grafana.panels import Column, Panel, Query, as_legend, lines, percentiles, rows
from pellucid_dashboards.grafana.queries import (
    AGENT,
    MODEL,
    SERVICE,
    SHOWN,
    SINGLE,
    calls,
    grouped,
    mean,
    or_none,
    quantile,
    rate,
    select,
    share,
    total,
)
from pellucid_dashboards.names import series
from pellucid_dashboards.promql import FAILED

UID: Final = "pellucid-runs-and-models"

_BY: Final = (semconv.REQUEST_MODEL,)
_LEGEND: Final = as_legend(semconv.REQUEST_MODEL)
_HERE: Final = (SERVICE, MODEL)


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Runs and models`."""
    return assemble(
        UID,
        "Pellucid / Runs and models",
        "What do runs do with their time, tokens and money, and which model is slow or failing?",
        [
            Shelf(panels=[_phases(), _iterations(), _stops()], title="Runs"),
            Shelf(panels=[_models()], height=6, title="Models"),
            Shelf(panels=[_durations(), _failures()]),
            Shelf(panels=[_tokens(), _cost(), _prompt_cache()]),
            Shelf(panels=[_scores(), _judged()], title="Scores"),
            Shelf(panels=[_budgets(), _refused()], title="Budgets"),
            Shelf(panels=[_decisions()]),
        ],
        chosen_by=["agent", "model", TRACED],
        alerts=(
            'alertname=~"Model.*|RunFailing|TokenBurn|CostBurn|BudgetNearlySpent|AgentProcessBusy|Score.*"',
            SERVICE,
        ),
    )


def _phases() -> Panel:
    phases = {
        semconv.DISCOVERY: total(semconv.DISCOVERY_DURATION, SERVICE, SINGLE),
        semconv.COMPOSE: total(semconv.COMPOSE_DURATION, SERVICE, AGENT),
        semconv.INFERENCE: total(semconv.OPERATION_DURATION, SERVICE, MODEL),
        semconv.DISPATCH: total(semconv.TOOL_DURATION, SERVICE, AGENT),
    }
    return lines(
        "Time by phase",
        "Where does the time of runs go: how many seconds of each phase pass in a second?",
        "none",
        *(Query(expr=expr, legend=phase) for phase, expr in phases.items()),
        stacked=True,
    )


def _iterations() -> Panel:
    return lines(
        "Iterations of a run",
        "How often do runs go round: does an agent need more model calls than it used to?",
        "none",
        *percentiles(semconv.RUN_ITERATIONS, SERVICE, AGENT, by=(semconv.AGENT_NAME,), shares=(0.5, 0.95)),
    )


def _stops() -> Panel:
    ended = calls(semconv.RUN_ITERATIONS, SERVICE, AGENT, by=(semconv.STOP_REASON,))
    return lines(
        "Why runs stop",
        "What ends runs that do not fail: the model's finish reason, a limit, or a person who is waited for?",
        "cpm",
        Query(expr=f"60 * {ended}", legend=as_legend(semconv.STOP_REASON)),
        stacked=True,
    )


def _models() -> Panel:
    requests = calls(semconv.OPERATION_DURATION, *_HERE, by=_BY, window=SHOWN)
    failed = calls(semconv.OPERATION_DURATION, *_HERE, FAILED, by=_BY, window=SHOWN)
    p50, p95 = (quantile(share, semconv.OPERATION_DURATION, *_HERE, by=_BY, window=SHOWN) for share in (0.5, 0.95))
    spent = f"3600 * {rate(semconv.COST, *_HERE, by=_BY, window=SHOWN)}"
    columns = [
        Column(name="Calls per minute", expr=f"60 * {requests}", unit="cpm", decimals=1),
        Column(name="Failed", expr=share(failed, requests), unit="percentunit", red=0.05),
        Column(name="p50", expr=p50, unit="s"),
        Column(name="p95", expr=p95, unit="s"),
        Column(name="Tokens per second", expr=total(semconv.TOKEN_USAGE, *_HERE, by=_BY, window=SHOWN), unit="short"),
        Column(name="Cost per hour", expr=spent, unit="currencyUSD"),
    ]
    links = [traces_link(f"{semconv.CHAT} ${{__value.raw}}")]
    question = "Which model failed, was slow, or cost most in the time shown? Its name leads to its traces."
    return rows("Models", question, (semconv.REQUEST_MODEL, "Model"), columns, links)


def _durations() -> Panel:
    first = quantile(0.95, semconv.TIME_TO_FIRST_CHUNK, *_HERE, by=_BY)
    return lines(
        "Duration of model calls",
        "How long do model calls take, and how soon do streamed ones say something?",
        "s",
        *percentiles(semconv.OPERATION_DURATION, *_HERE, by=_BY, shares=(0.5, 0.95)),
        Query(expr=first, legend=f"{_LEGEND} first chunk p95", exemplar=True),
    )


def _failures() -> Panel:
    failed = calls(semconv.OPERATION_DURATION, *_HERE, FAILED, by=(*_BY, semconv.ERROR_TYPE))
    return lines(
        "Failed model calls",
        "How many calls of a model fail in a minute, and how?",
        "cpm",
        Query(
            expr=or_none(f"60 * {failed}", *_BY, semconv.ERROR_TYPE),
            legend=f"{_LEGEND}: {as_legend(semconv.ERROR_TYPE)}",
        ),
        stacked=True,
    )


def _tokens() -> Panel:
    used = total(semconv.TOKEN_USAGE, *_HERE, by=(*_BY, semconv.TOKEN_TYPE))
    return lines(
        "Tokens per second",
        "Which model reads and writes how many tokens?",
        "short",
        Query(expr=used, legend=f"{_LEGEND} {as_legend(semconv.TOKEN_TYPE)}"),
        stacked=True,
    )


def _cost() -> Panel:
    return lines(
        "Cost per hour",
        "What does each model cost in an hour, at the present rate? Calls of unknown price add nothing.",
        "currencyUSD",
        Query(expr=or_none(f"3600 * {rate(semconv.COST, *_HERE, by=_BY)}", *_BY), legend=_LEGEND),
        stacked=True,
    )


def _prompt_cache() -> Panel:
    cached = mean(semconv.PROMPT_CACHE_SHARE, *_HERE, by=_BY)
    return lines(
        "From the prompt cache",
        "Which share of the input tokens came from the vendor's prompt cache? `none`: no vendor tells.",
        "percentunit",
        Query(expr=or_none(cached, *_BY), legend=_LEGEND),
    )


_JUDGED: Final = (EVALUATION_NAME, semconv.AGENT_NAME, semconv.AGENT_VERSION)
_SAYS: Final = " ".join(as_legend(each) for each in _JUDGED)


def _scores() -> Panel:
    worst = quantile(0.1, EVALUATION_SCORE, SERVICE, AGENT, by=_JUDGED)
    return lines(
        "Scores",
        "How good is each version of an agent: the mean of each score, and its worst tenth with links to traces? Few "
        "scores say little: their number is beside it. `none`: nothing was scored.",
        "none",
        Query(expr=or_none(mean(EVALUATION_SCORE, SERVICE, AGENT, by=_JUDGED), *_JUDGED), legend=f"{_SAYS} mean"),
        Query(expr=worst, legend=f"{_SAYS} p10", exemplar=True),
    )


def _judged() -> Panel:
    return lines(
        "Scores per hour",
        "How many scores is a mean made of?",
        "short",
        Query(expr=or_none(f"3600 * {calls(EVALUATION_SCORE, SERVICE, AGENT, by=_JUDGED)}", *_JUDGED), legend=_SAYS),
        stacked=True,
    )


def _budgets() -> Panel:
    by = (BUDGET_NAME, BUDGET_KIND)
    spent, reserved, most = (
        grouped("max", select(series(metric), SERVICE), by) for metric in (BUDGET_SPENT, BUDGET_RESERVED, BUDGET_MOST)
    )
    legend = f"{as_legend(BUDGET_NAME)} {as_legend(BUDGET_KIND)}"
    return lines(
        "Spent of budgets",
        "How much of each budget that runs share is spent in its period, and reserved by calls in flight?",
        "percentunit",
        Query(expr=f"{spent} / ({most} > 0)", legend=legend),
        Query(expr=f"{reserved} / ({most} > 0)", legend=f"{legend} reserved"),
    )


def _refused() -> Panel:
    by = (BUDGET_NAME, BUDGET_KIND)
    return lines(
        "Refused by budgets",
        "How many model calls were not made in a minute, because they might have exceeded a budget?",
        "cpm",
        Query(
            expr=or_none(f"60 * {rate(BUDGET_REFUSED, SERVICE, by=by)}", *by),
            legend=f"{as_legend(BUDGET_NAME)} {as_legend(BUDGET_KIND)}",
        ),
        stacked=True,
    )


def _decisions() -> Panel:
    attributes = (semconv.OPERATION, semconv.RELIABILITY_THEN, semconv.RELIABILITY_KIND)
    operation, then, kind = map(as_legend, attributes)
    made = f"60 * {rate(semconv.RELIABILITY_DECISIONS, SERVICE, by=attributes)}"
    return lines(
        "Decisions of reliability rules",
        "What did rules have tried again, replaced or given up, in a minute?",
        "cpm",
        Query(expr=or_none(made, *attributes), legend=f"{operation}: {then} ({kind})"),
        stacked=True,
    )
