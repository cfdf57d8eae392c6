"""Schemas of the answers of the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

from pydantic.alias_generators import to_camel

from pellucid.durable.store.overviews import STATUSES
from pellucid.messages import Usage

Schema: TypeAlias = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_RESULT: Final[Schema] = {"resultId": TEXT}
_OPEN: Final = ("queued", "due", "retrying", "running", "awaiting_approval", "awaiting_tools")
"""Statuses of runs that have not ended."""


def _object(required: Iterable[str] = (), **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(required)}


def ref(name: str) -> Schema:
    """Return a reference to one of `SCHEMAS`, or to the shape of a body."""
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": _object(["error"], error=TEXT, path=TEXT, status=TEXT, toolName=TEXT, runId=TEXT),
    "Approval": _object(
        ["approvalId", "toolCallId", "toolName", "input"],
        approvalId=TEXT,
        toolCallId=TEXT,
        toolName=TEXT,
        input={},
        reason={"type": ["string", "null"]},
        expiresAt=_NUMBER,
        annotations={"type": "object"},
        elicitation=_object(["mode"], mode={"enum": ["form", "url"]}, url=TEXT, inputSchema={"type": "object"}),
    ),
    "ExternalCall": _object(
        ["resultId", "toolName", "status"],
        resultId=TEXT,
        toolName=TEXT,
        toolCallId=TEXT,
        status=TEXT,
        createdAt=_NUMBER,
        dispatchedAt=_NUMBER,
        deadline=_NUMBER,
        heartbeatAt=_NUMBER,
        progress={},
    ),
    "Call": {"allOf": [ref("ExternalCall"), _object(["runId", "kind"], runId=TEXT, kind=TEXT)]},
    "RunPage": _object(
        ["runs", "cursor"],
        runs={"type": "array", "items": ref("ListedRun")},
        cursor={"type": ["string", "null"]},
    ),
    "ListedRun": _object(
        ["id", "agent", "status", "createdAt", "updatedAt", "passes", "pending", "expiredLeases", "attempts"],
        **dict.fromkeys(("id", "agent", "tenant", "principal", "conversationId", "worker", "idempotencyKey"), TEXT),
        **dict.fromkeys(("createdAt", "updatedAt", "dueAt", "leaseUntil", "failedAt", "nextAttemptAt"), _NUMBER),
        **dict.fromkeys(("passes", "pending", "expiredLeases", "attempts"), _WHOLE),
        status={"enum": [status for status in STATUSES if status != "open"]},
        error=_object(["type", "message"], type={"type": ["string", "null"]}, message=TEXT),
    ),
    "Retry": _object(["outcome"], outcome={"enum": ["due"]}),
    "Run": _object(
        ["id", "agent", "status", "passes", "approvals", "external"],
        id=TEXT,
        agent=TEXT,
        status={"enum": [*_OPEN, "completed", "failed", "cancelled"]},
        conversationId=TEXT,
        passes={"type": "integer"},
        createdAt=_NUMBER,
        updatedAt=_NUMBER,
        dueAt=_NUMBER,
        worker=TEXT,
        leaseUntil=_NUMBER,
        attempts=_WHOLE,
        lastError=_object(["type", "message"], type=TEXT, message=TEXT),
        failedAt=_NUMBER,
        nextAttemptAt=_NUMBER,
        output={},
        stopReason=TEXT,
        traceId=TEXT,
        usage=ref("Usage"),
        error=_object(["type", "message"], type={"type": ["string", "null"]}, message=TEXT),
        approvals={"type": "array", "items": ref("Approval")},
        external={"type": "array", "items": ref("ExternalCall")},
        messages={"type": "array", "items": {"type": "object"}},
    ),
    "Usage": _object(
        **{to_camel(item.name): _NUMBER for item in fields(Usage) if item.name != "by_modality"},
        byModality={"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    "Conversation": _object(
        ["id", "status", "runs"],
        id=TEXT,
        status={"enum": ["idle", *_OPEN]},
        openRun=TEXT,
        runs={"type": "array", "items": ref("Run")},
        before={"type": "integer"},
    ),
    "Decided": _object(
        ["approvals"],
        approvals={
            "type": "array",
            "items": _object(["approvalId", "outcome"], approvalId=TEXT, outcome=TEXT),
        },
    ),
    "Cancellation": _object(["outcome"], outcome={"enum": ["cancelled", "requested", "ended"]}),
    "Settled": _object(
        ["status", "resultId"],
        **_RESULT,
        status={"enum": ["accepted", "waiting_for_async_tools", "duplicate"]},
        pendingCount={"type": "integer"},
        invoked={"type": "boolean"},
    ),
    "CallState": _object(
        ["status", "resultId", "deadline"],
        **_RESULT,
        status=TEXT,
        deadline=_NUMBER,
        token={**TEXT, "description": "Expires later than the one that was sent; also a header, Pellucid-Call-Token."},
    ),
    "ScoreState": _object(["status"], status={"enum": ["recorded", "duplicate"]}),
    "ScoreToken": _object(
        ["token", "names", "expiresAt"], token=TEXT, names={"type": "array", "items": TEXT}, expiresAt=_WHOLE
    ),
    "Status": _object(["status"], status=TEXT),
}
