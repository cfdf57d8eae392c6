"""Transactions on the accounts of budgets.

The row of an account is the lock of its reservations, and is taken first. Periods and expiry are by the database's
clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from pellucid.budgets import Amounts, BudgetState, Need, Reservation
from pellucid.budgets.amounts import NAMES, NO_AMOUNTS, Limits
from pellucid.budgets.periods import Per, period_at
from pellucid.budgets.state import reserved
from pellucid.durable.store import queries
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.values import Row


def reserve(
    tx: Transaction,
    reservation_id: str,
    name: str,
    per: Per | None,
    limits: Limits,
    need: Need,
    lasts: float,
) -> Reservation:
    """Reserve as much as remains, under the lock of the account."""
    if tx.is_repeat and (row := tx.one("find_reservation", id=reservation_id)) is not None:
        state = _state(tx, tx.all("lock_budget", name=name, period=row["period"])[0])
        return Reservation(state=state, granted=_amounts(row).plus(need.spare))
    account = tx.all("lock_budget", name=name, period=period_at(per, queries.now(tx)))[0]
    answer = reserved(_state(tx, account), limits, need)
    if answer.granted is not None:
        held = dict(zip(NAMES, answer.granted.plus(need.spare, -1), strict=True))
        tx.all("insert_reservation", id=reservation_id, name=name, period=account["period"], lasts=lasts, **held)
    return answer


def settle(tx: Transaction, reservation_id: str, used: Amounts) -> BudgetState | None:
    """Replace a reservation by what was used."""
    if (row := tx.one("find_reservation", id=reservation_id)) is None:
        return None
    key = {"name": row["name"], "period": row["period"]}
    tx.all("lock_budget", **key)
    if tx.one("delete_reservation", id=reservation_id) is None:  # settled by another transaction meanwhile
        return None
    return _state(tx, tx.all("spend", **key, **dict(zip(NAMES, used, strict=True)))[0])


def read(tx: Transaction, name: str, per: Per | None) -> BudgetState:
    """Return the account of the current period."""
    period = period_at(per, queries.now(tx))
    account = tx.one("find_budget", name=name, period=period)
    return _state(tx, account) if account is not None else BudgetState(period=period)


def list_budgets(tx: Transaction) -> tuple[tuple[str, BudgetState], ...]:
    """Return the names and states of all accounts, the latest period of a name first."""
    sums: dict[tuple[str, str], dict[int, Amounts]] = {}
    for row in tx.all("sum_all_reservations"):
        sums.setdefault((row["name"], row["period"]), {})[row["is_expired"]] = _amounts(row)
    rows = tx.all("list_budgets")
    return tuple((row["name"], _with_reservations(row, sums.get((row["name"], row["period"]), {}))) for row in rows)


def purge(tx: Transaction, older_than: float) -> None:
    """Delete accounts of periods that are over, if they were not used for some time."""
    now = queries.now(tx)
    periods = {per: period_at(per, now) for per in ("hour", "day", "month")}
    tx.all("delete_old_budgets", older_than=older_than, **periods)
    tx.all("delete_old_reservations", older_than=older_than)


def _state(tx: Transaction, account: Row) -> BudgetState:
    key = {"name": account["name"], "period": account["period"]}
    return _with_reservations(account, {row["is_expired"]: _amounts(row) for row in tx.all("sum_reservations", **key)})


def _with_reservations(account: Row, sums: Mapping[int, Amounts]) -> BudgetState:
    """Return the state of an account, given the sums of its reservations by whether their time is over."""
    expired = sums.get(1, NO_AMOUNTS)
    spent, reserved = _amounts(account).plus(expired), sums.get(0, NO_AMOUNTS)
    return BudgetState(period=account["period"], spent=spent, reserved=reserved, estimated=expired)


def _amounts(row: Row) -> Amounts:
    return Amounts(*(float(row[name]) for name in NAMES))
