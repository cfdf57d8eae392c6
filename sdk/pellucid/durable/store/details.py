"""Details of one run, for operators; without contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.durable.store import queries
from pellucid.durable.store.callbacks import callback
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.overviews import RunOverview, overview
from pellucid.durable.store.records import FINAL, CallbackRecord, CallRecord, RunRecord
from pellucid.durable.store.values import Row, call_record, dump, load, run_record
from pellucid.errors import UnknownRun


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A tool that has started, and whose end is not in the journal.

    Attributes:
        tool: Its name.
        tool_call_id: Id of the model's tool call.
        started_at: Time of the entry.
    """

    tool: str
    tool_call_id: str
    started_at: float


@dataclass(frozen=True, slots=True)
class JournalSummary:
    """Summary of the journal of a run.

    Attributes:
        entries: Number of its entries.
        answers: Answers of models.
        results: Results of tools.
        started: Calls that have started in this pass, without a result; a tool is running, or its process has ended.
            None of a run that has ended.
        size: Characters of the entries.
        checkpoint_size: Characters of the checkpoint, from which the next pass continues; 0 if there is none.
        last_entry_at: Time of the latest entry; None without entries.
    """

    entries: int
    answers: int
    results: int
    started: tuple[StartedCall, ...]
    size: int
    checkpoint_size: int
    last_entry_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """A run with all that belongs to it, as of one moment. Attributes: now: That moment, by the database's clock."""

    now: float
    run: RunRecord
    overview: RunOverview
    calls: tuple[CallRecord, ...]
    journal: JournalSummary
    version: str | None
    conversation: str | None
    runs_before: int
    callback: CallbackRecord | None


def details(tx: Transaction, run_id: str) -> RunDetails:
    """Return what is known of a run.

    Raises:
        UnknownRun: there is no such run.
    """
    row, shown = tx.one("find_run", id=run_id), tx.one("list_overviews", ids=dump([run_id]))
    if row is None or shown is None:
        raise UnknownRun(run_id)
    version, turn = tx.one("find_version", run_id=run_id), tx.one("find_turn", run_id=run_id)
    return RunDetails(
        now=queries.now(tx),
        run=run_record(row),
        overview=overview(shown),
        calls=tuple(map(call_record, tx.all("list_calls", run_id=run_id))),
        journal=_summary(tx.all("list_entries", run_id=run_id), row),
        version=version["version"] if version is not None else None,
        conversation=turn["conversation"] if turn is not None else None,
        runs_before=tx.all("count_before", **turn)[0]["number"] if turn is not None else 0,
        callback=callback(tx, run_id),
    )


def _summary(entries: Sequence[Row], run: Row) -> JournalSummary:
    steps = [entry["key"].partition(":")[0] for entry in entries]
    ended = {_name(entry) for entry in entries if entry["key"].startswith("result:")}
    begun = [entry for entry in entries if entry["seq"] > run["checkpoint_seq"] and entry["started"] is not None]
    if run["status"] in FINAL:
        begun = []
    elif run["status"] == "running" and not run["expired_leases"]:  # what an earlier claim had started is over
        begun = [entry for entry in begun if entry["fence"] == run["fence"]]
    started = {_name(entry): entry for entry in begun if _name(entry) not in ended}  # it may start again
    return JournalSummary(
        entries=len(entries),
        answers=steps.count("answer"),
        results=steps.count("result"),
        started=tuple(map(_started, started.values())),
        size=sum(entry["size"] for entry in entries),
        checkpoint_size=len(run["checkpoint"] or ""),
        last_entry_at=entries[-1]["created_at"] if entries else None,
    )


def _started(entry: Row) -> StartedCall:
    value = load(entry["started"])
    known = value if isinstance(value, dict) else {}
    return StartedCall(str(known.get("tool", "?")), str(known.get("call_id", "?")), entry["created_at"])


def _name(entry: Row) -> str:
    """Return what an entry is about: its key without the step and without the claim."""
    name: str = entry["key"].partition(":")[2].rpartition(":")[0]
    return name
