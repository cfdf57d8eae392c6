"""From what a claimed run continues: its input, the checkpoint of its last pass, or its journal."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import CallStatus, ExternalResult
from pellucid.approvals.settling import expired_text
from pellucid.durable.states.records import identity_of, span_of
from pellucid.durable.store import CallRecord, Claim, JournalEntry, RunRecord
from pellucid.messages import Message, dump_messages, load_messages
from pellucid.run.journal import Folded
from pellucid.run.pausing.fold import changes_state, fold
from pellucid.run.start import ResumeRequest

_NOT_SENT: Final = "The call expired before it was dispatched: nothing is known to have been sent."
"""Text that the model reads. A process that was killed between a dispatch and its mark has sent it nevertheless."""


def source_of(claim: Claim, history: Sequence[Message] = ()) -> Sequence[Message] | ResumeRequest:
    """Return what the pass of a claim starts from; `history` are the messages before the run in its conversation.

    Raises:
        CheckpointError, ConfigError: the checkpoint or the journal is damaged.
    """
    run, calls = claim.run, {call.id: call for call in claim.calls}
    has_entries = bool(steps_of(claim.journal))
    if run.checkpoint is None and not has_entries:
        return [*history, *load_messages(request_of(run)["messages"])]
    folded = folded_of(run, claim.journal, calls.keys(), history)
    state = _authorized(folded.checkpoint, calls)
    decisions = [
        decision_of(call)
        for request in state.approvals
        if (call := calls.get(request.approval_id)) is not None and call.status == "completed"
    ]
    decided = [calls[decision.approval_id] for decision in decisions]
    settled = [
        call
        for request in state.all_external
        if request.result is None and (call := calls.get(request.result_id)) is not None and call.status != "processing"
    ]
    links = [span for call in (*decided, *settled) if (span := span_of(call.settlement_trace)) is not None]
    results = [_result(call) for call in settled]
    return ResumeRequest(
        state, decisions, results, None, replace(folded, checkpoint=state) if has_entries else None, links
    )


def steps_of(journal: Iterable[JournalEntry]) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and value of the steps that change from what state a run continues."""
    values = [cast("dict[str, Any]", entry.value) for entry in journal]
    return [(value["step"], value) for value in values if changes_state(value)]


def folded_of(
    run: RunRecord, journal: Iterable[JournalEntry], calls: Collection[str], history: Sequence[Message]
) -> Folded:
    """Return the state of a run after its journal; `calls` are the ids of its calls.

    Raises:
        CheckpointError, ConfigError: the checkpoint or the journal is damaged.
    """
    start = Checkpoint.from_dict(run.checkpoint) if run.checkpoint is not None else _first(run)
    start = replace(start, messages=[*dump_messages(history), *start.messages])
    entries = steps_of(journal)
    return fold(start, entries, calls) if entries else Folded(checkpoint=start)


def settled_ids(source: Sequence[Message] | ResumeRequest) -> Collection[str]:
    """Return the ids of the calls whose decisions and results a pass starts with."""
    if not isinstance(source, ResumeRequest):
        return set()
    return {decision.approval_id for decision in source.decisions} | {result.result_id for result in source.results}


def decision_of(call: CallRecord) -> Decision:
    """Return the decision with which an approval was settled."""
    decision = cast("dict[str, Any]", call.output)
    return Decision(call.id, **decision)


def request_of(run: RunRecord) -> dict[str, Any]:
    """Return what a run was submitted with."""
    return cast("dict[str, Any]", run.request)


def _first(run: RunRecord) -> Checkpoint:
    """Return the state of a run before its first answer."""
    return Checkpoint(
        id="",
        agent=run.agent,
        run_id="",
        trace=cast("dict[str, str]", run.trace) or {},
        created_at=run.created_at,
        identity=identity_of(run),
        messages=request_of(run)["messages"],
    )


def _authorized(state: Checkpoint, calls: Mapping[str, CallRecord]) -> Checkpoint:
    """Return a state to resume from, in which the store alone decides what has expired.

    It has another id, because a process resumes each checkpoint once, and this one may be claimed again.
    """
    return replace(
        state,
        id=uuid.uuid4().hex,
        approvals=[replace(item, expires_at=_expiry(item, calls.get(item.approval_id))) for item in state.approvals],
        external=[replace(item, expires_at=None) for item in state.external],
        nested={key: _authorized(nested, calls).to_dict() for key, nested in state.nested_checkpoints.items()},
    )


def _expiry(request: ApprovalRequest, call: CallRecord | None) -> float | None:
    if call is None:
        return request.expires_at
    return None if call.status in ("processing", "completed") else 0.0


def _result(call: CallRecord) -> ExternalResult:
    status = cast("CallStatus", call.status)
    output = call.output
    if status == "expired" and output is None and call.expires_at is not None:
        output = expired_text(call.expires_at - call.created_at) if call.dispatched_at is not None else _NOT_SENT
    if status != "completed" and output is None:
        output = f"The call was {status}."
    return ExternalResult.of(call.id, status, output, call.settled_at)
