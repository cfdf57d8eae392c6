"""Budgets that a run shares with others: reserve before each model call, settle after it."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.trace import get_current_span
from typing_extensions import override

from pellucid.budgets import Amounts as Used
from pellucid.budgets import Budget, BudgetError, BudgetState, Need, Reservation
from pellucid.budgets.amounts import NAMES, exceeded, limits_of
from pellucid.budgets.budget import NOT_A_BUDGET, budgets_of
from pellucid.concurrency.race import shielded
from pellucid.errors import ConfigError
from pellucid.events import BudgetLow
from pellucid.failures import describe
from pellucid.models import ModelRequest, ModelResponse
from pellucid.models.facts import ModelFacts
from pellucid.run.budget import NOTHING, SHARED, Account, Admitted, Amounts, Grant, Plan, RunBudget
from pellucid.run.budget_metrics import KNOWN, count_refused, refused_counter
from pellucid.run.budgeted import BudgetedInference, check_prices
from pellucid.run.context_functions import call_function
from pellucid.run.outcomes import BudgetReached
from pellucid.run.state import Run
from pellucid.run.unsettled import Unsettled, add, settle_all
from pellucid.semconv import LIMIT_USED, LIMIT_VALUE
from pellucid.semconv.budgets import (
    BUDGET_IS_REFUSED,
    BUDGET_KIND,
    BUDGET_NAME,
    BUDGET_NAMES,
    BUDGET_REACHED,
    BUDGET_USED,
)
from pellucid.telemetry import Boundary
from pellucid.text import excerpt
from pellucid.tools.functions import name_of

_log = logging.getLogger("pellucid.budgets")

NEARLY: Final = 0.8
"""Share of a budget at which it is nearly spent."""

LASTS: Final = 600.0
"""Seconds for which a reservation lasts if model calls have no time limit."""

MARGIN: Final = 60.0
"""Seconds for which it lasts beyond their time limit."""


class SharedBudget:
    """A budget, as one of the runs that share it sees it.

    Attributes:
        budget: The budget.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    @property
    def key(self) -> object:
        """The same for all budgets that have one account."""
        return id(self.budget.accounts), self.budget.name, self.budget.per

    def __str__(self) -> str:
        limits = ", ".join(f"{name}={limit:g}" for _, name, limit in limits_of(self.budget.limits))
        return f"Budget({self.budget.name!r}, {limits})"

    @property
    def name(self) -> str:
        """Name of the budget."""
        return self.budget.name

    @property
    def has_cost(self) -> bool:
        """True if the budget limits dollars."""
        return self.budget.cost is not None

    def exceeded(self, need: Amounts) -> str | None:
        """Return the name of a limit that this certainly exceeds, by what is known to be spent, or None."""
        state = KNOWN.state(self.key)
        return None if state is None else exceeded(self.budget.limits, state.spent, self.amounts(need))

    def amounts(self, need: Amounts) -> Used:
        """Return what a call needs; an unknown cost is nothing if dollars are not limited."""
        cost = need["max_cost"] if self.has_cost or need["max_cost"] < math.inf else 0.0
        return Used(cost, need["max_tokens"], need["max_model_calls"])

    @property
    def state(self) -> BudgetState:
        """The latest state that is known."""
        return KNOWN.state(self.key) or BudgetState(period="")

    @property
    def used(self) -> tuple[float, str]:
        """Largest share of a limit that is spent, as far as is known, and the name of the limit."""
        spent = self.state.spent
        limits = limits_of(self.budget.limits)
        return max((spent[index] / limit if limit else 1.0, name) for index, name, limit in limits)

    def figures(self, limit: str) -> tuple[float, float, float]:
        """Return a limit, what is spent of it, and what is reserved by calls in flight."""
        state, index = self.state, NAMES.index(limit)
        return float(self.budget.limits[index] or 0), float(state.spent[index]), float(state.reserved[index])

    def record(self, b: Boundary, limit: str) -> None:
        """Record that the run ended because this limit is reached."""
        value, spent, reserved = self.figures(limit)
        figures = {LIMIT_VALUE: value, LIMIT_USED: spent + reserved}
        b.attributes({BUDGET_REACHED: self.budget.name, BUDGET_KIND: limit, **figures})


