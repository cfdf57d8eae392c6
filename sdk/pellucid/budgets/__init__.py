"""Budgets that many runs share: what a tenant, a team or a service may spend on models, in a calendar period."""

from pellucid.budgets.amounts import Amounts, Need
from pellucid.budgets.budget import Budget, BudgetContext, BudgetError, BudgetOption
from pellucid.budgets.state import BudgetState, BudgetStore, Reservation

__all__ = [
    "Amounts",
    "Budget",
    "BudgetContext",
    "BudgetError",
    "BudgetOption",
    "BudgetState",
    "BudgetStore",
    "Need",
    "Reservation",
]
