"""Runs as JSON, for the server and for callbacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.durable import CallRecord
from pellucid.durable_runs import RunState


def state_json(state: RunState) -> dict[str, Any]:
    """Return the state of a run as the API shows it."""
    shown: dict[str, Any] = {
        "id": state.run_id,
        "agent": state.agent,
        "status": _status(state),
        "passes": state.passes,
        "output": state.output,
        "stopReason": state.stop_reason,
        "traceId": state.trace_id,
        "usage": asdict(state.usage) if state.usage is not None else None,
        "error": {"type": state.error_type, "message": state.error} if state.error is not None else None,
        "approvals": [_approval(request) for request in state.approvals],
        "external": [_call(call) for call in state.external],
    }
    return {name: value for name, value in shown.items() if value is not None}


def _status(state: RunState) -> str:
    """Return the status; of a waiting run, what it waits for."""
    if state.status != "waiting":
        return state.status
    return "awaiting_approval" if state.approvals else "awaiting_tools"


def _approval(request: ApprovalRequest) -> dict[str, Any]:
    return {
        "approvalId": request.approval_id,
        "toolCallId": request.tool_call_id,
        "toolName": request.tool_name,
        "input": request.arguments,
        "reason": request.reason,
        "expiresAt": request.expires_at,
    }


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "resultId": call.id,
        "toolName": call.tool,
        "toolCallId": call.tool_call_id,
        "status": call.status,
        "createdAt": call.created_at,
        "deadline": call.deadline,
        "heartbeatAt": call.heartbeat_at,
        "progress": call.progress,
    }
