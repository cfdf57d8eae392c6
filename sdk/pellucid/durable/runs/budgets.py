"""Budgets of submitted runs, kept with their requests. Imported when a run has some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pellucid.budgets import Budget
from pellucid.budgets.budget import budgets_of
from pellucid.durable.store import RunStore
from pellucid.errors import ConfigError
from pellucid.text import excerpt

_KEPT = ("name", "cost", "tokens", "model_calls", "per")


def dump_budgets(value: object, store: RunStore) -> list[dict[str, Any]]:
    """Return budgets as they are kept.

    Raises:
        ConfigError: the value is something else, or an account is elsewhere.
    """
    budgets = budgets_of(value)
    if budgets is None:
        raise ConfigError(f"submit(budget={excerpt(repr(value))}): give a Budget or a sequence of them")
    for budget in budgets:
        if budget.store is not store:
            raise ConfigError(
                f"submit(budget=Budget({budget.name!r})): give the budget store=, the store of these runs, which every "
                f"worker reaches"
            )
    return [{name: getattr(budget, name) for name in _KEPT} for budget in budgets]


def load_budgets(kept: Iterable[Mapping[str, Any]], store: RunStore) -> list[Budget]:
    """Return the budgets of a run, with their accounts in its store.

    Raises:
        ConfigError, TypeError: they are damaged.
    """
    return [Budget(**values, store=store) for values in kept]
