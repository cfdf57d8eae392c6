"""How a run comes to wait for a person, and how another one goes on from there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.approvals.checkpoint import Checkpoint, Resumption, trace_of
from pellucid.approvals.claims import Claims, claim
from pellucid.approvals.decisions import ApprovalRequest, Decision, Settled, settle
from pellucid.errors import CheckpointError, ToolError
from pellucid.events import ApprovalDecided, ApprovalRequested
from pellucid.failures import error_type_of
from pellucid.messages import ToolCall, ToolResult, dump_messages, dump_part
from pellucid.run.outcomes import Paused, Waiting
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog
from pellucid.types import JSONObject

AWAITING_APPROVAL = "awaiting_approval"


def pause(run: Run, b: Boundary, paused: Paused) -> JSONObject:
    """Return the checkpoint of a run that waits, and tell of what it waits for.

    Raises:
        CheckpointError: something in the conversation cannot be turned into JSON.
    """
    span = b.span.get_span_context()
    kept = Checkpoint(
        id=uuid.uuid4().hex,
        agent=run.scope.agent,
        run_id=run.scope.run_id,
        trace=trace_of(span),
        created_at=run.scope.now() / 1e9,
        identity=run.scope.identity,
        iteration=run.scope.iteration,
        tool_calls=run.tally.tool_calls,
        discoveries=run.offering.lazy.activation.iterations,
        usage=run.spent,
        active=list(run.offering.lazy.activation.active),
        pins=run.offering.pins.to_dict(),
        messages=dump_messages(run.conversation.messages),
        results=[dump_part(result) for result in paused.results],
        approvals=[each.request for each in paused.waiting],
        nested=dict(paused.nested),
        notes=dict(paused.notes),
    ).to_dict()
    for each in paused.waiting:
        if not each.is_told:
            _tell_requested(run, b, each)
    run.approvals.requested = tuple(each.request for each in paused.waiting)
    run.approvals.release(run.approvals.requested)
    return kept


def withdraw(run: Run, b: Boundary) -> None:
    """Tell of what people were asked and can no longer decide, because the run that had to heed it has ended."""
    for request in run.approvals.expected.values():
        waited = max(0.0, run.scope.now() / 1e9 - request.requested_at)
        b.event(ApprovalDecided.name, {**_facts(request), semconv.APPROVAL_OUTCOME: "withdrawn"})
        run.scope.count(semconv.APPROVAL_PENDING, -1, {semconv.TOOL_NAME: request.tool_name}, b.context)
        _tell_decided(run, b, request, outcome="withdrawn", waited_ms=waited * 1e3)
    run.approvals.expected.clear()


def _tell_requested(run: Run, b: Boundary, waiting: Waiting) -> None:
    request = waiting.request
    error_type = error_type_of(waiting.fault) if waiting.fault is not None else None
    b.event(ApprovalRequested.name, _facts(request))
    run.scope.count(semconv.APPROVAL_PENDING, 1, {semconv.TOOL_NAME: request.tool_name}, b.context)
    if run.scope.has_listener(ApprovalRequested.name):
        told = {
            "approval_id": request.approval_id,
            "tool_name": request.tool_name,
            "tool_call_id": request.tool_call_id,
            "provider_id": waiting.provider_id,
            "arguments": run.scope.clean(request.arguments),
            "expires_at": request.expires_at,
            "reason": run.scope.text(request.reason) if request.reason is not None else None,
            "error_type": error_type,
        }
        run.scope.emit(ApprovalRequested, b.span.get_span_context(), told)


def _facts(request: ApprovalRequest) -> dict[str, AttributeValue]:
    return {
        semconv.APPROVAL_ID: request.approval_id,
        semconv.TOOL_NAME: request.tool_name,
        semconv.TOOL_CALL_ID: request.tool_call_id,
    }


def prepare(run: Run, state: Checkpoint, decisions: Sequence[Decision], claims: Claims | None) -> None:
    """Give a run that has not begun the state of one that waits.

    Raises:
        CheckpointError: these decisions are none for it.
    """
    settled, waiting = settle(state.approvals, decisions, run.scope.now() / 1e9)
    nested = state.nested_checkpoints
    inner = {each.approval_id: call_id for call_id, kept in nested.items() for each in kept.approvals}
    going = {inner[approval_id] for approval_id in settled if approval_id in inner}
    run.resumption = Resumption(
        checkpoint=state,
        results=state.known_results,
        settled={each.request.tool_call_id: each for key, each in settled.items() if key not in inner},
        nested={
            call_id: (nested[call_id], [each for each in decisions if inner.get(each.approval_id) == call_id])
            for call_id in going
        },
        # What goes on waiting in an agent that goes on is asked for again by that one.
        waiting=[each for each in waiting if inner.get(each.approval_id) not in going],
        left={call_id: kept for call_id, kept in state.nested.items() if call_id not in going},
        claims=claims,
    )
    run.tally.tool_calls = state.tool_calls - len(run.resumption.nested)  # these are dispatched again
    run.tally.earlier = state.usage
    run.offering.names.update(call.name for call in run.conversation.calls)
    run.offering.lazy.activation.iterations = state.discoveries
    run.offering.lazy.activation.take_up(state.active)
    run.offering.pins.restore(state.pins)


async def take_up(run: Run, resumption: Resumption, catalog: Catalog, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Return the calls that are settled, with the arguments that were decided on; nobody else makes them from now on.

    Raises:
        CheckpointError: changed arguments do not fit the tool's schema, or the checkpoint was resumed before.
    """
    settled = resumption.settled
    going = settled.keys() | resumption.nested
    found = [_edited(catalog, call, settled.get(call.id or "")) for call in calls if call.id in going]
    await claim(resumption.claims, resumption.checkpoint.id)
    resumption.is_taken_up = True
    run.check_open()
    run.approvals.expect(resumption.checkpoint.approvals)
    return found


