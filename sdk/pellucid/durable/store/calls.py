"""Transactions on calls, written once for all dialects. `RunStore` says what each guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from pellucid.approvals.numbers import integral
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import CallKind, CallRecord, Claim, Lease, NewCall, Settlement, SettlementOutcome
from pellucid.durable.store.runs import BATCH, Entries, advance, insert_calls, write_entries, write_events
from pellucid.durable.store.values import Row, call_record, digest_of, dump, dump_optional
from pellucid.types import JSONObject, JSONValue

_EXPIRED: Final = digest_of("expired", None)


def register(
    tx: Transaction, claim: Claim, calls: Sequence[NewCall], entries: Entries, events: Sequence[JSONValue]
) -> Lease:
    """Insert calls and count them as pending."""
    if tx.is_repeat:
        row = tx.one("find_call", id=calls[0].id)
        if row is not None and row["run_id"] == claim.run.id:
            return advance(tx, claim)
    lease = advance(tx, claim, entries=len(entries) + len(calls) + len(events), calls=len(calls))
    insert_calls(tx, claim, lease.seq - len(events), calls)
    write_entries(tx, claim.run.id, claim.run.fence, lease.seq - len(events) - len(calls), entries)
    write_events(tx, claim.run.id, lease.seq, events)
    return lease


def settle(
    tx: Transaction,
    result_id: str,
    status: Literal["completed", "failed", "expired", "cancelled"],
    output: JSONValue = None,
    *,
    run_id: str | None = None,
    digest: str | None = None,
    events: Sequence[JSONValue] = (),
    trace: JSONValue = None,
) -> Settlement:
    """Settle a call once, and count down the pending calls of its run; only of a certain run, if one is given."""
    digest = digest or digest_of(status, integral(output))
    values = {"payload": dump_optional(output), "digest": digest, "trace": dump_optional(trace), "run_id": run_id}
    settlement = _settled(tx, {"id": result_id, "status": status, "is_overdue": 0, **values}, events)
    if settlement is not None:
        return settlement
    row = tx.one("find_call", id=result_id)
    if row is None or row["run_id"] != (run_id or row["run_id"]):
        return Settlement("unknown")
    if row["status"] == "processing":
        if (expiry := _expire(tx, row)) is not None:
            return replace(expiry, outcome="late", has_expired=True)
        row = tx.all("find_call", id=result_id)[0]  # another transaction has just settled it
    return _repeated(tx, row, status, digest)


def _settled(tx: Transaction, values: Mapping[str, Any], events: Sequence[JSONValue]) -> Settlement | None:
    """Settle a call; return None if that could not be, because it was settled before or is not there."""
    row = tx.one("settle", entries=len(events), events=f"[{','.join(map(dump, events))}]", **values)
    if row is None:
        return None
    run = row
    if tx.has("count_down"):  # PostgreSQL settles, counts down and writes the events in one statement
        counted = tx.one("count_down", id=row["run_id"], entries=len(events))
        assert counted is not None  # no run is deleted before its calls
        run = counted
        write_events(tx, row["run_id"], run["run_last_seq"], events)
    elif events:
        tx.notify_events(row["run_id"])
    is_run_due = run["run_status"] == "due" and run["run_pending"] == 0
    if is_run_due:
        tx.notify_due(run["run_agent"], row["run_id"], run["run_fence"])
    return Settlement("settled", call_record(row), run["run_pending"], is_run_due)


def _repeated(tx: Transaction, row: Row, status: str, digest: str) -> Settlement:
    """Return the outcome for a call that was settled before."""
    outcome: SettlementOutcome = "conflict"
    if row["status"] == status and row["digest"] == digest:
        outcome = "duplicate"
    elif row["status"] in {"expired", "cancelled"}:
        outcome = "late"
    elif row["status"] == "processing":  # its deadline was extended
        outcome = "unknown"
    run = tx.one("find_pending", id=row["run_id"])
    return Settlement("unknown") if run is None else Settlement(outcome, call_record(row), run["pending"])


def _expire(tx: Transaction, row: Row) -> Settlement | None:
    """Settle a call if it is past its deadline."""
    values = {"status": "expired", "is_overdue": 1, "payload": None, "digest": _EXPIRED, "trace": None, "run_id": None}
    return _settled(tx, {"id": row["id"], **values}, [_expired(row["id"], row["kind"])])


def _expired(result_id: str, kind: CallKind) -> JSONObject:
    """Return the event of a call that has expired."""
    if kind == "approval":
        return {"type": "approval.expired", "approval_id": result_id}
    return {"type": "async_tool.settled", "result_id": result_id, "status": "expired"}


def expire(tx: Transaction) -> tuple[Settlement, ...]:
    """Settle calls past their deadline; at most a batch."""
    settlements = [_expire(tx, row) for row in tx.all("overdue", limit=BATCH)]
    return tuple(settlement for settlement in settlements if settlement is not None)


def heartbeat(tx: Transaction, result_id: str, extend: float | None, progress: JSONValue) -> CallRecord | None:
    """Note that a call is being worked on."""
    row = tx.one("heartbeat", id=result_id, extend=extend, progress=dump_optional(progress))
    row = row or tx.one("find_call", id=result_id)
    return None if row is None else call_record(row)


def mark_dispatched(tx: Transaction, result_id: str) -> bool:
    """Note that a call was dispatched."""
    return tx.one("mark_dispatched", id=result_id) is not None