class SharedRunBudget(RunBudget):
    """Allowance of a run that shares budgets with other runs.

    Raises:
        ConfigError: its option `budget` is not one.
    """

    def __init__(self, run: Run, own: Account | None, outer: RunBudget | None) -> None:
        super().__init__(run, own, outer)
        self._functions: list[Callable[..., Any]] = []
        found: list[Budget] = []
        for option in (run.setup.budget, run.caller.budget):
            if (budgets := budgets_of(option)) is not None:
                found += budgets
            elif callable(option):
                self._functions.append(option)
            else:
                raise ConfigError(f"Agent {run.setup.name!r}: budget={excerpt(repr(option))} of a run {NOT_A_BUDGET}")
        self.shared = [SharedBudget(budget) for budget in found]
        if run.scope.is_measured:
            run.scope.guarded("metric", refused_counter, run.scope)

    async def evaluate(self) -> None:
        """Call the functions of the option, before the first model call that counts.

        Raises:
            BudgetError: one failed, or returned something else.
            ConfigError: its budget limits dollars, and the price of a model is unknown.
        """
        if not self._functions:
            return
        found = [budget for function in self._functions for budget in await _returned(self._run, function)]
        if self._functions:  # else another sub-agent was faster
            self._functions = []
            self.shared = [*self.shared, *map(SharedBudget, found)]
            check_prices(self._run, self)

    @override
    def record(self, b: Boundary) -> None:
        """Record the budgets, and how much of each is spent."""
        super().record(b)
        shared = [shared for shared in self.shared if isinstance(shared, SharedBudget)]
        if shared:
            names, used = [item.budget.name for item in shared], [item.used[0] for item in shared]
            b.attributes({BUDGET_NAMES: names, BUDGET_USED: used})


async def _returned(run: Run, function: Callable[..., Any]) -> tuple[Budget, ...]:
    value = await call_function(run, function, BudgetError)
    if (budgets := budgets_of(value)) is None:
        problem = f"returned {type(value).__name__} instead of a Budget, a sequence of them, or None"
        raise BudgetError(name_of(function), problem)
    return budgets


