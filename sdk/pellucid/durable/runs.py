"""Transactions on runs, written once for all dialects. `RunStore` says what each guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

from pellucid.durable.database import Transaction
from pellucid.durable.records import CallRecord, Cancellation, Claim, Lease, PassEnd, Submission
from pellucid.durable.values import (
    Row,
    call_record,
    digest_of,
    dump,
    dump_optional,
    journal_entry,
    run_record,
)
from pellucid.errors import DuplicateKey, Fenced, IdempotencyConflict, UnknownRun
from pellucid.types import JSONValue

Entries = Mapping[str, JSONValue]
"""Values of journal entries by key, in order."""

BATCH: Final = 100
"""Rows that one transaction of a sweep changes."""


def submit(
    tx: Transaction, run_id: str, agent: str, request: JSONValue, idempotency_key: str | None, trace: JSONValue
) -> Submission:
    """Insert a run, or find the one that was submitted before with the same id or key."""
    digest = digest_of(agent, request)
    row = tx.one(
        "insert_run",
        id=run_id,
        agent=agent,
        request=dump(request),
        digest=digest,
        idempotency_key=idempotency_key,
        trace=dump_optional(trace),
    )
    if row is not None:
        tx.notify("work", agent)
        return Submission(run_record(row), is_new=True)
    row = tx.all("find_submitted", id=run_id, idempotency_key=idempotency_key)[0]
    if (row["agent"], row["request_digest"]) != (agent, digest):
        raise IdempotencyConflict(row["id"], None if row["id"] == run_id else idempotency_key)
    return Submission(run_record(row), is_new=False)


def claim(tx: Transaction, worker: str, agents: Sequence[str], lease: float) -> Claim | None:
    """Claim the oldest run that can be continued."""
    row = tx.one("claim", worker=worker, agents=dump(list(agents)), lease=lease)
    if row is None:
        return None
    return Claim(
        run=run_record(row),
        worker=worker,
        lease=lease,
        is_recovered=bool(row["is_recovered"]),
        journal=tuple(map(journal_entry, tx.all("list_journal", run_id=row["id"], after=row["checkpoint_seq"]))),
        calls=tuple(map(call_record, tx.all("list_calls", run_id=row["id"]))),
    )


def advance(tx: Transaction, claim: Claim, *, entries: int = 0, calls: int = 0) -> Lease:
    """Renew the lease and make room for journal entries, events and pending calls."""
    row = tx.one(
        "advance_claimed",
        id=claim.run.id,
        fence=claim.run.fence,
        lease=claim.lease,
        entries=entries,
        calls=calls,
    )
    if row is None:
        raise fenced(tx, claim)
    return Lease(seq=row["last_seq"], until=row["lease_until"], cancel_reason=row["cancel_reason"])


def append(tx: Transaction, claim: Claim, key: str, value: JSONValue, events: Sequence[JSONValue]) -> Lease:
    """Write a journal entry, with its events."""
    if tx.is_repeat:
        row = tx.one("find_entry", run_id=claim.run.id, key=key)
        if row is not None and row["fence"] == claim.run.fence:
            return replace(advance(tx, claim), seq=row["seq"])
    lease = advance(tx, claim, entries=1 + len(events))
    _write(tx, claim, lease.seq, {key: value}, events)
    return replace(lease, seq=lease.seq - len(events))


def end_pass(
    tx: Transaction, claim: Claim, checkpoint: JSONValue, entries: Entries, events: Sequence[JSONValue]
) -> PassEnd:
    """End a pass: waiting, due, or cancelled."""
    row = tx.one(
        "end_pass",
        id=claim.run.id,
        fence=claim.run.fence,
        checkpoint=dump_optional(checkpoint),
        entries=len(entries) + len(events),
    )
    if row is None:
        status = _status_after(tx, claim)
        return cast("PassEnd", status if status in {"waiting", "cancelled"} else "due")
    _write(tx, claim, row["last_seq"], entries, events)
    if row["status"] == "due":
        tx.notify("work", row["agent"])
    if row["status"] == "cancelled":
        tx.all("cancel_calls", run_id=claim.run.id)
    tx.notify("events", claim.run.id)
    return cast("PassEnd", row["status"])


def finish(
    tx: Transaction,
    claim: Claim,
    status: Literal["completed", "failed", "cancelled"],
    result: JSONValue,
    entries: Entries,
    events: Sequence[JSONValue],
) -> tuple[CallRecord, ...]:
    """End the run and cancel its pending calls."""
    row = tx.one(
        "finish",
        id=claim.run.id,
        fence=claim.run.fence,
        status=status,
        result=dump_optional(result),
        entries=len(entries) + len(events),
    )
    if row is None:
        _status_after(tx, claim)
        return ()
    _write(tx, claim, row["last_seq"], entries, events)
    tx.notify("events", claim.run.id)
    return tuple(map(call_record, tx.all("cancel_calls", run_id=claim.run.id)))


def release(tx: Transaction, claim: Claim, delay: float) -> None:
    """Give a claim back."""
    row = tx.one("release", id=claim.run.id, fence=claim.run.fence, delay=delay)
    if row is None:
        _status_after(tx, claim)
    else:
        tx.notify("work", row["agent"])


def cancel(tx: Transaction, run_id: str, reason: str, events: Sequence[JSONValue]) -> Cancellation:
    """Cancel a run, or ask its worker to."""
    row = tx.one("cancel_run", id=run_id, reason=reason, entries=len(events))
    if row is None:
        row = tx.one("find_run", id=run_id)
        return Cancellation("unknown") if row is None else Cancellation("ended", run_record(row))
    if row["status"] == "running":
        return Cancellation("requested", run_record(row))
    calls = tuple(map(call_record, tx.all("cancel_calls", run_id=run_id)))
    write_events(tx, run_id, row["last_seq"], events)
    tx.notify("events", run_id)
    return Cancellation("cancelled", run_record(row), calls)


def emit(tx: Transaction, run_id: str, events: Sequence[JSONValue]) -> int:
    """Write events and return the sequence number of the last one."""
    row = tx.one("advance", id=run_id, entries=len(events))
    if row is None:
        raise UnknownRun(run_id)
    write_events(tx, run_id, row["last_seq"], events)
    return int(row["last_seq"])


def recover(tx: Transaction) -> tuple[str, ...]:
    """Make runs due whose leases have expired; at most a batch."""
    rows = tx.all("recover", limit=BATCH)
    for row in rows:
        tx.notify("work", row["agent"])
    return tuple(row["id"] for row in rows)


def fenced(tx: Transaction, claim: Claim) -> Fenced | UnknownRun:
    """Return the error for a claim that cannot write any longer."""
    row = tx.one("find_run", id=claim.run.id)
    return UnknownRun(claim.run.id) if row is None else _fenced(claim, row)


def _fenced(claim: Claim, row: Row) -> Fenced:
    return Fenced(claim.run.id, fence=claim.run.fence, current_fence=row["fence"], status=row["status"])


def _status_after(tx: Transaction, claim: Claim) -> str:
    """Return the status of the run if this claim has ended its pass, by a commit that was not answered."""
    row = tx.one("find_run", id=claim.run.id)
    if row is None:
        raise UnknownRun(claim.run.id)
    if not tx.is_repeat or row["fence"] != claim.run.fence:
        raise _fenced(claim, row)
    return str(row["status"])


def _write(tx: Transaction, claim: Claim, last_seq: int, entries: Entries, events: Sequence[JSONValue]) -> None:
    """Insert journal entries, then events; the last one gets `last_seq`."""
    for seq, (key, value) in enumerate(entries.items(), last_seq - len(events) - len(entries) + 1):
        row = tx.one("insert_journal", run_id=claim.run.id, seq=seq, key=key, value=dump(value), fence=claim.run.fence)
        if row is None:
            raise DuplicateKey(claim.run.id, key)
    write_events(tx, claim.run.id, last_seq, events)


def write_events(tx: Transaction, run_id: str, last_seq: int, events: Sequence[JSONValue]) -> None:
    """Insert events; the last one gets `last_seq`."""
    for seq, event in enumerate(events, last_seq - len(events) + 1):
        tx.all("insert_event", run_id=run_id, seq=seq, value=dump(event))
    if events:
        tx.notify("events", run_id)
