"""Names of what runs with shared budgets emit; a program without a `Budget` does not load them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.metrics import Metric

BUDGET_NAMES: Final = "pellucid.budget.names"
BUDGET_USED: Final = "pellucid.budget.used"
BUDGET_REACHED: Final = "pellucid.budget.reached"
BUDGET_NAME: Final = "pellucid.budget.name"
BUDGET_KIND: Final = "pellucid.budget.kind"
BUDGET_IS_REFUSED: Final = "pellucid.budget.is_refused"

_LABELS: Final = (BUDGET_NAME, BUDGET_KIND)

BUDGET_SPENT: Final = Metric(
    "gauge",
    "{amount}",
    "pellucid.budget.spent",
    "What all processes have spent of a budget in its current period: US dollars, tokens or calls.",
    _LABELS,
)
BUDGET_RESERVED: Final = Metric(
    "gauge",
    "{amount}",
    "pellucid.budget.reserved",
    "What the model calls in flight of all processes may spend of a budget at most: US dollars, tokens or calls.",
    _LABELS,
)
BUDGET_MOST: Final = Metric(
    "gauge", "{amount}", "pellucid.budget.limit", "Limit of a budget: US dollars, tokens or calls.", _LABELS
)
BUDGET_REFUSED: Final = Metric(
    "counter",
    "{call}",
    "pellucid.budget.refused",
    "Model calls that were not made, because they might have exceeded a budget.",
    _LABELS,
)

BUDGET_METRICS: Final = (BUDGET_SPENT, BUDGET_RESERVED, BUDGET_MOST, BUDGET_REFUSED)
"""Instruments of shared budgets."""
