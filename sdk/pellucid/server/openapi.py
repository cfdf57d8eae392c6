"""OpenAPI 3.1 document of the server, from the bodies that its endpoints read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from pellucid.durable.runs.conversations import MAX_PAGE
from pellucid.durable.store.overviews import STATUSES
from pellucid.messages import Usage
from pellucid.server.bodies import Body
from pellucid.server.calls import CallCancelBody, CompleteBody, HeartbeatBody, ProgressBody
from pellucid.server.event_stream import MAX_DIGITS
from pellucid.server.operation import MAX_AGE, RetryBody
from pellucid.server.operation import MAX_PAGE as MAX_RUNS
from pellucid.server.runs import ApprovalsBody, CancelBody
from pellucid.server.scores import ScoreBody, ScoreTokenBody
from pellucid.server.submissions import RunBody, SubmitBody
from pellucid.version import __version__

Schema = dict[str, Any]

DIALECT: Final = 2
"""Version of the names of JSON members; 1 had events and usage in snake_case, and `arguments` in decisions."""

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_EVENT: Final[Schema] = {
    "type": "object",
    "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT},
    "required": ["event", "data"],
}
_RESULT: Final[Schema] = {"resultId": _TEXT}
_OPEN: Final = ("queued", "due", "retrying", "running", "awaiting_approval", "awaiting_tools")
"""Statuses of runs that have not ended."""


def _object(required: Iterable[str] = (), **members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(required)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": _object(["error"], error=_TEXT, path=_TEXT, status=_TEXT, toolName=_TEXT, runId=_TEXT),
    "Approval": _object(
        ["approvalId", "toolCallId", "toolName", "input"],
        approvalId=_TEXT,
        toolCallId=_TEXT,
        toolName=_TEXT,
        input={},
        reason={"type": ["string", "null"]},
        expiresAt=_NUMBER,
        annotations={"type": "object"},
        elicitation=_object(["mode"], mode={"enum": ["form", "url"]}, url=_TEXT, inputSchema={"type": "object"}),
    ),
    "ExternalCall": _object(
        ["resultId", "toolName", "status"],
        resultId=_TEXT,
        toolName=_TEXT,
        toolCallId=_TEXT,
        status=_TEXT,
        createdAt=_NUMBER,
        dispatchedAt=_NUMBER,
        deadline=_NUMBER,
        heartbeatAt=_NUMBER,
        progress={},
    ),
    "Call": {"allOf": [_ref("ExternalCall"), _object(["runId", "kind"], runId=_TEXT, kind=_TEXT)]},
    "RunPage": _object(
        ["runs", "cursor"],
        runs={"type": "array", "items": _ref("ListedRun")},
        cursor={"type": ["string", "null"]},
    ),
    "ListedRun": _object(
        ["id", "agent", "status", "createdAt", "updatedAt", "passes", "pending", "expiredLeases", "attempts"],
        **dict.fromkeys(("id", "agent", "tenant", "principal", "conversationId", "worker", "idempotencyKey"), _TEXT),
        **dict.fromkeys(("createdAt", "updatedAt", "dueAt", "leaseUntil", "failedAt", "nextAttemptAt"), _NUMBER),
        **dict.fromkeys(("passes", "pending", "expiredLeases", "attempts"), _WHOLE),
        status={"enum": [status for status in STATUSES if status != "open"]},
        error=_object(["type", "message"], type={"type": ["string", "null"]}, message=_TEXT),
    ),
    "Retry": _object(["outcome"], outcome={"enum": ["due"]}),
    "Run": _object(
        ["id", "agent", "status", "passes", "approvals", "external"],
        id=_TEXT,
        agent=_TEXT,
        status={"enum": [*_OPEN, "completed", "failed", "cancelled"]},
        conversationId=_TEXT,
        passes={"type": "integer"},
        createdAt=_NUMBER,
        updatedAt=_NUMBER,
        dueAt=_NUMBER,
        worker=_TEXT,
        leaseUntil=_NUMBER,
        attempts=_WHOLE,
        lastError=_object(["type", "message"], type=_TEXT, message=_TEXT),
        failedAt=_NUMBER,
        nextAttemptAt=_NUMBER,
        output={},
        stopReason=_TEXT,
        traceId=_TEXT,
        usage=_ref("Usage"),
        error=_object(["type", "message"], type={"type": ["string", "null"]}, message=_TEXT),
        approvals={"type": "array", "items": _ref("Approval")},
        external={"type": "array", "items": _ref("ExternalCall")},
        messages={"type": "array", "items": {"type": "object"}},
    ),
    "Usage": _object(
        **{to_camel(item.name): _NUMBER for item in fields(Usage) if item.name != "by_modality"},
        byModality={"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    "Conversation": _object(
        ["id", "status", "runs"],
        id=_TEXT,
        status={"enum": ["idle", *_OPEN]},
        openRun=_TEXT,
        runs={"type": "array", "items": _ref("Run")},
        before={"type": "integer"},
    ),
    "Decided": _object(
        ["approvals"],
        approvals={
            "type": "array",
            "items": _object(["approvalId", "outcome"], approvalId=_TEXT, outcome=_TEXT),
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
        status=_TEXT,
        deadline=_NUMBER,
        token={**_TEXT, "description": "Expires later than the one that was sent; also a header, Pellucid-Call-Token."},
    ),
    "ScoreState": _object(["status"], status={"enum": ["recorded", "duplicate"]}),
    "ScoreToken": _object(
        ["token", "names", "expiresAt"], token=_TEXT, names={"type": "array", "items": _TEXT}, expiresAt=_WHOLE
    ),
    "Status": _object(["status"], status=_TEXT),
}
_BODIES: Final[tuple[type[Body], ...]] = (
    SubmitBody,
    ApprovalsBody,
    CancelBody,
    CompleteBody,
    HeartbeatBody,
    ProgressBody,
    CallCancelBody,
    RetryBody,
    ScoreBody,
    ScoreTokenBody,
)
_OPTIONAL: Final = (CancelBody, RetryBody, HeartbeatBody, CallCancelBody, ScoreTokenBody)
_ERRORS: Final = {
    "400": "The request is not valid; `path` says where.",
    "401": "The token is missing or not valid.",
    "403": "The caller may not do this; the message's role, the page's origin or the host is refused.",
    "404": "There is no such run, call or conversation, or it is another one's.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "429": "The caller has sent too many requests; `Retry-After` says when to send another.",
    "503": "The store is not available, or the server shuts down.",
}
_BODY_ERRORS: Final = ("400", "408", "413")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One method of one path.

    Attributes:
        summary: What it does.
        answers: Description and schema by status; a schema may be a media type.
        body: Shape of its body.
        parameters: Headers and query members.
        scheme: Name of the security scheme, if any.
    """

    summary: str
    answers: Mapping[str, tuple[str, str]]
    body: type[Body] | None = None
    parameters: tuple[Schema, ...] = ()
    scheme: Literal["caller", "call", ""] = "caller"
    errors: tuple[str, ...] = field(default=())

    def document(self, path: str) -> Schema:
        """Return the operation object."""
        has_id = "{" in path
        errors = {*self.errors, *(_BODY_ERRORS if self.body else ()), *(["404"] if has_id else [])}
        errors |= {"401", "403", "429", "503"} if self.scheme else {"403"}
        responses = {status: _response(text, schema) for status, (text, schema) in self.answers.items()}
        responses |= {status: _response(_ERRORS[status], "Error") for status in errors - responses.keys()}
        name = path.partition("{")[2].partition("}")[0]
        document: Schema = {
            "summary": self.summary,
            "parameters": [
                *([{"name": name, "in": "path", "required": True, "schema": _TEXT}] if has_id else []),
                *self.parameters,
            ],
            "responses": dict(sorted(responses.items())),
            "security": [{self.scheme: []}] if self.scheme else [],
        }
        if self.body is not None:
            content = {"application/json": {"schema": _ref(self.body.__name__)}}
            document["requestBody"] = {"content": content, "required": self.body not in _OPTIONAL}
        return document