def _edited(catalog: Catalog, call: ToolCall, settled: Settled | None) -> ToolCall:
    if settled is None or settled.edited is None:
        return call
    binding = catalog.find(call.name)
    if binding is not None and (issues := binding.tool.validator.issues(settled.edited)):
        raise CheckpointError(
            f"the changed arguments of approval {settled.request.approval_id!r} do not fit the schema of tool "
            f"{call.name!r}: {'; '.join(issues)}; correct them and resume again"
        )
    return replace(call, arguments=settled.edited)


def take(run: Run, b: Boundary, settled: Settled) -> None:
    """Tell of a decision in the boundary of the call that it is about.

    Raises:
        ToolError: the call is not made; the text tells the model.
    """
    request, decision = settled.request, settled.decision
    run.approvals.release([request])
    by = run.scope.text(decision.decided_by) if decision is not None and decision.decided_by else None
    b.note(
        approval_id=request.approval_id,
        approval=settled.outcome,
        approval_waited=settled.waited,
        approval_decided_by=by,
    )
    labels = {semconv.TOOL_NAME: request.tool_name}
    run.scope.count(semconv.APPROVAL_PENDING, -1, labels, b.context)
    run.scope.count(semconv.APPROVAL_WAIT, settled.waited, labels, b.context)
    _tell_decided(
        run,
        b,
        request,
        outcome=settled.outcome,
        edited=settled.edited is not None,
        reason=run.scope.text(decision.reason) if decision is not None and decision.reason else None,
        decided_by=by,
        waited_ms=settled.waited * 1e3,
    )
    if settled.refusal is not None:
        raise ToolError(settled.refusal, error_type=f"approval_{settled.outcome}")


def _tell_decided(run: Run, b: Boundary, request: ApprovalRequest, **more: Any) -> None:
    told = {
        "approval_id": request.approval_id,
        "tool_name": request.tool_name,
        "tool_call_id": request.tool_call_id,
        "edited": False,
        "reason": None,
        "decided_by": None,
        **more,
    }
    run.scope.emit(ApprovalDecided, b.span.get_span_context(), told)


def in_order(calls: Sequence[ToolCall], *results: Mapping[str, ToolResult]) -> list[ToolResult]:
    """Return the results of calls in the order of the calls."""
    known = {call_id: result for some in results for call_id, result in some.items()}
    return [known[call.id] for call in calls if call.id in known]
