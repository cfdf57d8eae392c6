"""Description of a run for operators."""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.durable.states.records import trace_id_of
from pellucid.durable.store import CallbackRecord, CallRecord, RunOverview
from pellucid.durable.store.details import JournalSummary, RunDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """A run, where it is, and what it waits for, as of one moment; without its messages and results.

    Attributes:
        run: State, worker and lease, attempts, last error, and times.
        now: That moment, by the database's clock, as are all times.
        waits_for: Calls that are processing: external ones, and approvals. `created_at` is since when, `expires_at`
            until when the run waits; one that is not approved and has no `dispatched_at` was never sent.
        journal: Summary of the journal.
        version: Version of the agent without which no worker continues the run; None for any.
        conversation_id: Conversation of the run.
        runs_before: Runs of the conversation that have to end before this one starts.
        callback: URL that gets the state, with attempts and the last error; None if there is none.
        cancel_reason: Reason given to `cancel`, also if the worker has not cancelled the run yet.
        trace_id: 32 hexadecimal digits; None before the end of the first pass, unless it was submitted within a span.
    """

    run: RunOverview
    now: float
    waits_for: tuple[CallRecord, ...]
    journal: JournalSummary
    version: str | None
    conversation_id: str | None
    runs_before: int
    callback: CallbackRecord | None
    cancel_reason: str | None
    trace_id: str | None


def description_of(details: RunDetails) -> RunDescription:
    """Return the description of a run from what the store knows."""
    identity = details.overview.identity
    return RunDescription(
        run=details.overview,
        now=details.now,
        waits_for=tuple(call for call in details.calls if call.status == "processing"),
        journal=details.journal,
        version=details.version,
        conversation_id=identity.conversation_id if identity is not None else None,
        runs_before=details.runs_before,
        callback=details.callback,
        cancel_reason=details.run.cancel_reason,
        trace_id=trace_id_of(details.run),
    )