def _response(description: str, schema: str) -> Schema:
    types = {"text/event-stream": _EVENT} if schema in ("stream", "run or stream") else {}
    if schema == "text":
        types = {"text/plain": _TEXT}
    elif schema != "stream":
        types["application/json"] = _ref("Run" if schema == "run or stream" else schema)
    return {"description": description, "content": {name: {"schema": value} for name, value in types.items()}}


def _parameter(place: str, name: str, schema: Schema) -> Schema:
    return {"name": name, "in": place, "schema": schema}


_POSITION: Final = (
    _parameter("header", "Last-Event-ID", {"type": "string", "pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"}),
    _parameter("query", "after", {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1}),
)
_BEFORE: Final = _parameter("query", "before", {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1})
_LIMIT: Final = _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE})
_WAIT: Final = _parameter("query", "wait", {"enum": ["true", "false"]})
_KEY: Final = _parameter("header", "Idempotency-Key", {"type": "string", "pattern": "^[!-~]{1,255}$"})
_ERROR: Final = "Error"
_STREAM: Final = (
    "Stored events, which have ids; pieces of answers, `inference.delta` without an id; and the state as the last one."
)

_RUNS: Final[Mapping[str, tuple[str, _Operation]]] = {
    "/runs": (
        "post",
        _Operation(
            summary="Submit a run.",
            answers={
                "200": ("The run has ended or waits; or its events.", "run or stream"),
                "202": ("The run has not ended yet.", "Run"),
                "409": ("A run of the conversation has not ended; or the key belongs to another input.", _ERROR),
            },
            body=SubmitBody,
            parameters=(*_POSITION, _WAIT, _KEY, _parameter("header", "Prefer", _TEXT)),
        ),
    ),
    "/conversations/{conversation_id}": (
        "get",
        _Operation(
            summary="Return the latest runs of a conversation, with their messages, in order.",
            answers={"200": ("The runs, and the status of the one that has not ended.", "Conversation")},
            parameters=(_BEFORE, _LIMIT),
            errors=("400",),
        ),
    ),
    "/runs/{run_id}": ("get", _Operation(summary="Return a run.", answers={"200": ("The run.", "Run")})),
    "/runs/{run_id}/events": (
        "get",
        _Operation(
            summary="Stream the events of a run, and its answers while models write them.",
            answers={"200": (_STREAM, "stream")},
            parameters=(*_POSITION, _WAIT),
            errors=("400",),
        ),
    ),
    "/runs/{run_id}/approvals": (
        "post",
        _Operation(
            summary="Decide about approvals.",
            answers={
                "200": ("All decisions count.", "Decided"),
                "409": ("A decision does not count.", "Decided"),
            },
            body=ApprovalsBody,
        ),
    ),
    "/runs/{run_id}/callback": (
        "post",
        _Operation(
            summary="Deliver the latest state to the callback URL again.",
            answers={
                "202": ("It is due now.", "Status"),
                "409": ("It was delivered, or there is no callback URL.", _ERROR),
            },
        ),
    ),
    "/runs/{run_id}/cancel": (
        "post",
        _Operation(
            summary="Cancel a run.",
            answers={
                "200": ("The run is cancelled.", "Cancellation"),
                "202": ("Its worker was asked to.", "Cancellation"),
                "409": ("The run had ended.", "Cancellation"),
            },
            body=CancelBody,
        ),
    ),
}
_SCORE: Final = _Operation(
    summary="Score a run, as a caller; or with a token of the run, each name once.",
    answers={
        "200": ("The token has given the same score before.", "ScoreState"),
        "202": ("The score is recorded.", "ScoreState"),
        "409": ("The token has given another score of this name.", _ERROR),
    },
    body=ScoreBody,
)
_SCORE_TOKEN: Final = _Operation(
    summary="Return a token with which a browser scores the run once.",
    answers={"200": ("The token.", "ScoreToken")},
    body=ScoreTokenBody,
)
_NAME: Final[Schema] = {"type": "string", "pattern": "^[ -~]{1,255}$"}
_FILTERS: Final = (
    _parameter("query", "status", {"enum": list(STATUSES)}),
    _parameter("query", "olderThan", {"type": "number", "minimum": 0, "maximum": MAX_AGE}),
    *(_parameter("query", name, _NAME) for name in ("agent", "worker", "key", "text")),
    _parameter("query", "cursor", _TEXT),
    _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_RUNS}),
)
_SETTLED: Final = {
    "200": ("The same result was there already.", "Settled"),
    "202": ("The result counts.", "Settled"),
    "409": ("Another result was there, or the call was over.", _ERROR),
}
_ALIVE: Final = {"200": ("The call.", "CallState"), "409": ("The call is settled.", _ERROR)}
_CALLS: Final = {
    "complete": _Operation(summary="Return a result.", answers=_SETTLED, body=CompleteBody, scheme="call"),
    "heartbeat": _Operation(summary="Move the deadline.", answers=_ALIVE, body=HeartbeatBody, scheme="call"),
    "progress": _Operation(summary="Report progress.", answers=_ALIVE, body=ProgressBody, scheme="call"),
    "cancel": _Operation(summary="Give a call up.", answers=_SETTLED, body=CallCancelBody, scheme="call"),
}
_OPERATOR: Final[Sequence[tuple[str, str, _Operation]]] = (
    (
        "/runs",
        "get",
        _Operation(
            summary="List the runs that the caller may read, newest first; a page may be empty and yet have a cursor.",
            answers={"200": ("The runs; `Link` has the next page.", "RunPage")},
            parameters=_FILTERS,
            errors=("400",),
        ),
    ),
    (
        "/runs/{run_id}/retry",
        "post",
        _Operation(
            summary="Continue a run that failed or was cancelled, from its journal.",
            answers={
                "202": ("The run is due.", "Retry"),
                "409": ("It has not ended, or is completed; or its conversation has another open run.", _ERROR),
            },
            body=RetryBody,
        ),
    ),
    ("/calls/{result_id}", "get", _Operation(summary="Return a call.", answers={"200": ("The call.", "Call")})),
    (
        "/calls/{result_id}",
        "post",
        _Operation(summary="Settle a call without its token.", answers=_SETTLED, body=CompleteBody),
    ),
)
_STATUS: Final = {
    "/healthz": _Operation(summary="Say that the process lives.", answers={"200": ("It does.", "Status")}, scheme=""),
    "/readyz": _Operation(
        summary="Say whether the store can be reached.",
        answers={"200": ("It can.", "Status")},
        scheme="",
        errors=("503",),
    ),
}
_METRICS: Final = _Operation(
    summary="Return metrics for Prometheus.", answers={"200": ("The metrics.", "text")}, scheme=""
)


