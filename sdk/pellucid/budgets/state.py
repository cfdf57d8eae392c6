"""The interface of stores of budgets, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from pellucid.budgets.amounts import NO_AMOUNTS, Amounts, Limits, Need, exceeded, granted
from pellucid.budgets.periods import Per


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """Account of a budget in one period.

    Attributes:
        period: The period, such as `2026-11-27`; empty for a budget without periods.
        spent: Amounts of ended calls, of all runs and processes.
        reserved: Most that the calls in flight may use.
        estimated: Part of what is spent that no process has reported: reservations that have expired.
    """

    period: str
    spent: Amounts = NO_AMOUNTS
    reserved: Amounts = NO_AMOUNTS
    estimated: Amounts = NO_AMOUNTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Answer of a store to a request for a reservation.

    Attributes:
        state: The account after it.
        granted: Amount that the call, and what has to remain after it, may use; None if the reservation was refused.
        limit: Name of the limit that the least need exceeds, if it was refused.
    """

    state: BudgetState
    granted: Amounts | None = None
    limit: str | None = None


def reserved(state: BudgetState, limits: Limits, need: Need) -> Reservation:
    """Return the answer of an account in this state, which then holds what it grants but for `need.spare`."""
    taken = state.spent.plus(state.reserved)
    if (limit := exceeded(limits, taken, need.least)) is not None:
        return Reservation(state=state, limit=limit)
    amounts = granted(limits, taken, need.most)
    after = replace(state, reserved=state.reserved.plus(amounts.plus(need.spare, -1)))
    return Reservation(state=after, granted=amounts)


class BudgetStore(Protocol):
    """Store of the accounts of budgets: memory by default; a `RunStore` is one, too.

    Every method is one transaction. A name and a period have one account, and a reservation that is not settled in time
    counts as spent, until it is settled.
    """

    async def reserve_budget(
        self, reservation_id: str, name: str, per: Per | None, limits: Limits, need: Need, lasts: float
    ) -> Reservation:
        """Reserve as much of `need.most` as remains in the current period, or nothing if `need.least` does not.

        Args:
            reservation_id: A new id.
            name: Name of the budget.
            per: Its period.
            limits: Its limits.
            need: Amounts that the call needs.
            lasts: Seconds after which the reservation has expired.
        """
        ...

    async def settle_budget(self, reservation_id: str, used: Amounts) -> BudgetState | None:
        """Replace a reservation by what was used, also after it has expired; return the account of its period.

        A second time changes nothing, nor does one that is unknown; None is returned then.
        """
        ...

    async def read_budget(self, name: str, per: Per | None) -> BudgetState:
        """Return the account of the current period."""
        ...
