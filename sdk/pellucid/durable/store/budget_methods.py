"""Methods of the store on budgets: what a `Budget(store=...)` calls."""

from __future__ import annotations

from functools import partial

from pellucid.budgets import Amounts, BudgetState, Need, Reservation
from pellucid.budgets.amounts import Limits
from pellucid.budgets.periods import Per
from pellucid.durable.store import budgets
from pellucid.durable.store.transactions import Transactions


class BudgetMethods(Transactions):
    """Accounts of budgets, by name and calendar period in UTC, by the database's clock.

    A reservation that is not settled in time counts as spent, until it is settled.
    """

    async def reserve_budget(
        self, reservation_id: str, name: str, per: Per | None, limits: Limits, need: Need, lasts: float
    ) -> Reservation:
        """Reserve as much of `need.most` as remains in the current period, or nothing if `need.least` does not.

        Args:
            reservation_id: A new id.
            name: Name of the budget.
            per: Its period.
            limits: Its limits of cost, tokens and model calls.
            need: Amounts that the call needs.
            lasts: Seconds after which the reservation has expired.
        """
        reservation = partial(budgets.reserve, reservation_id=reservation_id, name=name, per=per, limits=limits)
        return await self._write(partial(reservation, need=need, lasts=lasts))

    async def settle_budget(self, reservation_id: str, used: Amounts) -> BudgetState | None:
        """Replace a reservation by what was used, also after it has expired; return the account of its period.

        A second time changes nothing, nor does one that is unknown; None is returned then.
        """
        return await self._write(partial(budgets.settle, reservation_id=reservation_id, used=used))

    async def read_budget(self, name: str, per: Per | None) -> BudgetState:
        """Return the account of the current period of a budget."""
        return await self._read(partial(budgets.read, name=name, per=per))

    async def list_budgets(self) -> tuple[tuple[str, BudgetState], ...]:
        """Return names and states of all accounts, by name, the latest period first.

        The store does not know the limits: they are those of the `Budget` that each run has.
        """
        return await self._read(budgets.list_budgets)
