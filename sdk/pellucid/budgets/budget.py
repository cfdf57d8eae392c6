"""The budget, a value: a name, limits, a period and a store."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args

from pellucid.budgets.accounts import ACCOUNTS
from pellucid.budgets.amounts import NAMES, Limits
from pellucid.budgets.periods import Per
from pellucid.budgets.state import BudgetState, BudgetStore
from pellucid.context import ToolContext
from pellucid.errors import ConfigError, PellucidError
from pellucid.module_names import explained
from pellucid.text import excerpt

MAX_NAME: Final = 255
"""Characters of a name."""


class BudgetError(PellucidError):
    """The account of a budget could not be reached, or the function of an agent's budget failed; nothing was called.

    Attributes:
        budget: Name of the budget, or of the function.
    """

    error_type = "budget_error"

    def __init__(self, budget: str, problem: str) -> None:
        super().__init__(f"budget {budget!r} {problem}; without it, no model is called")
        self.budget = budget


@explained
@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of what many runs spend on models together, in a calendar period in UTC.

    ```python
    agent = Agent("support", model=model, budget=Budget("support", cost=20, per="day"))
    agent = Agent("support", model=model, budget=lambda ctx: Budget(f"tenant:{ctx.identity.tenant}", cost=5, per="day"))
    ```

    All budgets of one name, period and store have one account. Before each model call, what it may cost at most is
    reserved; after it, what it has cost takes the place of that. Calls of sub-agents count, too. When a limit is
    reached, runs end with `stop_reason="budget"`.

    Args:
        name: Name of the account; also a label of metrics.
        cost: US dollars. The prices of all models must be known.
        tokens: Tokens, input and output.
        model_calls: Model calls, each attempt counted.
        per: Calendar period, in UTC, after which nothing is spent again; None for a budget that lasts.
        store: Where the account is; the memory of this process, unless an open `RunStore` is given.

    Raises:
        ConfigError: a value is invalid, or there is no limit.
    """

    name: str
    cost: float | None = field(default=None, kw_only=True)
    tokens: int | None = field(default=None, kw_only=True)
    model_calls: int | None = field(default=None, kw_only=True)
    per: Per | None = field(default=None, kw_only=True)
    store: BudgetStore | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        given: Any = self.name  # such as the tenant of an identity, which may be None
        if not (isinstance(given, str) and 0 < len(given) <= MAX_NAME and given.isprintable()):
            raise ConfigError(f"Budget({excerpt(repr(given))}): the name must be 1 to {MAX_NAME} printable characters")
        for name in NAMES:
            _check(self.name, name, getattr(self, name))
        if all(getattr(self, name) is None for name in NAMES):
            raise ConfigError(f"Budget({self.name!r}) has no limit; give cost=, tokens= or model_calls=")
        if self.per is not None and self.per not in get_args(Per):
            raise ConfigError(f"Budget({self.name!r}, per={self.per!r}): must be 'hour', 'day' or 'month', or None")
        if self.store is not None and not hasattr(self.store, "reserve_budget"):
            raise ConfigError(
                f"Budget({self.name!r}, store={excerpt(repr(self.store))}): must be an open store, such as that of "
                f"open_store('sqlite:///budgets.db')"
            )

    @property
    def limits(self) -> Limits:
        """Limits of cost, tokens and model calls."""
        return self.cost, self.tokens, self.model_calls

    @property
    def accounts(self) -> BudgetStore:
        """The store, or memory."""
        return self.store if self.store is not None else ACCOUNTS

    async def read(self) -> BudgetState:
        """Return what is spent and reserved in the current period.

        Raises:
            StoreUnavailable: the database did not answer in time.
        """
        return await self.accounts.read_budget(self.name, self.per)


BudgetContext: TypeAlias = ToolContext[Any]
"""Context of a run, as the function of an agent's budget receives it: `identity`, `deps`, `run_id`."""

_Budgets: TypeAlias = "Budget | Sequence[Budget] | None"

BudgetOption: TypeAlias = "_Budgets | Callable[[BudgetContext], _Budgets | Awaitable[_Budgets]]"
"""A budget, a sequence of them, or a function of the context of a run that returns some or None."""


NOT_A_BUDGET: Final = "is not a Budget; give one, a sequence of them, or a function of the context that returns some"
"""Text of errors about another value."""


def budgets_of(value: object) -> tuple[Budget, ...] | None:
    """Return the budgets that a value stands for, or None if it is something else."""
    if value is None:
        return ()
    if isinstance(value, Budget):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(item, Budget) for item in value):
        return tuple(value)
    return None


def _check(budget: str, name: str, value: Any) -> None:
    kinds = (int, float) if name == "cost" else int
    if value is None:
        return
    if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < math.inf:
        what = "a number of US dollars" if name == "cost" else "a whole number"
        raise ConfigError(f"Budget({budget!r}, {name}={value!r}): must be {what}, not negative, or None")
