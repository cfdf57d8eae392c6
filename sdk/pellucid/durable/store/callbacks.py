"""Transactions on callbacks, written once for all dialects. `RunStore` says what each guarantees."""

from __future__ import annotations

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import FINAL, CallbackClaim, CallbackRecord
from pellucid.durable.store.runs import write_events
from pellucid.durable.store.values import Row, call_record, run_record
from pellucid.types import JSONObject


def claim(tx: Transaction, lease: float) -> CallbackClaim | None:
    """Claim the state that has been due for longest."""
    row = tx.one("claim_callback", lease=lease)
    if row is None:
        return None
    run = run_record(tx.all("find_run", id=row["run_id"])[0])  # no callback outlives its run
    calls = tx.all("list_calls", run_id=run.id) if run.status not in FINAL else ()
    return CallbackClaim(_record(row), row["fence"], row["age"], run, tuple(map(call_record, calls)))


def delivered(tx: Transaction, claim: CallbackClaim) -> None:
    """Note that the receiver has accepted a state."""
    callback = claim.callback
    row = tx.one("callback_delivered", run_id=callback.run_id, version=callback.version, fence=claim.fence)
    _notify_if_due(tx, row)


def failed(tx: Transaction, claim: CallbackClaim, error: str, delay: float | None) -> bool:
    """Note an attempt that failed; return whether it was the last one."""
    callback = claim.callback
    # The run's row is locked first, as in all transactions that write to both.
    run = tx.one("advance", id=callback.run_id, entries=1) if delay is None else None
    row = tx.one(
        "callback_failed",
        run_id=callback.run_id,
        version=callback.version,
        fence=claim.fence,
        error=error,
        delay=delay,
    )
    _notify_if_due(tx, row)
    is_dead = row is not None and row["dead_at"] is not None
    if is_dead and run is not None:
        event: JSONObject = {"type": "callback.dead", "version": callback.version, "attempts": callback.attempts}
        write_events(tx, callback.run_id, run["last_seq"], [event])
    return is_dead


def retry(tx: Transaction, run_id: str) -> bool:
    """Make a state due now; return whether there is one that was not delivered."""
    row = tx.one("retry_callback", run_id=run_id)
    _notify_if_due(tx, row)
    return row is not None


def callback(tx: Transaction, run_id: str) -> CallbackRecord | None:
    """Return the callback of a run."""
    row = tx.one("find_callback", run_id=run_id)
    return None if row is None else _record(row)


def dead(tx: Transaction, limit: int) -> tuple[CallbackRecord, ...]:
    """Return the callbacks whose attempts were given up."""
    return tuple(map(_record, tx.all("list_dead_callbacks", limit=limit)))


def has_due(tx: Transaction) -> bool:
    """Return whether a state can be claimed."""
    return tx.one("has_due_callback") is not None


def _notify_if_due(tx: Transaction, row: Row | None) -> None:
    if row is not None and row["next_at"] is not None:
        tx.notify_callbacks()


def _record(row: Row) -> CallbackRecord:
    names = ("run_id", "url", "version", "delivered_version", "attempts", "next_at", "dead_at", "last_error")
    return CallbackRecord(**{name: row[name] for name in names})
