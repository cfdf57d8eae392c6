"""Pause a run that waits for approvals or external results, and resume it from its checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.approvals.checkpoint import Checkpoint, Resumption
from pellucid.approvals.claims import Claims, claim
from pellucid.approvals.decisions import ApprovalRequest, Decision, Settled, settle
from pellucid.approvals.external import ExternalResult, settle_results
from pellucid.errors import CheckpointError, ToolError
from pellucid.events import ApprovalDecided, ApprovalRequested
from pellucid.failures import error_type_of
from pellucid.messages import ToolCall, ToolResult, dump_part
from pellucid.run.external import restore
from pellucid.run.journal import Folded
from pellucid.run.outcomes import Paused, Waiting
from pellucid.run.state import Run
from pellucid.run.steps import state_of
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.schema import Validator
from pellucid.types import JSONObject

AWAITING = "awaiting"
"""Reason why the loop ends: calls wait for approvals or external results."""

MAX_ENDED: Final = 256
"""Number of ended calls in a checkpoint, the latest ones; results of earlier ones are for unknown calls."""


def pause(run: Run, b: Boundary, paused: Paused) -> JSONObject:
    """Return the checkpoint of a paused run, and emit its approval requests.

    Raises:
        CheckpointError: something in the conversation cannot be turned into JSON.
    """
    span = b.span.get_span_context()
    checkpoint = state_of(
        run,
        span,
        uuid.uuid4().hex,
        run.conversation.messages,
        results=[dump_part(result) for result in paused.results],
        approvals=[waiting.request for waiting in paused.waiting],
        nested=dict(paused.nested),
        notes=dict(paused.notes),
        ended=[*run.async_calls.ended.values()][-MAX_ENDED:],
    ).to_dict()
    for waiting in paused.waiting:
        if not waiting.is_reported:
            _emit_requested(run, b, waiting)
    run.approvals.requested = tuple(waiting.request for waiting in paused.waiting)
    run.approvals.release(run.approvals.requested)
    run.async_calls.pause(paused.external)
    return checkpoint


def withdraw(run: Run, b: Boundary) -> None:
    """Withdraw the pending approvals of a run that has ended."""
    now = run.scope.now() / 1e9
    for request in run.approvals.expected.values():
        b.event(ApprovalDecided.name, {**_attributes(request), semconv.APPROVAL_OUTCOME: "withdrawn"})
        _emit_decided(run, b, Settled(request=request, outcome="withdrawn", at=now))
    run.approvals.expected.clear()


def _emit_requested(run: Run, b: Boundary, waiting: Waiting) -> None:
    request = waiting.request
    error_type = error_type_of(waiting.fault) if waiting.fault is not None else None
    b.event(ApprovalRequested.name, _attributes(request))
    run.scope.count(semconv.APPROVAL_PENDING, 1, {semconv.TOOL_NAME: request.tool_name}, b.context)
    if run.scope.has_listener(ApprovalRequested.name):
        payload = {
            "approval_id": request.approval_id,
            "tool_name": request.tool_name,
            "tool_call_id": request.tool_call_id,
            "provider_id": waiting.provider_id,
            "arguments": run.scope.clean(request.arguments),
            "expires_at": request.expires_at,
            "reason": run.scope.text(request.reason) if request.reason is not None else None,
            "error_type": error_type,
        }
        run.scope.emit(ApprovalRequested, b.span.get_span_context(), payload)


def _attributes(request: ApprovalRequest) -> dict[str, AttributeValue]:
    return {
        semconv.APPROVAL_ID: request.approval_id,
        semconv.TOOL_NAME: request.tool_name,
        semconv.TOOL_CALL_ID: request.tool_call_id,
    }


def prepare(
    run: Run,
    state: Checkpoint,
    decisions: Sequence[Decision],
    results: Sequence[ExternalResult],
    claims: Claims | None,
    folded: Folded | None = None,
) -> None:
    """Restore the state of a paused run in a run that has not started.

    Raises:
        CheckpointError: the decisions or results do not fit the checkpoint.
    """
    now = run.scope.now() / 1e9
    settled, waiting = settle(state.approvals, decisions, now)
    nested = state.nested_checkpoints
    if not (settled or results or state.has_external or folded is not None):
        waiting_for = ", ".join(repr(request.approval_id) for request in state.approvals)
        raise CheckpointError(f"no decision was given; pass a Decision for at least one of {waiting_for}")
    # Ids of the calls that run sub-agents, by the ids of the results that these wait for.
    owed = {request.result_id: call_id for call_id, paused in nested.items() for request in paused.all_external}
    ended = {call.result_id: call for call in state.ended}
    own = [item for item in results if item.result_id not in owed]
    external, late = settle_results(state.external, own, now, ended)
    # Ids of the calls that run sub-agents, by the ids of the sub-agents' approvals.
    inner = {request.approval_id: call_id for call_id, paused in nested.items() for request in paused.approvals}
    resuming = {inner[approval_id] for approval_id in settled if approval_id in inner}
    resuming |= {owed[result.result_id] for result in results if result.result_id in owed}
    resuming |= {
        call_id for call_id, paused in nested.items() if any(item.expires(now) for item in paused.all_external)
    }
    run.resumption = Resumption(
        checkpoint=state,
        results=state.known_results,
        settled={approval.request.tool_call_id: approval for key, approval in settled.items() if key not in inner},
        nested={
            call_id: (
                nested[call_id],
                [item for item in decisions if inner.get(item.approval_id) == call_id],
                [item for item in results if owed.get(item.result_id) == call_id],
            )
            for call_id in resuming
        },
        external=external,
        late=late,
        # A sub-agent that resumes requests its pending approvals again.
        waiting=[request for request in waiting if inner.get(request.approval_id) not in resuming],
        still_paused={call_id: paused for call_id, paused in state.nested.items() if call_id not in resuming},
        claims=claims,
    )
    run.folded = folded
    run.tally.tool_calls = state.tool_calls - len(run.resumption.nested)  # these are dispatched again
    run.tally.earlier = state.usage
    restore(run, state)
    run.offering.names.update(call.name for call in run.conversation.calls)
    run.offering.activation.iterations = state.discoveries
    run.offering.activation.preset = state.active
    run.offering.pins.restore(state.pins)


async def claim_calls(
    run: Run, resumption: Resumption, catalog: Catalog, calls: Sequence[ToolCall]
) -> Sequence[ToolCall]:
    """Claim the checkpoint, and return the settled calls with the arguments that were approved.

    Raises:
        CheckpointError: changed arguments do not fit the tool's schema, or the checkpoint was resumed before.
    """
    settled = resumption.settled
    resuming = settled.keys() | resumption.nested
    edited = [_edited(catalog, call, settled.get(call.id or "")) for call in calls if call.id in resuming]
    await claim(resumption.claims, resumption.checkpoint.id)
    resumption.is_claimed = True
    run.check_open()
    run.approvals.expect(resumption.checkpoint.approvals)
    return edited


def _edited(catalog: Catalog, call: ToolCall, settled: Settled | None) -> ToolCall:
    if settled is None or settled.edited is None:
        return call
    if (binding := catalog.find(call.name)) is not None:
        check_edited(settled.request, settled.edited, binding.tool.validator)
    return replace(call, arguments=settled.edited)


def check_edited(request: ApprovalRequest, arguments: JSONObject, validator: Validator) -> None:
    """Check the changed arguments of an approval.

    Raises:
        CheckpointError: they do not fit the tool's schema.
    """
    if issues := validator.issues(arguments):
        raise CheckpointError(
            f"the changed arguments of approval {request.approval_id!r} do not fit the schema of tool "
            f"{request.tool_name!r}: {'; '.join(issues)}; correct them and resume again"
        )


def apply_decision(run: Run, b: Boundary, settled: Settled) -> None:
    """Record a decision in the boundary of its call, and emit it.

    Raises:
        ToolError: the call must not run; the text is for the model.
    """
    request = settled.request
    run.approvals.release([request])
    b.note(approval_id=request.approval_id, approval=settled.outcome, approval_waited=settled.waited)
    run.scope.count(semconv.APPROVAL_WAIT, settled.waited, {semconv.TOOL_NAME: request.tool_name}, b.context)
    b.note(approval_decided_by=_emit_decided(run, b, settled))
    if settled.error is not None:
        raise ToolError(settled.error, error_type=f"approval_{settled.outcome}")


def _emit_decided(run: Run, b: Boundary, settled: Settled) -> str | None:
    """Count and emit the outcome of an approval request; return who decided, redacted."""
    request, decision = settled.request, settled.decision
    decided_by = run.scope.text(decision.decided_by) if decision is not None and decision.decided_by else None
    run.scope.count(semconv.APPROVAL_PENDING, -1, {semconv.TOOL_NAME: request.tool_name}, b.context)
    payload = {
        "approval_id": request.approval_id,
        "tool_name": request.tool_name,
        "tool_call_id": request.tool_call_id,
        "outcome": settled.outcome,
        "edited": settled.edited is not None,
        "reason": run.scope.text(decision.reason) if decision is not None and decision.reason else None,
        "decided_by": decided_by,
        "waited_ms": settled.waited * 1e3,
    }
    run.scope.emit(ApprovalDecided, b.span.get_span_context(), payload)
    return decided_by


def in_order(calls: Sequence[ToolCall], *results: Iterable[ToolResult]) -> list[ToolResult]:
    """Return the results of calls in the order of the calls."""
    by_id = {result.id: result for result in chain(*results)}
    return [by_id[call.id] for call in calls if call.id in by_id]
