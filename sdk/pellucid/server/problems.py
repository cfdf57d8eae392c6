"""Problems of requests, and the JSON with which they are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from pellucid.errors import (
    CallbackRefused,
    CheckpointError,
    ConversationBusy,
    IdempotencyConflict,
    StoreNeeded,
    StoreUnavailable,
    UnknownConversation,
    UnknownRun,
)
from pellucid.server.answers import JSONAnswer

_NOTHING: Final[Mapping[str, str]] = {}

RETRY_AFTER: Final = 5
"""Seconds after which clients try again when the store is not available."""


class Problem(Exception):
    """A request cannot be served.

    Attributes:
        status: HTTP status.
        content: Body of the answer; `error` says what is wrong, and `path` where in the request.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        error: str,
        *,
        path: str | None = None,
        content: Mapping[str, Any] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.content = {"error": error, **({"path": path} if path is not None else {}), **content}
        self.headers = headers


def unauthorized(error: str = "missing or invalid bearer token") -> Problem:
    """Return the problem of a request without valid credentials."""
    return Problem(401, error, headers={"WWW-Authenticate": "Bearer"})


def unknown_run() -> Problem:
    """Return the problem of a run that does not exist, or that the caller must not see."""
    return Problem(404, "run not found")


def store_needed(path: str) -> Problem:
    """Return the problem of a request for what only a server with a store can do; `path` is where it asks for it."""
    return Problem(400, "this server has no store, which that needs; serve the agent with a store", path=path)


def unavailable() -> Problem:
    """Return the problem of a store that cannot be reached."""
    return _later("the store is not available")


def _later(detail: str) -> Problem:
    return Problem(503, detail, headers={"Retry-After": str(RETRY_AFTER)})


def answer(_request: Request, error: Exception) -> Response:
    """Return the answer to a request that failed."""
    kind = next(kind for kind in type(error).__mro__ if kind in _PROBLEMS)
    problem = _PROBLEMS[kind](error)
    return JSONAnswer(problem.content, problem.status, headers=dict(problem.headers))


def _of_starlette(error: HTTPException) -> Problem:
    return Problem(error.status_code, HTTPStatus(error.status_code).phrase, headers=error.headers or _NOTHING)


def _used_key(_error: IdempotencyConflict) -> Problem:
    return Problem(409, "this Idempotency-Key belongs to another agent or input; use a new one here")


def _busy(error: ConversationBusy) -> Problem:
    text = "a run of this conversation has not ended; wait for it or cancel it, and send this again"
    return Problem(409, text, content={"runId": error.run_id})


_PROBLEMS: Final[Mapping[Any, Callable[[Any], Problem]]] = {
    Problem: lambda error: error,
    HTTPException: _of_starlette,
    UnknownRun: lambda _: unknown_run(),
    UnknownConversation: lambda _: Problem(404, "conversation not found"),
    ConversationBusy: _busy,
    IdempotencyConflict: _used_key,
    StoreUnavailable: lambda error: _later(f"the store {error.reason}"),
    CallbackRefused: lambda error: Problem(400, str(error), path="callbackUrl"),
    StoreNeeded: lambda error: Problem(422, str(error), content={"toolName": error.tool_name}),
    CheckpointError: lambda error: Problem(400, str(error), path="decisions"),
    ClientDisconnect: lambda _: Problem(400, "the client left"),  # nobody reads it
    Exception: lambda _: Problem(500, "internal error"),
}
HANDLERS: Final[dict[Any, ExceptionHandler]] = dict.fromkeys(_PROBLEMS, answer)
"""Handlers of exceptions, for Starlette, which raises those of the last kind again after the answer: they are bugs."""
