"""Paths of the server, by what serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pellucid.durable.runs.conversations import MAX_PAGE
from pellucid.durable.store.overviews import STATUSES
from pellucid.server.calls import CallCancelBody, CompleteBody, HeartbeatBody, ProgressBody
from pellucid.server.event_stream import MAX_DIGITS
from pellucid.server.openapi.operation import Operation, parameter
from pellucid.server.openapi.schemas import TEXT, Schema
from pellucid.server.operation import MAX_AGE, RetryBody
from pellucid.server.operation import MAX_PAGE as MAX_RUNS
from pellucid.server.runs import ApprovalsBody, CancelBody
from pellucid.server.scores import ScoreBody, ScoreTokenBody
from pellucid.server.submissions import RunBody, SubmitBody

_POSITION: Final = (
    parameter("header", "Last-Event-ID", {"type": "string", "pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"}),
    parameter("query", "after", {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1}),
)
_BEFORE: Final = parameter("query", "before", {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1})
_LIMIT: Final = parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE})
_WAIT: Final = parameter("query", "wait", {"enum": ["true", "false"]})
_KEY: Final = parameter("header", "Idempotency-Key", {"type": "string", "pattern": "^[!-~]{1,255}$"})
_ERROR: Final = "Error"
_STREAM: Final = (
    "Stored events, which have ids; pieces of answers, `inference.delta` without an id; and the state as the last one."
)

RUNS: Final[Mapping[str, tuple[str, Operation]]] = {
    "/runs": (
        "post",
        Operation(
            summary="Submit a run.",
            answers={
                "200": ("The run has ended or waits; or its events.", "run or stream"),
                "202": ("The run has not ended yet.", "Run"),
                "409": ("A run of the conversation has not ended; or the key belongs to another input.", _ERROR),
            },
            body=SubmitBody,
            parameters=(*_POSITION, _WAIT, _KEY, parameter("header", "Prefer", TEXT)),
        ),
    ),
    "/conversations/{conversation_id}": (
        "get",
        Operation(
            summary="Return the latest runs of a conversation, with their messages, in order.",
            answers={"200": ("The runs, and the status of the one that has not ended.", "Conversation")},
            parameters=(_BEFORE, _LIMIT),
            errors=("400",),
        ),
    ),
    "/runs/{run_id}": ("get", Operation(summary="Return a run.", answers={"200": ("The run.", "Run")})),
    "/runs/{run_id}/events": (
        "get",
        Operation(
            summary="Stream the events of a run, and its answers while models write them.",
            answers={"200": (_STREAM, "stream")},
            parameters=(*_POSITION, _WAIT),
            errors=("400",),
        ),
    ),
    "/runs/{run_id}/approvals": (
        "post",
        Operation(
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
        Operation(
            summary="Deliver the latest state to the callback URL again.",
            answers={
                "202": ("It is due now.", "Status"),
                "409": ("It was delivered, or there is no callback URL.", _ERROR),
            },
        ),
    ),
    "/runs/{run_id}/cancel": (
        "post",
        Operation(
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
SCORE: Final = Operation(
    summary="Score a run, as a caller; or with a token of the run, each name once.",
    answers={
        "200": ("The token has given the same score before.", "ScoreState"),
        "202": ("The score is recorded.", "ScoreState"),
        "409": ("The token has given another score of this name.", _ERROR),
    },
    body=ScoreBody,
)
SCORE_TOKEN: Final = Operation(
    summary="Return a token with which a browser scores the run once.",
    answers={"200": ("The token.", "ScoreToken")},
    body=ScoreTokenBody,
)
_NAME: Final[Schema] = {"type": "string", "pattern": "^[ -~]{1,255}$"}
_FILTERS: Final = (
    parameter("query", "status", {"enum": list(STATUSES)}),
    parameter("query", "olderThan", {"type": "number", "minimum": 0, "maximum": MAX_AGE}),
    *(parameter("query", name, _NAME) for name in ("agent", "worker", "key", "text")),
    parameter("query", "cursor", TEXT),
    parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": MAX_RUNS}),
)
_SETTLED: Final = {
    "200": ("The same result was there already.", "Settled"),
    "202": ("The result counts.", "Settled"),
    "409": ("Another result was there, or the call was over.", _ERROR),
}
_ALIVE: Final = {"200": ("The call.", "CallState"), "409": ("The call is settled.", _ERROR)}
CALLS: Final = {
    "complete": Operation(summary="Return a result.", answers=_SETTLED, body=CompleteBody, scheme="call"),
    "heartbeat": Operation(summary="Move the deadline.", answers=_ALIVE, body=HeartbeatBody, scheme="call"),
    "progress": Operation(summary="Report progress.", answers=_ALIVE, body=ProgressBody, scheme="call"),
    "cancel": Operation(summary="Give a call up.", answers=_SETTLED, body=CallCancelBody, scheme="call"),
}
OPERATOR: Final[Sequence[tuple[str, str, Operation]]] = (
    (
        "/runs",
        "get",
        Operation(
            summary="List the runs that the caller may read, newest first; a page may be empty and yet have a cursor.",
            answers={"200": ("The runs; `Link` has the next page.", "RunPage")},
            parameters=_FILTERS,
            errors=("400",),
        ),
    ),
    (
        "/runs/{run_id}/retry",
        "post",
        Operation(
            summary="Continue a run that failed or was cancelled, from its journal.",
            answers={
                "202": ("The run is due.", "Retry"),
                "409": ("It has not ended, or is completed; or its conversation has another open run.", _ERROR),
            },
            body=RetryBody,
        ),
    ),
    ("/calls/{result_id}", "get", Operation(summary="Return a call.", answers={"200": ("The call.", "Call")})),
    (
        "/calls/{result_id}",
        "post",
        Operation(summary="Settle a call without its token.", answers=_SETTLED, body=CompleteBody),
    ),
)
PROBES: Final = {
    "/healthz": Operation(summary="Say that the process lives.", answers={"200": ("It does.", "Status")}, scheme=""),
    "/readyz": Operation(
        summary="Say whether the store can be reached.",
        answers={"200": ("It can.", "Status")},
        scheme="",
        errors=("503",),
    ),
}
METRICS: Final = Operation(
    summary="Return metrics for Prometheus.", answers={"200": ("The metrics.", "text")}, scheme=""
)


RUN: Final = Operation(
    summary="Run an agent; the run ends if the client leaves.",
    answers={
        "200": ("The run has ended; or its events.", "run or stream"),
        "422": ("A tool of the agent needs a store.", _ERROR),
        "503": ("The server shuts down.", "Run"),
    },
    body=RunBody,
)
