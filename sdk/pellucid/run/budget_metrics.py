"""Metrics of shared budgets in this process: their gauges, and a counter of the calls that they refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry.util.types import AttributeValue

from pellucid.budgets import Amounts, Budget, BudgetState
from pellucid.budgets.amounts import limits_of
from pellucid.budgets.periods import period_at
from pellucid.concurrency.forks import reset_in_child
from pellucid.semconv import Metric
from pellucid.semconv.budgets import (
    BUDGET_KIND,
    BUDGET_MOST,
    BUDGET_NAME,
    BUDGET_REFUSED,
    BUDGET_RESERVED,
    BUDGET_SPENT,
)
from pellucid.telemetry import Scope
from pellucid.telemetry.labels import Labels
from pellucid.telemetry.metrics import create, observe

_PACKAGE: Final = "pellucid.budgets"

_MOST: Final = 10_000
"""Budgets that are remembered; the first ones are forgotten."""


class KnownBudgets:
    """Latest states of the budgets that runs of this process count against. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[object, tuple[Budget, BudgetState]] = {}
        reset_in_child(self, _lock=threading.Lock, _states=dict)

    def update(self, key: object, budget: Budget, state: BudgetState) -> None:
        """Remember a state, unless a later one of the same period is known: what is spent never becomes less."""
        with self._lock:
            _, known = self._states.pop(key, (budget, state))
            is_later = known.period == state.period and known.spent.model_calls > state.spent.model_calls
            self._states[key] = budget, known if is_later else state
            if len(self._states) > _MOST:
                del self._states[next(iter(self._states))]

    def state(self, key: object) -> BudgetState | None:
        """Return the latest state of a budget in its current period, or None if nothing is known of it."""
        with self._lock:
            budget, state = self._states.get(key, (None, None))
        return state if budget is not None and state is not None and _is_current(budget, state) else None

    def read(self, metric: Metric) -> list[tuple[dict[str, str], float]]:
        """Return labels and values of a gauge; nothing is spent of a period that has just begun."""
        with self._lock:
            states = list(self._states.values())
        return [reading for budget, state in states for reading in _readings(metric, budget, state)]


def _is_current(budget: Budget, state: BudgetState) -> bool:
    return state.period == period_at(budget.per, time.time())


def _readings(metric: Metric, budget: Budget, state: BudgetState) -> Iterator[tuple[dict[str, str], float]]:
    spent, reserved = (state.spent, state.reserved) if _is_current(budget, state) else (Amounts(), Amounts())
    for index, name, limit in limits_of(budget.limits):
        values = {BUDGET_SPENT: spent[index], BUDGET_RESERVED: reserved[index], BUDGET_MOST: limit}
        yield {BUDGET_NAME: budget.name, BUDGET_KIND: name}, values[metric]


KNOWN: Final = KnownBudgets()
"""The states of this process."""


def refused_counter(scope: Scope) -> Any:
    """Return the counter of refused calls of a run's meter provider, and start to observe the gauges there."""
    instruments = scope.instruments
    if (counter := instruments.more.get(_PACKAGE)) is None:
        counter = instruments.more.setdefault(_PACKAGE, create(instruments.meter, BUDGET_REFUSED))
        for metric in (BUDGET_SPENT, BUDGET_RESERVED, BUDGET_MOST):
            observe(instruments.meter, metric, partial(_bounded, instruments.labels, metric))
    return counter


def _bounded(bounds: Labels, metric: Metric) -> list[tuple[Mapping[str, AttributeValue], float]]:
    """Return readings by bounded labels: of budgets beyond the bound, which have one name, the largest."""
    found: dict[frozenset[Any], float] = {}
    for labels, value in KNOWN.read(metric):
        key = frozenset(bounds.bounded(labels).items())
        found[key] = max(value, found.get(key, 0.0))
    return [(dict(key), value) for key, value in found.items()]


def count_refused(scope: Scope, budget: Budget, limit: str) -> None:
    """Count a model call that a budget refused."""
    if scope.is_measured:
        labels = scope.instruments.labels.bounded({BUDGET_NAME: budget.name, BUDGET_KIND: limit})
        scope.guarded("metric", refused_counter(scope).add, 1, labels)
