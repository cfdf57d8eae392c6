"""Transactions that only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import (
    FINAL,
    CallKind,
    CallRecord,
    DueRuns,
    EventPage,
    JournalEntry,
    PendingCalls,
    RetryingRuns,
    RunRecord,
    RunStatus,
    Statistics,
)
from pellucid.durable.store.values import (
    call_record,
    dump,
    journal_entry,
    run_record,
    status_of,
    stored_event,
)
from pellucid.durable.store.versions import find
from pellucid.errors import UnknownRun


def now(tx: Transaction) -> float:
    """Return the time by the database's clock."""
    return float(tx.all("read_clock")[0]["now"])


def run(tx: Transaction, run_id: str) -> RunRecord | None:
    """Return a run."""
    row = tx.one("find_run", id=run_id)
    return None if row is None else run_record(row)


def journal(tx: Transaction, run_id: str, after: int) -> tuple[JournalEntry, ...]:
    """Return journal entries."""
    return tuple(map(journal_entry, tx.all("list_journal", run_id=run_id, after=after)))


def entry(tx: Transaction, run_id: str, key: str) -> JournalEntry | None:
    """Return a journal entry."""
    row = tx.one("find_entry", run_id=run_id, key=key)
    return None if row is None else journal_entry(row)


def steps(tx: Transaction, run_id: str, after: int, *, answers: bool) -> tuple[JournalEntry, ...]:
    """Return journal entries without content."""
    statement = "list_steps_and_answers" if answers else "list_steps"
    return tuple(map(journal_entry, tx.all(statement, run_id=run_id, after=after)))


def call(tx: Transaction, result_id: str) -> CallRecord | None:
    """Return a call."""
    row = tx.one("find_call", id=result_id)
    return None if row is None else call_record(row)


def calls(tx: Transaction, run_id: str) -> tuple[CallRecord, ...]:
    """Return the calls of a run."""
    return tuple(map(call_record, tx.all("list_calls", run_id=run_id)))


def waiting_calls(tx: Transaction, tool: str | None, kind: CallKind | None, limit: int) -> tuple[CallRecord, ...]:
    """Return calls that are processing, the oldest first."""
    return tuple(map(call_record, tx.all("waiting_calls", tool=tool, kind=kind, limit=limit)))


def ids(tx: Transaction, of: Literal["runs", "calls"], start: str, limit: int) -> tuple[str, ...]:
    """Return ids that begin so."""
    rows = tx.all("run_ids" if of == "runs" else "call_ids", start=start, limit=limit)
    return tuple(row["id"] for row in rows)


def undispatched(tx: Transaction, older_than: float, limit: int) -> tuple[CallRecord, ...]:
    """Return calls whose dispatch may have to be repeated."""
    return tuple(map(call_record, tx.all("undispatched", older_than=older_than, limit=limit)))


def events(tx: Transaction, run_id: str, after: int, limit: int) -> EventPage:
    """Return a page of events, with the status of the run at that moment."""
    row = tx.one("find_status", id=run_id)
    if row is None:
        raise UnknownRun(run_id)
    rows = tx.all("list_events", run_id=run_id, after=after, limit=limit + 1)
    return EventPage(tuple(map(stored_event, rows[:limit])), len(rows) > limit, status_of(row))


def has_events(tx: Transaction, run_id: str, after: int) -> bool:
    """Return whether a reader has something to read, or nothing more to wait for."""
    row = tx.one("find_status", id=run_id)
    if row is None:
        raise UnknownRun(run_id)
    return row["status"] in FINAL or tx.one("has_events", run_id=run_id, after=after) is not None


def has_work(
    tx: Transaction, agents: Sequence[str], *, with_suspects: bool, versions: Mapping[str, str] | None
) -> bool:
    """Return whether a run can be claimed."""
    return find(tx, "has_work", versions, agents=dump(agents), with_suspects=int(with_suspects)) is not None


def suspect(
    tx: Transaction, agents: Sequence[str], older_than: float, versions: Mapping[str, str] | None
) -> tuple[str, str] | None:
    """Return id and agent of the run that has waited for longest to be claimed alone."""
    row = find(tx, "find_suspect", versions, agents=dump(agents), older_than=older_than)
    return None if row is None else (row["id"], row["agent"])


def statistics(tx: Transaction, *, is_open_only: bool) -> Statistics:
    """Return what the store holds."""
    counts = tx.all("count_open_runs" if is_open_only else "count_runs")
    numbers: dict[RunStatus, int] = {"queued" if row["is_queued"] else row["status"]: row["number"] for row in counts}
    retrying = tuple(RetryingRuns(**row) for row in tx.all("count_retrying"))
    if number := sum(runs.number for runs in retrying):
        numbers |= {"retrying": number, "due": numbers["due"] - number}
    return Statistics(
        runs={status: number for status, number in numbers.items() if number},
        pending=tuple(PendingCalls(**row) for row in tx.all("count_pending")),
        due=tuple(DueRuns(**row) for row in tx.all("count_due")),
        callback_age=age["age"] if (age := tx.one("callback_age")) is not None else None,
        retrying=retrying,
    )
