"""Problems of requests, and the JSON with which they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pellucid.errors import CheckpointError, ConfigError, IdempotencyConflict, StoreUnavailable, UnknownRun

RETRY_AFTER = 5
"""Seconds after which clients try again when the store is not available."""


class Problem(Exception):
    """A request cannot be served.

    Attributes:
        status: HTTP status.
        content: Body of the answer; `error` says what is wrong.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, error: str, *, headers: Mapping[str, str] | None = None, **content: Any) -> None:
        super().__init__(error)
        self.status = status
        self.content: dict[str, Any] = {"error": error, **content}
        self.headers = headers


def unauthorized() -> Problem:
    """Return the problem of a request without valid credentials."""
    return Problem(401, "missing or invalid bearer token", headers={"WWW-Authenticate": "Bearer"})


def unknown_run() -> Problem:
    """Return the problem of a run that does not exist, or that the caller must not see."""
    return Problem(404, "run not found")


def answer(_request: Request, error: Exception) -> Response:
    """Return the answer to a request that failed."""
    problem = _problem(error)
    return JSONResponse(problem.content, problem.status, headers=problem.headers)


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case HTTPException():
            return Problem(error.status_code, HTTPStatus(error.status_code).phrase, headers=error.headers)
        case UnknownRun():
            return unknown_run()
        case IdempotencyConflict():
            return Problem(409, str(error))
        case ConfigError() | CheckpointError():
            return Problem(400, str(error))
        case StoreUnavailable():
            return Problem(503, "the store is not available", headers={"Retry-After": str(RETRY_AFTER)})
        case _:
            return Problem(500, "internal error")


HANDLERS = cast(
    "dict[Any, Any]",
    dict.fromkeys(
        (Problem, HTTPException, UnknownRun, IdempotencyConflict, ConfigError, CheckpointError, StoreUnavailable), answer
    ),
)
"""Handlers of exceptions, for Starlette. Others are bugs, which the server logs and answers with 500."""
