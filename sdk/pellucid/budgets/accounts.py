"""Accounts of budgets in the memory of this process, for all of its threads and event loops."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pellucid.budgets.amounts import NO_AMOUNTS, Amounts, Limits, Need
from pellucid.budgets.periods import Per, period_at
from pellucid.budgets.state import BudgetState, Reservation, reserved
from pellucid.concurrency.forks import reset_in_child

_SWEPT_ABOVE: Final = 1_000
"""Number of accounts at which those of earlier periods are looked for; doubled by those that are current."""


@dataclass(slots=True)
class _Account:
    """Account of a budget in one period.

    Attributes:
        open: Amounts of reservations, and when they expire, by id.
        expired: Amounts of those that have expired, which count as spent until they are settled.
        soonest: Time before which none expires.
    """

    per: Per | None
    spent: Amounts = NO_AMOUNTS
    reserved: Amounts = NO_AMOUNTS
    estimated: Amounts = NO_AMOUNTS
    open: dict[str, tuple[Amounts, float]] = field(default_factory=dict)
    expired: dict[str, Amounts] = field(default_factory=dict)
    soonest: float = math.inf

    def reserve(self, reservation_id: str, amounts: Amounts, until: float) -> None:
        """Reserve amounts."""
        self.open[reservation_id] = amounts, until
        self.reserved, self.soonest = self.reserved.plus(amounts), min(self.soonest, until)

    def expire(self, now: float) -> None:
        """Count reservations as spent that were not settled in time."""
        if now < self.soonest:
            return
        for reservation_id, (_, until) in list(self.open.items()):
            if until <= now:
                self.expired[reservation_id] = amounts = self._closed(reservation_id)
                self.spent, self.estimated = self.spent.plus(amounts), self.estimated.plus(amounts)
        self.soonest = min((until for _, until in self.open.values()), default=math.inf)

    def settle(self, reservation_id: str, used: Amounts) -> None:
        """Replace a reservation by what was used."""
        if (late := self.expired.pop(reservation_id, None)) is not None:
            self.spent = self.spent.plus(late, -1).plus(used)
            self.estimated = self.estimated.plus(late, -1) if self.expired else Amounts()
        elif reservation_id in self.open:
            self._closed(reservation_id)
            self.spent = self.spent.plus(used)

    def state(self, period: str) -> BudgetState:
        """Return the state of the account."""
        return BudgetState(period=period, spent=self.spent, reserved=self.reserved, estimated=self.estimated)

    def _closed(self, reservation_id: str) -> Amounts:
        amounts, _ = self.open.pop(reservation_id)
        self.reserved = self.reserved.plus(amounts, -1) if self.open else Amounts()  # sums of dollars are not exact
        return amounts


class MemoryAccounts:
    """Accounts in memory, by name and period. Thread-safe; a forked child starts with empty ones.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._reserved_in: dict[str, tuple[str, str]] = {}
        self._most = _SWEPT_ABOVE  # accounts before a sweep
        reset_in_child(self, _lock=threading.Lock, _accounts=dict, _reserved_in=dict)

    async def reserve_budget(
        self, reservation_id: str, name: str, per: Per | None, limits: Limits, need: Need, lasts: float
    ) -> Reservation:
        """Reserve as much as remains; see `BudgetStore`."""
        with self._lock:
            period, account = self._current(name, per)
            answer = reserved(account.state(period), limits, need)
            if answer.granted is not None:
                self._reserved_in[reservation_id] = name, period
                account.reserve(reservation_id, answer.granted.plus(need.spare, -1), self._clock() + lasts)
            return answer

    async def settle_budget(self, reservation_id: str, used: Amounts) -> BudgetState | None:
        """Replace a reservation by what was used; see `BudgetStore`."""
        with self._lock:
            key = self._reserved_in.pop(reservation_id, None)
            if key is None or (account := self._accounts.get(key)) is None:
                return None
            account.settle(reservation_id, used)
            return account.state(key[1])

    async def read_budget(self, name: str, per: Per | None) -> BudgetState:
        """Return the account of the current period."""
        with self._lock:
            period, account = self._current(name, per)
            return account.state(period)

    def _current(self, name: str, per: Per | None) -> tuple[str, _Account]:
        now = self._clock()
        period = period_at(per, now)
        account = self._accounts.get((name, period))
        if account is None:
            self._sweep(now)
            account = self._accounts[name, period] = _Account(per)
        account.expire(now)
        return period, account

    def _sweep(self, now: float) -> None:
        """Remove accounts of earlier periods in which no call is in flight, once there are many."""
        if len(self._accounts) < self._most:
            return
        kept = {
            key: account
            for key, account in self._accounts.items()
            if account.open or key[1] == period_at(account.per, now)
        }
        self._reserved_in = {reservation_id: key for reservation_id, key in self._reserved_in.items() if key in kept}
        self._accounts, self._most = kept, max(_SWEPT_ABOVE, 2 * len(kept))


ACCOUNTS: Final = MemoryAccounts()
"""Accounts of budgets without a store."""
