"""Pause a run: its checkpoint, and the requests for approvals and their decisions."""

from __future__ import annotations

import uuid
from typing import Final

from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.approvals.decisions import ApprovalRequest
from pellucid.approvals.settling import Settled
from pellucid.errors import ToolError
from pellucid.events import ApprovalDecided, ApprovalRequested
from pellucid.failures import error_type_of
from pellucid.messages import dump_part
from pellucid.run.outcomes import AWAITING, Paused, Waiting
from pellucid.run.pausing.state import pending
from pellucid.run.pausing.steps import state_of
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.types import JSONObject

MAX_ENDED: Final = 256
"""Number of ended calls in a checkpoint, the latest ones; results of earlier ones are for unknown calls."""


def suspend(run: Run, paused: Paused) -> str:
    """Pause the run; return why the loop ends.

    Raises:
        ToolError: the run cannot be resumed.
    """
    if not run.nesting.may_wait:
        raise ToolError(
            f"Agent {run.scope.agent!r} needs an approval or an external result, which cannot be requested here.",
            error_type="approval",
        )
    pending(run).paused = paused
    return AWAITING


def pause(run: Run, b: Boundary, paused: Paused) -> JSONObject:
    """Return the checkpoint of a paused run, and emit its approval requests.

    Raises:
        CheckpointError: something in the conversation cannot be turned into JSON.
    """
    state, span = pending(run), b.span.get_span_context()
    checkpoint = state_of(
        run,
        span,
        uuid.uuid4().hex,
        run.conversation.messages,
        results=[dump_part(result) for result in paused.results],
        approvals=[waiting.request for waiting in paused.waiting],
        nested=dict(paused.nested),
        notes=dict(paused.notes),
        ended=[*state.calls.ended.values()][-MAX_ENDED:],
    ).to_dict()
    for waiting in paused.waiting:
        if not waiting.is_reported:
            emit_requested(run, b, waiting)
    state.requested = tuple(waiting.request for waiting in paused.waiting)
    state.decided(state.requested)
    state.calls.pause(paused.external)
    return checkpoint


def withdraw(run: Run, b: Boundary) -> None:
    """Withdraw the pending approvals of a run that has ended."""
    now, expected = run.scope.now() / 1e9, pending(run).expected
    for request in expected.values():
        b.event(ApprovalDecided.name, {**_attributes(request), semconv.APPROVAL_OUTCOME: "withdrawn"})
        _emit_decided(run, b, Settled(request=request, outcome="withdrawn", at=now))
    expected.clear()


def emit_requested(run: Run, b: Boundary, waiting: Waiting) -> None:
    """Count and emit an approval request."""
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


def record_decision(run: Run, b: Boundary, settled: Settled) -> None:
    """Record a decision in the boundary of its call, and emit it."""
    request = settled.request
    pending(run).decided([request])
    b.note(approval_id=request.approval_id, approval=settled.outcome, approval_waited=settled.waited)
    run.scope.count(semconv.APPROVAL_WAIT, settled.waited, {semconv.TOOL_NAME: request.tool_name}, b.context)
    b.note(approval_decided_by=_emit_decided(run, b, settled))


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
