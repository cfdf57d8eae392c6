"""Fold the journal of a run that was interrupted into the state from which it continues.

Nothing is replayed: the conversation is the concatenation of the messages in the journal, and the calls of its last
message that have neither a result nor a sub-agent's checkpoint are left to run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.external import ExternalRequest, ExternalResult
from pellucid.messages import ToolResult, dump_part, load_part
from pellucid.models import ModelResponse
from pellucid.run.journal import ANSWER, BEGUN, STARTED, Folded
from pellucid.run.tool_results import with_note
from pellucid.types import JSONObject

INTERRUPTED: Final = (
    "Interrupted: the process ended while the tool was running, so its result is unknown. "
    "Find out whether the call had an effect before you repeat it."
)
"""Result of a call that had started in a process that ended, of a tool that is not idempotent."""


def changes_state(step: Mapping[str, Any]) -> bool:
    """Return whether a step changes from what state a run continues; others are about spans only."""
    return not (step["step"] == BEGUN or step.get("is_nested") or step.get("can_repeat"))


def fold(start: Checkpoint, entries: Sequence[tuple[str, Mapping[str, Any]]], registered: Collection[str]) -> Folded:
    """Return the state after these journal entries.

    Args:
        start: Checkpoint of the last pass, or the input of the run.
        entries: Kind and value of each step since that changes the state, in order.
        registered: Result ids of the calls of other processes; others ran in the background of a process that ended.
    """
    state, started, counted = start, dict[str, str](), 0
    answer: Mapping[str, Any] | None = None
    earlier = {request.result_id for request in start.external}
    for step, value in entries:
        if step == ANSWER:
            answer, new = value, Checkpoint.from_dict(value["state"], is_partial=True)
            state = replace(new, messages=[*state.messages, *new.messages])
            counted = new.tool_calls
            earlier = {request.result_id for request in new.external}
            started.clear()
        elif step == STARTED:
            started[value["call_id"]] = value["tool"]
        else:
            started.pop(value["call_id"], None)
            state = _with_outcome(state, value["call_id"], Checkpoint.from_dict(value["state"], is_partial=True))
    last = state.conversation[-1]
    unfinished = {call.id or "" for call in last.tool_calls} - state.known_results.keys() - state.nested.keys()
    # Another call may have journalled that an unfinished one was dispatched: it is dispatched again, or interrupted.
    external = [item for item in state.external if item.result_id in earlier or item.tool_call_id not in unfinished]
    state = replace(state, external=[_settled(item, registered) for item in external])
    for call_id, tool_name in started.items():
        result = dump_part(ToolResult(call_id, INTERRUPTED, is_error=True, name=tool_name))
        state = _with_outcome(state, call_id, replace(state, results=[result], approvals=[], nested={}, notes={}))
    if answer is None:  # the calls of the last message wait for decisions and results, which the store has
        return Folded(checkpoint=state)
    left = unfinished - started.keys()
    dispatched = len(state.known_results) + len(state.nested)
    return Folded(
        # Calls that are left are counted when they run, although a result of another call may have counted them.
        checkpoint=replace(state, tool_calls=max(counted + dispatched, state.tool_calls - len(left))),
        left=left,
        answer=ModelResponse(message=last, finish_reason=answer["finish_reason"]) if not last.tool_calls else None,
        can_repair=answer["can_repair"],
        stop=answer["stop"],
    )


def _with_outcome(state: Checkpoint, call_id: str, outcome: Checkpoint) -> Checkpoint:
    """Return the state with the result of a call, or the checkpoint of its sub-agent, instead of what it waited for."""
    inner = {key: {item.approval_id for item in nested.approvals} for key, nested in state.nested_checkpoints.items()}
    of_nested = set().union(*inner.values())
    settled = inner.get(call_id, set()) | {
        item.approval_id
        for item in state.approvals
        if item.tool_call_id == call_id and item.approval_id not in of_nested
    }
    results = [_noted(result, state.notes.get(call_id)) for result in outcome.results]
    return replace(
        state,
        tool_calls=max(state.tool_calls, outcome.tool_calls),
        discoveries=outcome.discoveries,
        usage=outcome.usage,
        spent=outcome.spent,
        context=outcome.context,
        active=outcome.active,
        external=outcome.external,
        results=[*state.results, *results],
        approvals=[*(item for item in state.approvals if item.approval_id not in settled), *outcome.approvals],
        nested={**{key: nested for key, nested in state.nested.items() if key != call_id}, **outcome.nested},
        notes={**{key: note for key, note in state.notes.items() if key != call_id}, **outcome.notes},
    )


def _noted(result: JSONObject, note: str | None) -> JSONObject:
    part = load_part(result, "results")
    assert isinstance(part, ToolResult)
    return dump_part(with_note(part, note)) if note is not None else result


def _settled(request: ExternalRequest, registered: Collection[str]) -> ExternalRequest:
    """Return a request as failed if its call ran in the background of the process that ended."""
    if request.result is not None or request.result_id in registered:
        return request
    return replace(request, result=ExternalResult(result_id=request.result_id, error=INTERRUPTED))
