"""Transactions on conversations: runs that continue each other, one at a time, in the order of their submission.

The row of a conversation is its lock. It is taken before a run is submitted to it, and after the row of a run that has
ended; then the queued run that starts next is changed. A transaction that changes a queued run takes no conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import FINAL, ConversationPage, RunStatus, Turn
from pellucid.durable.store.values import Row, call_record, is_given_up, journal_entry, run_record
from pellucid.errors import ConversationBusy

IfBusy: TypeAlias = Literal["refuse", "queue"]
"""Treatment of a run that is submitted to a conversation with an open run."""

END: Final = 2**62
"""A place after all turns."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a new run in its conversation. Attributes: open_run: Id of the first run that has not ended, if any."""

    conversation: str
    turn: int
    open_run: str | None


def next_place(tx: Transaction, conversation: str) -> Place:
    """Return the next place in a conversation, and lock it."""
    turn = tx.all("next_turn", conversation=conversation)[0]["last_turn"]
    row = tx.one("find_open", conversation=conversation)
    return Place(conversation, turn, row["id"] if row is not None else None)


def take(tx: Transaction, run_id: str, place: Place, if_busy: IfBusy) -> None:
    """Put a new run in its place.

    Raises:
        ConversationBusy: another run has not ended, and this one must not wait for it.
    """
    if place.open_run is not None and if_busy == "refuse":
        raise ConversationBusy(place.open_run)
    tx.all("insert_turn", run_id=run_id, conversation=place.conversation, turn=place.turn)


def go_on(tx: Transaction, conversation: str | None, turn: int | None) -> None:
    """Start the next run of a conversation, if there is one.

    Args:
        tx: Transaction that has ended a run.
        conversation: The conversation of that run; None if it has none.
        turn: Place of that run. All runs before it have ended, because it had started.
    """
    if conversation is None:
        return
    tx.all("lock_conversation", conversation=conversation, turn=turn)
    if (row := tx.one("start_next", conversation=conversation, turn=turn)) is not None:
        tx.notify_due(row["agent"], row["id"], row["fence"])


def reopen(tx: Transaction, run_id: str) -> None:
    """Open the conversation of a run that is to continue after it had ended, if it has one.

    Raises:
        ConversationBusy: another run has not ended.
    """
    if (place := tx.one("find_turn", run_id=run_id)) is None:
        return
    tx.all("reopen_conversation", **place)
    if (row := tx.one("find_open", conversation=place["conversation"])) is not None and row["id"] != run_id:
        raise ConversationBusy(row["id"], "wait for it or cancel it, and retry then")


def start_stalled(tx: Transaction, limit: int) -> None:
    """Start queued runs that no commit has started, such as after a run that an earlier version has ended."""
    for row in tx.all("list_stalled", limit=limit):
        go_on(tx, row["conversation"], row["turn"] - 1)


def conversation(tx: Transaction, conversation: str, before: int, limit: int) -> ConversationPage:
    """Return the latest runs of a conversation before a place, in order, and which run is open."""
    rows = tx.all("list_turns", conversation=conversation, before=before, limit=limit + 1)
    found = tx.one("find_open", conversation=conversation)
    return ConversationPage(
        tuple(_turn(tx, row) for row in reversed(rows[:limit])),
        len(rows) > limit,
        found["id"] if found is not None else None,
    )


def purge(tx: Transaction, older_than: float, limit: int) -> list[tuple[str, RunStatus]]:
    """Delete conversations whose runs have all ended some time ago, and these runs; return their ids and statuses."""
    ended: list[tuple[str, RunStatus]] = []
    for row in tx.all("delete_idle_conversations", older_than=older_than, limit=limit):
        runs = tx.all("delete_runs_of_conversation", conversation=row["id"])
        ended += [(run["id"], run["status"]) for run in runs]
        tx.all("delete_turns", conversation=row["id"])
    return ended


def _turn(tx: Transaction, row: Row) -> Turn:
    run = run_record(row)
    is_read = run.status in FINAL and run.status != "completed" and not is_given_up(run)
    entries = tx.all("list_journal", run_id=run.id, after=run.checkpoint_seq) if is_read else ()
    calls = tx.all("list_calls", run_id=run.id) if run.status != "completed" else ()
    return Turn(row["turn"], run, tuple(map(journal_entry, entries)), tuple(map(call_record, calls)))
