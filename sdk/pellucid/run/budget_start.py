"""Give a run that starts its budget. Imported when what such a run spends is limited."""

from __future__ import annotations

from pellucid.messages import Usage
from pellucid.run.budget import Account, RunBudget, limits_of
from pellucid.run.budgeted import BudgetedInference, check_prices
from pellucid.run.state import Run


def start_budget(run: Run) -> None:
    """Give a run its budget, with what it had spent before it was resumed.

    Raises:
        ConfigError: its cost is limited, and the price of a model is unknown; or its option `budget` is invalid.
    """
    limits, outer_run = limits_of(run.limits), run.nesting.outer
    own = Account(limits) if limits else None
    outer = outer_run.nesting.budget if outer_run is not None else None
    if run.setup.budget is None and run.caller.budget is None:
        budget = RunBudget(run, own, outer)
        budget.inference = outer.inference if outer is not None else BudgetedInference
    else:
        from pellucid.run.shared_budgets import SharedInference, SharedRunBudget

        budget = SharedRunBudget(run, own, outer)
        budget.inference = SharedInference
    if (resumed := run.pausing.resumption) is not None:
        budget.restore(resumed.checkpoint.spent or _known(resumed.checkpoint.usage))
    check_prices(run, budget)
    run.nesting.budget, run.nesting.inference = budget, budget.inference


def _known(usage: Usage) -> dict[str, float]:
    """Return the amounts in a checkpoint of a run that had no limits when it paused."""
    tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    return {"max_cost": usage.cost or 0.0, "max_tokens": tokens}
