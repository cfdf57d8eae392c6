"""Runs as JSON, for the server and for callbacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic.alias_generators import to_camel

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.context import Identity
from pellucid.durable.states.records import Conversation, RunState
from pellucid.durable.store import CallRecord, RunOverview
from pellucid.messages import Usage, dump_messages


def usage_json(usage: Usage) -> dict[str, Any]:
    """Return the usage of models as the API shows it; the keys of `byModality` are names of the conventions."""
    return {to_camel(name): value for name, value in asdict(usage).items()}


def state_json(state: RunState) -> dict[str, Any]:
    """Return the state of a run as the API shows it."""
    shown: dict[str, Any] = {
        "id": state.run_id,
        "agent": state.agent,
        "status": _status(state),
        "conversationId": state.identity.conversation_id if state.identity is not None else None,
        "passes": state.passes,
        "output": state.output,
        "createdAt": state.created_at,
        "updatedAt": state.updated_at,
        "dueAt": state.due_at,
        "worker": state.worker,
        "leaseUntil": state.lease_until,
        "attempts": state.attempts or None,
        "lastError": _error(state.last_error_type, state.last_error),
        "failedAt": state.failed_at,
        "nextAttemptAt": state.next_attempt_at,
        "stopReason": state.stop_reason,
        "traceId": state.trace_id,
        "usage": usage_json(state.usage) if state.usage is not None else None,
        "error": _error(state.error_type, state.error),
        "approvals": [_approval(request) for request in state.approvals],
        "external": [call_json(call) for call in state.external],
        "messages": dump_messages(state.messages) if state.messages else None,
    }
    return {name: value for name, value in shown.items() if value is not None}


def overview_json(run: RunOverview) -> dict[str, Any]:
    """Return a run of a list as the API shows it."""
    identity = run.identity or Identity()
    shown: dict[str, Any] = {
        "id": run.run_id,
        "agent": run.agent,
        "status": run.status,
        "tenant": identity.tenant,
        "principal": identity.principal,
        "conversationId": identity.conversation_id,
        "createdAt": run.created_at,
        "updatedAt": run.updated_at,
        "dueAt": run.due_at,
        "passes": run.passes,
        "pending": run.pending,
        "worker": run.worker,
        "leaseUntil": run.lease_until,
        "expiredLeases": run.expired_leases,
        "idempotencyKey": run.idempotency_key,
        "attempts": run.attempts,
        "failedAt": run.failed_at,
        "nextAttemptAt": run.next_attempt_at,
        "error": _error(run.last_error_type, run.last_error),
    }
    return {name: value for name, value in shown.items() if value is not None}


def conversation_json(conversation: Conversation) -> dict[str, Any]:
    """Return a page of a conversation as the API shows it."""
    open_run = conversation.open_run
    shown: dict[str, Any] = {
        "id": conversation.conversation_id,
        "status": _status(open_run) if open_run is not None else "idle",
        "openRun": open_run.run_id if open_run is not None else None,
        "runs": [state_json(run) for run in conversation.runs],
        "before": conversation.before,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _error(kind: str | None, message: str | None) -> dict[str, Any] | None:
    return {"type": kind, "message": message} if message is not None else None


def _status(state: RunState) -> str:
    """Return the status; of a waiting run, what it waits for."""
    if state.status != "waiting":
        return state.status
    return "awaiting_approval" if state.approvals else "awaiting_tools"


def _approval(request: ApprovalRequest) -> dict[str, Any]:
    elicitation = {"mode": request.elicitation, "url": request.url, "inputSchema": request.input_schema}
    asked = {"elicitation": {name: value for name, value in elicitation.items() if value is not None}}
    return {
        "approvalId": request.approval_id,
        "toolCallId": request.tool_call_id,
        "toolName": request.tool_name,
        "input": request.arguments,
        "reason": request.reason,
        "expiresAt": request.expires_at,
        **(asked if request.elicitation is not None else {}),
        **({"annotations": request.annotations} if request.annotations is not None else {}),
    }


def call_json(call: CallRecord) -> dict[str, Any]:
    """Return a call as the API shows it."""
    return {
        "resultId": call.id,
        "toolName": call.tool,
        "toolCallId": call.tool_call_id,
        "status": call.status,
        "createdAt": call.created_at,
        "dispatchedAt": call.dispatched_at,
        "deadline": call.expires_at,
        "heartbeatAt": call.heartbeat_at,
        "progress": call.progress,
    }