_RUN: Final = _Operation(
    summary="Run an agent; the run ends if the client leaves.",
    answers={
        "200": ("The run has ended; or its events.", "run or stream"),
        "422": ("A tool of the agent needs a store.", _ERROR),
        "503": ("The server shuts down.", "Run"),
    },
    body=RunBody,
)


def document_without_store(*, has_metrics: bool) -> Schema:
    """Return the document of a server without a store.

    Args:
        has_metrics: Whether there is `/metrics`.
    """
    return _document("Runs of agents.", [*_probes(has_metrics=has_metrics), ("/runs", "post", _RUN)], [RunBody])


def document(*, has_calls: bool, has_metrics: bool) -> Schema:
    """Return the document of a server of durable runs.

    Args:
        has_calls: Whether other processes can return results.
        has_metrics: Whether there is `/metrics`.
    """
    runs = [(path, method, operation) for path, (method, operation) in _RUNS.items()]
    operations = [*_probes(has_metrics=has_metrics), *runs, *_OPERATOR, ("/runs/{run_id}/scores", "post", _SCORE)]
    if has_calls:
        operations.append(("/runs/{run_id}/scores/token", "post", _SCORE_TOKEN))
        operations += [(f"/async-tools/{{result_id}}/{name}", "post", operation) for name, operation in _CALLS.items()]
    return _document("Durable runs of agents.", operations, _BODIES)


def _probes(*, has_metrics: bool) -> list[tuple[str, str, _Operation]]:
    operations = {**_STATUS, "/metrics": _METRICS} if has_metrics else _STATUS
    return [(path, "get", operation) for path, operation in operations.items()]


def _document(summary: str, operations: Iterable[tuple[str, str, _Operation]], shapes: Sequence[type[Body]]) -> Schema:
    _, bodies = models_json_schema(
        [(body, "validation") for body in shapes], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Schema] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method] = operation.document(path)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pellucid", "version": __version__, "summary": summary, "x-dialect": DIALECT},
        "paths": paths,
        "components": {
            "schemas": {**bodies["$defs"], **_SCHEMAS},
            "securitySchemes": {
                "caller": {**bearer, "description": "A caller of runs; the application may use another scheme."},
                "call": {**bearer, "description": "`ctx.external.token`, for one call."},
            },
        },
    }
