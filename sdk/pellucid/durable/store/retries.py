"""Transactions on runs whose passes fail: another attempt later, and runs that go on after they had ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pellucid.durable.store import conversations
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import FINAL, Claim, FailedPass, Retry, Streak
from pellucid.durable.store.runs import Entries, note_failure, status_after, write_entries, write_events
from pellucid.durable.store.values import Row, run_record
from pellucid.types import JSONObject, JSONValue

RETRIED: Final = "retried"
"""Step: the run goes on after it had ended, and what had ended then is recorded."""

_OUTCOME: Final = re.compile(r"(answer|result:\d{1,9}):")
"""Keys of answers and results; those of a sub-agent's calls have its namespace instead of an iteration."""


def streak(tx: Transaction, run_id: str) -> Streak:
    """Return the passes that have failed in a row without a new step."""
    row = tx.one("find_failures", run_id=run_id)
    if row is None or not row["attempts"]:
        return Streak()
    outcomes = tx.all("list_outcomes", run_id=run_id, after=row["seq"])
    if any(_OUTCOME.match(outcome["key"]) for outcome in outcomes):
        return Streak()
    return Streak(row["attempts"], row["elapsed"], row["error_type"])


def retry_later(tx: Transaction, claim: Claim, failure: FailedPass, delay: float, entries: Entries) -> float | None:
    """Give a claim back whose pass has failed; return when the run is due again."""
    row = tx.one("retry_later", id=claim.run.id, fence=claim.run.fence, delay=delay, entries=1 + len(entries))
    if row is None:
        status_after(tx, claim)
        return None
    write_entries(tx, claim.run.id, claim.run.fence, row["last_seq"] - 1, entries)
    if row["cancel_reason"] is None:
        note_failure(tx, claim, failure)
        event: JSONObject = {
            "type": "run.retrying",
            "error_type": failure.error_type,
            "attempt": failure.attempts,
            "next_at": row["due_at"],
        }
        write_events(tx, claim.run.id, row["last_seq"], [event])
    tx.notify_due(row["agent"], claim.run.id, claim.run.fence, is_later=row["cancel_reason"] is None and delay > 0)
    return float(row["due_at"])


def retry(tx: Transaction, run_id: str, events: Sequence[JSONValue]) -> Retry:
    """Make a run due that failed or was cancelled, or that waits for its next attempt or for a version."""
    found = tx.one("find_run", id=run_id)
    if found is None:
        return Retry("unknown")
    if found["status"] == "completed":
        return Retry("completed", run_record(found))
    is_over = found["status"] in FINAL
    if not is_over and not _waits(tx, found):
        if tx.one("unpin_lost", run_id=run_id) is not None:  # who claims it records what was lost, as ever
            tx.notify_due(found["agent"], run_id, found["fence"])
            return Retry("due", run_record(found))
        is_mine = tx.is_repeat and tx.one("find_entry", run_id=run_id, key=f"{RETRIED}:{found['fence']}") is not None
        return Retry("due" if is_mine else "open", run_record(found))
    if is_over:
        conversations.reopen(tx, run_id)
    row = tx.one("retry_run", id=run_id, fence=found["fence"], entries=len(events))
    if row is None:  # another caller was faster
        return Retry("open", run_record(tx.all("find_run", id=run_id)[0]))
    tx.all("forget_attempts", run_id=run_id)
    tx.all("delete_version", run_id=run_id)
    # `can_repeat` lets earlier releases take the entry for one that changes no state.
    entry = {f"{RETRIED}:{row['fence']}": {"step": RETRIED, "can_repeat": True}}
    write_entries(tx, run_id, row["fence"], row["last_seq"] - len(events), entry)
    write_events(tx, run_id, row["last_seq"], events)
    tx.notify_due(row["agent"], run_id, row["fence"])
    return Retry("due", run_record(tx.all("find_run", id=run_id)[0]))


def _waits(tx: Transaction, run: Row) -> bool:
    """Return whether a run that has not ended waits for its next attempt, or for a worker of its version."""
    if run["status"] != "due" or run["due_at"] is None or run["cancel_reason"] is not None:
        return False
    return bool(run["is_retrying"]) or tx.one("find_version", run_id=run["id"]) is not None
