"""Transactions on runs, written once for all dialects. `RunStore` says what each guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

from pellucid.durable.store import conversations
from pellucid.durable.store.conversations import IfBusy
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import (
    CallRecord,
    Cancellation,
    Claim,
    FailedPass,
    Lease,
    NewCall,
    PassEnd,
    Submission,
)
from pellucid.durable.store.values import (
    Row,
    call_record,
    digest_of,
    dump,
    dump_optional,
    run_record,
    status_of,
    storable,
)
from pellucid.errors import DuplicateKey, Fenced, IdempotencyConflict, UnknownRun
from pellucid.types import JSONValue

Entries = Mapping[str, JSONValue]
"""Values of journal entries by key, in order."""

BATCH: Final = 100
"""Rows that one transaction of a sweep changes."""


def submit(
    tx: Transaction,
    run_id: str,
    agent: str,
    request: JSONValue,
    *,
    idempotency_key: str | None,
    trace: JSONValue,
    callback: str | None,
    conversation: str | None,
    if_busy: IfBusy,
) -> Submission:
    """Insert a run, or find the one that was submitted before with the same id or key."""
    place = conversations.next_place(tx, conversation) if conversation is not None else None
    is_queued = place is not None and place.open_run is not None
    digest = digest_of(agent, request, *([callback] if callback is not None else []))
    row = tx.one(
        "insert_run",
        id=run_id,
        agent=agent,
        request=dump(request),
        digest=digest,
        idempotency_key=idempotency_key,
        trace=dump_optional(trace),
        is_queued=int(is_queued),
    )
    if row is not None:
        if place is not None:
            conversations.take(tx, run_id, place, if_busy)
        if callback is not None:
            tx.all("insert_callback", run_id=run_id, url=callback)
        if not is_queued:
            tx.notify_due(agent, run_id, 0)
        return Submission(run_record(row), is_new=True)
    row = tx.all("find_submitted", id=run_id, idempotency_key=idempotency_key)[0]
    if (row["agent"], row["request_digest"]) != (agent, digest):
        raise IdempotencyConflict(row["id"], None if row["id"] == run_id else idempotency_key)
    return Submission(run_record(row), is_new=False)


def advance(tx: Transaction, claim: Claim, *, entries: int = 0, calls: int = 0, is_progress: bool = True) -> Lease:
    """Renew the lease and make room for journal entries, events and pending calls.

    Entries that are no progress leave the number of leases that have expired in a row as it is.
    """
    row = tx.one(
        "advance_claimed",
        id=claim.run.id,
        fence=claim.run.fence,
        lease=claim.lease,
        entries=entries,
        calls=calls,
        is_progress=int(is_progress and entries > 0),
    )
    if row is None:
        raise fenced(tx, claim)
    return Lease(seq=row["last_seq"], until=row["lease_until"], cancel_reason=row["cancel_reason"])


def append(
    tx: Transaction, claim: Claim, key: str, value: JSONValue, events: Sequence[JSONValue], *, is_progress: bool = True
) -> Lease:
    """Write a journal entry, with its events."""
    if tx.is_repeat:
        row = tx.one("find_entry", run_id=claim.run.id, key=storable(key))
        if row is not None and row["fence"] == claim.run.fence:
            return replace(advance(tx, claim), seq=row["seq"])
    lease = advance(tx, claim, entries=1 + len(events), is_progress=is_progress)
    seq = lease.seq - len(events)
    write_entries(tx, claim.run.id, claim.run.fence, seq, {key: value})
    write_events(tx, claim.run.id, lease.seq, events)
    return replace(lease, seq=seq)


def end_pass(
    tx: Transaction,
    claim: Claim,
    checkpoint: JSONValue,
    calls: Sequence[NewCall],
    entries: Entries,
    events: Sequence[JSONValue],
    cancellation_events: Sequence[JSONValue],
) -> PassEnd:
    """End a pass: waiting, due, or cancelled."""
    run_id = claim.run.id
    row = tx.one(
        "end_pass",
        id=run_id,
        fence=claim.run.fence,
        checkpoint=dump_optional(checkpoint),
        calls=len(calls),
        entries=len(entries) + len(calls) + len(events),
        cancellation_entries=len(entries) + len(cancellation_events),
    )
    if row is None:
        status = status_after(tx, claim)
        return cast("PassEnd", status if status in {"waiting", "cancelled"} else "due")
    if row["status"] == "cancelled":
        calls, events = (), cancellation_events
        tx.all("cancel_calls", run_id=run_id)
        conversations.go_on(tx, row["conversation"], row["turn"])
    elif row["status"] == "due":
        tx.notify_due(row["agent"], run_id, claim.run.fence)
    _call_back(tx, run_id, row)
    last_seq = row["last_seq"]
    write_entries(tx, run_id, claim.run.fence, last_seq - len(events) - len(calls), entries)
    insert_calls(tx, claim, last_seq - len(events), calls)
    write_events(tx, run_id, last_seq, events)
    tx.notify_events(run_id)
    return cast("PassEnd", row["status"])


def finish(
    tx: Transaction,
    claim: Claim,
    status: Literal["completed", "failed", "cancelled"],
    result: JSONValue,
    entries: Entries,
    events: Sequence[JSONValue],
    failure: FailedPass | None = None,
) -> tuple[CallRecord, ...]:
    """End the run and cancel its pending calls."""
    cancelled = end(tx, claim.run.id, claim.run.fence, status, result, entries, events)
    if cancelled is None:
        status_after(tx, claim)
        return ()
    if failure is not None:
        note_failure(tx, claim, failure)
    return cancelled


def note_failure(tx: Transaction, claim: Claim, failure: FailedPass) -> None:
    """Note how the pass of a claim has failed that has just given the run back, or ended it."""
    tx.all(
        "note_failure",
        run_id=claim.run.id,
        attempts=failure.attempts,
        error_type=failure.error_type,
        error=failure.error,
    )


def end(
    tx: Transaction,
    run_id: str,
    fence: int,
    status: str,
    result: JSONValue,
    entries: Entries,
    events: Sequence[JSONValue],
) -> tuple[CallRecord, ...] | None:
    """End a claimed run; return its calls that were pending, or None if the claim was lost."""
    number = len(entries) + len(events)
    row = tx.one("finish", id=run_id, fence=fence, status=status, result=dump_optional(result), entries=number)
    if row is None:
        return None
    write_entries(tx, run_id, fence, row["last_seq"] - len(events), entries)
    write_events(tx, run_id, row["last_seq"], events)
    tx.notify_events(run_id)
    _call_back(tx, run_id, row)
    conversations.go_on(tx, row["conversation"], row["turn"])
    return tuple(map(call_record, tx.all("cancel_calls", run_id=run_id)))


def _call_back(tx: Transaction, run_id: str, row: Row) -> None:
    """Make the state of a run that now waits or has ended due for delivery, if the run has a callback."""
    if row["has_callback"] and row["status"] != "due":
        tx.all("make_callback_due", run_id=run_id)
        tx.notify_callbacks()


def release(tx: Transaction, claim: Claim, delay: float) -> None:
    """Give a claim back."""
    row = tx.one("release", id=claim.run.id, fence=claim.run.fence, delay=delay)
    if row is None:
        status_after(tx, claim)
    else:
        tx.notify_due(row["agent"], claim.run.id, claim.run.fence, is_later=delay > 0)


def cancel(tx: Transaction, run_id: str, reason: str, events: Sequence[JSONValue]) -> Cancellation:
    """Cancel a run, or ask its worker to."""
    before = tx.one("find_status", id=run_id)
    row = tx.one("cancel_run", id=run_id, reason=reason, entries=len(events))
    if row is None:
        row = tx.one("find_run", id=run_id)
        return Cancellation("unknown") if row is None else Cancellation("ended", run_record(row))
    if row["status"] == "running":
        return Cancellation("requested", run_record(row))
    calls = tuple(map(call_record, tx.all("cancel_calls", run_id=run_id)))
    write_events(tx, run_id, row["last_seq"], events)
    tx.notify_events(run_id)
    _call_back(tx, run_id, row)
    if before is not None and status_of(before) != "queued":  # another run of the conversation is open then
        conversations.go_on(tx, row["conversation"], row["turn"])
    return Cancellation("cancelled", run_record(row), calls)


def emit(tx: Transaction, run_id: str, events: Sequence[JSONValue]) -> int:
    """Write events and return the sequence number of the last one."""
    row = tx.one("advance", id=run_id, entries=len(events))
    if row is None:
        raise UnknownRun(run_id)
    write_events(tx, run_id, row["last_seq"], events)
    return int(row["last_seq"])


def recover(tx: Transaction) -> tuple[str, ...]:
    """Make runs due whose leases have expired; at most a batch. Start queued runs that nothing else has started."""
    conversations.start_stalled(tx, BATCH)
    rows = tx.all("recover", limit=BATCH)
    for row in rows:
        tx.notify_due(row["agent"], row["id"], row["fence"])
    return tuple(row["id"] for row in rows)


def fenced(tx: Transaction, claim: Claim) -> Fenced | UnknownRun:
    """Return the error for a claim that cannot write any longer."""
    row = tx.one("find_run", id=claim.run.id)
    return UnknownRun(claim.run.id) if row is None else _fenced(claim, row)


def _fenced(claim: Claim, row: Row) -> Fenced:
    return Fenced(claim.run.id, fence=claim.run.fence, current_fence=row["fence"], status=row["status"])


def status_after(tx: Transaction, claim: Claim) -> str:
    """Return the status of the run if this claim has ended its pass, by a commit that was not answered."""
    row = tx.one("find_run", id=claim.run.id)
    if row is None:
        raise UnknownRun(claim.run.id)
    if not tx.is_repeat or row["fence"] != claim.run.fence:
        raise _fenced(claim, row)
    return str(row["status"])


def write_entries(tx: Transaction, run_id: str, fence: int, last_seq: int, entries: Entries) -> None:
    """Insert journal entries; the last one gets `last_seq`."""
    for seq, (key, value) in enumerate(entries.items(), last_seq - len(entries) + 1):
        row = tx.one("insert_journal", run_id=run_id, seq=seq, key=storable(key), value=dump(value), fence=fence)
        if row is None:
            raise DuplicateKey(run_id, key)


def insert_calls(tx: Transaction, claim: Claim, last_seq: int, calls: Sequence[NewCall]) -> None:
    """Insert calls that are pending; the last one gets `last_seq`."""
    for seq, call in enumerate(calls, last_seq - len(calls) + 1):
        row = tx.one(
            "insert_call",
            id=call.id,
            run_id=claim.run.id,
            seq=seq,
            pass_no=claim.run.pass_no,
            kind=call.kind,
            tool=call.tool,
            tool_call_id=storable(call.tool_call_id),
            request=dump(call.request),
            timeout=call.timeout,
            trace=dump_optional(call.trace),
        )
        if row is None:
            raise DuplicateKey(claim.run.id, call.id)


def write_events(tx: Transaction, run_id: str, last_seq: int, events: Sequence[JSONValue]) -> None:
    """Insert events; the last one gets `last_seq`."""
    for seq, event in enumerate(events, last_seq - len(events) + 1):
        tx.all("insert_event", run_id=run_id, seq=seq, value=dump(event))
    if events:
        tx.notify_events(run_id)
