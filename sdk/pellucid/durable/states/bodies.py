"""Runs as JSON, for the server and for callbacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic.alias_generators import to_camel

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.durable.states.records import Conversation, RunState
from pellucid.durable.store import CallRecord
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
        "stopReason": state.stop_reason,
        "traceId": state.trace_id,
        "usage": usage_json(state.usage) if state.usage is not None else None,
        "error": {"type": state.error_type, "message": state.error} if state.error is not None else None,
        "attempts": state.attempts or None,
        "lastError": {"type": state.last_error_type, "message": state.last_error} if state.last_error else None,
        "failedAt": state.failed_at,
        "nextAttemptAt": state.next_attempt_at,
        "approvals": [_approval(request) for request in state.approvals],
        "external": [_call(call) for call in state.external],
        "messages": dump_messages(state.messages) if state.messages else None,
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


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "resultId": call.id,
        "toolName": call.tool,
        "toolCallId": call.tool_call_id,
        "status": call.status,
        "createdAt": call.created_at,
        "deadline": call.expires_at,
        "heartbeatAt": call.heartbeat_at,
        "progress": call.progress,
    }