class SharedInference(BudgetedInference):
    """Attempts to get an answer, each of which reserves what it may cost at most."""

    _held: list[tuple[SharedBudget, str]]
    """The reservations of this attempt, by their ids."""

    @override
    async def admitted(self, plan: Plan) -> Admitted:
        self._held = []
        budget: RunBudget | None = self.budget
        while budget is not None:
            if isinstance(budget, SharedRunBudget):
                await budget.evaluate()
            budget = budget.outer
        call: Admitted | str | None = self.budget.refusal(plan)
        if call is None:
            try:
                call = await self._reserve(plan)
            except GeneratorExit:
                raise
            except BaseException:
                await self.settled(NOTHING)
                raise
        if isinstance(call, str):
            self._report_refusal(call)
            await self.settled(NOTHING)
            raise BudgetReached(call, self.catalog)
        return call

    async def _reserve(self, plan: Plan) -> Admitted | str:
        """Reserve a call in all budgets; return it, or the reason why it is refused."""
        grants: list[Grant] = []
        for shared, kept in self.budget.shared_accounts():
            assert isinstance(shared, SharedBudget)
            reservation = await self._reserve_in(shared, plan, kept)
            self._update(shared, reservation.state)
            if reservation.granted is None:
                return self.budget.refuse(shared, reservation.limit or "")
            grants.append((Account(_limits(reservation.granted)), kept, shared))
        return self.budget.admit(plan, grants)

    async def _reserve_in(self, shared: SharedBudget, plan: Plan, kept: Amounts) -> Reservation:
        """Reserve the most that a call may cost, and see that the rest of the run's work remains possible.

        Raises:
            BudgetError: the store failed.
        """
        budget, timeout = shared.budget, self.run.limits.model_timeout
        least, most, alone = (shared.amounts(amounts) for amounts in self.budget.range(plan, kept))
        reservation_id = uuid.uuid4().hex
        try:
            await settle_all(budget.accounts)
            self._held.append((shared, reservation_id))
            return await budget.accounts.reserve_budget(
                reservation_id,
                budget.name,
                budget.per,
                budget.limits,
                Need(least, most, least.plus(alone, -1)),
                (timeout if timeout is not None else LASTS) + MARGIN,
            )
        except Exception as error:
            raise BudgetError(budget.name, f"could not be asked: {describe(error)}") from error

    @override
    async def settled(self, used: Amounts) -> None:
        held, self._held = self._held, []
        for shared, reservation_id in held:
            await shielded(self._settle, shared, reservation_id, shared.amounts(used))

    async def _settle(self, shared: SharedBudget, reservation_id: str, used: Used) -> None:
        """Settle a reservation; one that cannot be settled now is settled before the next one is made, or expires."""
        accounts = shared.budget.accounts
        try:
            state = await accounts.settle_budget(reservation_id, used)
        except Exception as error:  # noqa: BLE001  (the answer is there, and its reservation still counts)
            _log.warning("budget.not_settled name=%s: %s", shared.budget.name, self.run.scope.text_of(error))
            add(accounts, Unsettled(reservation_id, used))
            return
        if state is not None:
            self._update(shared, state)

    def _report_refusal(self, reason: str) -> None:
        """Count a refusal and emit its event, if a shared budget is the reason."""
        if reason == SHARED and self.budget.reached_shared is not None:
            shared, limit = self.budget.reached_shared
            assert isinstance(shared, SharedBudget)
            self._warn(shared)
            if self._report(shared, limit, is_refused=True):
                count_refused(self.run.scope, shared.budget, limit)

    def _update(self, shared: SharedBudget, state: BudgetState) -> None:
        """Remember the latest state of an account."""
        KNOWN.update(shared.key, shared.budget, state)
        self._warn(shared)

    def _warn(self, shared: SharedBudget) -> None:
        """Emit an event if a budget is nearly spent."""
        share, limit = shared.used
        if share >= NEARLY:
            self._report(shared, limit, is_refused=False)

    def _report(self, shared: SharedBudget, limit: str, *, is_refused: bool) -> bool:
        """Emit an event about a budget, unless it was in this run; a closing answer may be refused, too."""
        value, spent, reserved = shared.figures(limit)
        scope, key = self.run.scope, (is_refused or spent >= value, is_refused, shared.key)
        if key in self.budget.reported:
            return False
        self.budget.reported.add(key)
        span, name = get_current_span(), shared.budget.name
        facts: dict[str, Any] = {BUDGET_NAME: name, BUDGET_KIND: limit}
        facts |= {LIMIT_VALUE: value, LIMIT_USED: spent + reserved}
        scope.add_event(span, BudgetLow.name, {**facts, BUDGET_IS_REFUSED: is_refused})
        payload = {"budget": name, "limit": limit, "value": value, "spent": spent, "reserved": reserved}
        payload |= {"period": shared.state.period, "is_refused": is_refused}
        scope.emit(BudgetLow, span.get_span_context(), payload)
        return True

    @override
    async def _answer(self, b: Boundary, model: ModelFacts, request: ModelRequest) -> ModelResponse:
        b.attributes({BUDGET_NAMES: [shared.budget.name for shared, _ in self._held]})
        return await super()._answer(b, model, request)


def _limits(amounts: Used) -> Amounts:
    """Return amounts by the names of a run's limits."""
    return {"max_cost": amounts.cost, "max_tokens": amounts.tokens, "max_model_calls": amounts.model_calls}
