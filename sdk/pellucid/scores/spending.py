"""Spending of scorers on models, for those who call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from pellucid.budgets import Budget
from pellucid.messages import Usage


@dataclass(slots=True, eq=False)
class Spending:
    """Account of the judges that are called in a context.

    Attributes:
        budget: Shared limit of their spending; besides their own budgets.
        usages: Usage of their runs that have returned a result.
        is_refused: Whether the budget was reached.
    """

    budget: Budget | None = None
    usages: list[Usage] = field(default_factory=list)
    is_refused: bool = False


SPENDING: Final[ContextVar[Spending | None]] = ContextVar("pellucid.scores.spending", default=None)
"""The account of the current context."""


@contextmanager
def spent_by_scorers(spending: Spending) -> Iterator[None]:
    """Count what the judges that are called within spend."""
    token = SPENDING.set(spending)
    try:
        yield
    finally:
        SPENDING.reset(token)
