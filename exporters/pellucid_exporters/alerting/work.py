"""Alerts on the work of agents: tools, models, runs, cost, and asynchronous calls."""

from __future__ import annotations

from pellucid_exporters.alerting.definition import (
    HALF_HOUR,
    HOUR,
    TEN_MINUTES,
    Context,
    Definition,
    Words,
    seconds,
    share,
)


def tool_failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed tool calls."""
    return Definition(
        name="ToolFailing",
        severity="ticket",
        after=120.0,
        summary=_fails(context, words, "calls", context.thresholds.tool_failing),
        description="The model reads each failure and may try something else. Calls that were denied, refused by "
        "a person or cancelled are not failures.",
    )


def model_failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed model calls."""
    return Definition(
        name="ModelFailing",
        severity="page",
        after=120.0,
        summary=_fails(context, words, "calls", context.thresholds.model_failing),
        description="Unless a FallbackModel or a reliability rule stands in for it, each failure ends a run.",
    )


def run_failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed runs."""
    return Definition(
        name="RunFailing",
        severity="page",
        after=120.0,
        summary=_fails(context, words, "runs", context.thresholds.run_failing),
        description="Callers got no answer. Runs that were cancelled, that wait for a person, or that the "
        "permission policy halted are not failures.",
    )


def model_slow(context: Context, words: Words) -> Definition:
    """Define the alert on slow model calls."""
    return Definition(
        name="ModelSlow",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject} is slow: p95 of its calls in {context.window(TEN_MINUTES)} is {words.value}; the "
        f"limit is {seconds(context.thresholds.model_slow)}.",
        description="One of twenty calls takes that long or longer. Long answers take long too: compare with the "
        "tokens and with the time to the first chunk.",
    )


def token_burn(context: Context, words: Words) -> Definition:
    """Define the alert on the tokens of an hour."""
    return Definition(
        name="TokenBurn",
        severity="ticket",
        summary=f"{words.subject} used {words.value} tokens in {context.window(HOUR)}; the limit is "
        f"{context.thresholds.tokens_per_hour:,.0f}.",
        description="Input and output together. A run in circles, longer contexts or more users look like this.",
    )


def cost_burn(context: Context, words: Words) -> Definition:
    """Define the alert on the cost of an hour."""
    return Definition(
        name="CostBurn",
        severity="page",
        summary=f"{words.subject} cost {words.value} US dollars in {context.window(HOUR)}; the limit is "
        f"{context.thresholds.cost_per_hour:,.2f}.",
        description="As far as prices are known: calls of models without a price add nothing.",
    )


def budget_nearly_spent(context: Context, words: Words) -> Definition:
    """Define the alert on budgets of which little is left."""
    return Definition(
        name="BudgetNearlySpent",
        severity="ticket",
        summary=f"{words.subject} is nearly spent: {words.value} in its period; the limit of this alert is "
        f"{share(context.thresholds.budget_spent)}.",
        description="When it is spent, its runs end early with what they have, until the next period.",
    )


def external_failing(context: Context, words: Words) -> Definition:
    """Define the alert on asynchronous calls without a usable result."""
    return Definition(
        name="ExternalToolFailing",
        severity="ticket",
        after=120.0,
        summary=f"{words.subject}: {words.value} of the results of its asynchronous calls in "
        f"{context.window(HALF_HOUR)} are failures, or did not arrive before the deadline; the limit is "
        f"{share(context.thresholds.external_failing)}.",
        description="The model reads each failure and may try something else. Calls that were cancelled are no "
        "failures.",
    )


def _fails(context: Context, words: Words, what: str, limit: float) -> str:
    window = context.window(TEN_MINUTES)
    return f"{words.subject} fails: {words.value} of its {what} in {window}; the limit is {share(limit)}."
