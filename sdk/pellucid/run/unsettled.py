"""Reservations whose settlement failed, by store: settled before the next reservation there."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from pellucid.budgets import Amounts, BudgetStore

MOST: Final = 10_000
"""Settlements that wait; the first ones are given up, and their reservations expire."""


class Unsettled(NamedTuple):
    """Amounts that a call has used."""

    reservation_id: str
    used: Amounts


_waiting: Final[WeakKeyDictionary[BudgetStore, deque[Unsettled]]] = WeakKeyDictionary()


def add(store: BudgetStore, call: Unsettled) -> None:
    """Add a call whose settlement failed."""
    _waiting.setdefault(store, deque(maxlen=MOST)).append(call)


async def settle_all(store: BudgetStore) -> None:
    """Settle the calls of a store that wait; those that fail remain.

    Raises:
        Exception: the store failed.
    """
    calls = _waiting.get(store)
    while calls:
        call = calls.popleft()
        try:
            await store.settle_budget(*call)
        except BaseException:
            calls.appendleft(call)
            raise
