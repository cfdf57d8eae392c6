"""Endpoints for outside workers: return the result of a call, keep it alive, report progress, cancel it.

A bearer token that was made for the call is checked before anything is looked up. Without one, a caller that may
`settle` can do the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.durable import CallRecord, CallTokens, DurableRuns, Settlement
from pellucid.durable.runs.tokens import PREFIX, CallGrant
from pellucid.server.access import Access
from pellucid.server.answers import DEPRECATED, JSONAnswer
from pellucid.server.bodies import Body, BodyReader
from pellucid.server.callers import grant_of, token_of, unknown_call
from pellucid.server.problems import Problem

MAX_EXTENSION: Final = 366 * 86400.0
"""Seconds by which one heartbeat can move a deadline."""

TOKEN_HEADER: Final = "Pellucid-Call-Token"  # noqa: S105  (a name)
"""Header of the answer to a heartbeat with a token that expires later than the one that was sent."""

M = TypeVar("M", bound=Body)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class CompleteBody(Body):
    """Result of a call: `output` if it is completed, otherwise the `error`, which the model reads.

    `response` is the old name of `output`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {"status": {"const": "completed"}, "error": {"type": "null"}}},
                {
                    "properties": {"status": {"const": "failed"}, "error": {"type": "string", "minLength": 1}},
                    "required": ["error"],
                },
            ],
            "not": {"required": ["output", "response"]},
        }
    )

    status: Literal["completed", "failed"]
    output: JsonValue = None
    response: JsonValue = Field(default=None, json_schema_extra={"deprecated": True})
    error: str | None = Field(default=None, min_length=1)


class HeartbeatBody(Body):
    """`extend` moves the deadline to at least so many seconds from now."""

    extend: float | None = Field(default=None, ge=0, le=MAX_EXTENSION)


class ProgressBody(Body):
    """Progress of a call."""

    value: JsonValue


class CallCancelBody(Body):
    """Reason why the worker gives a call up."""

    reason: str = Field(default="The worker gave the call up.", min_length=1)


class CallEndpoints:
    """Endpoints below `/async-tools/{result_id}`."""

    def __init__(self, runs: DurableRuns, tokens: CallTokens, bodies: BodyReader, access: Access) -> None:
        self._runs = runs
        self._tokens = tokens
        self._bodies = bodies
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes."""
        endpoints: dict[str, Endpoint] = {
            "complete": self._complete,
            "heartbeat": self._heartbeat,
            "progress": self._progress,
            "cancel": self._cancel,
        }
        return [
            Route(f"/async-tools/{{result_id}}/{name}", endpoint, methods=["POST"])
            for name, endpoint in endpoints.items()
        ]

    async def _complete(self, request: Request) -> Response:
        grant = await self._grant(request)
        return await settled_by(request, self._runs, self._bodies, grant.result_id, grant.run_id)

    async def _heartbeat(self, request: Request) -> Response:
        grant, body = await self._admitted(request, HeartbeatBody)
        call = await self._runs.heartbeat(grant.result_id, extend=body.extend)
        if call is None or call.status != "processing":
            return _state(call)
        return _state(call, await self._renewed(grant, call))

    async def _renewed(self, grant: CallGrant, call: CallRecord) -> str | None:
        """Return a token that expires as the call does, if that is later than the one that was sent."""
        now = await self._runs.now()
        if not grant.expires_at or self._tokens.expiry(call.expires_at, now) <= grant.expires_at:
            return None
        return self._tokens.issue(call.id, call.run_id, call.expires_at, now=now)

    async def _progress(self, request: Request) -> Response:
        grant, body = await self._admitted(request, ProgressBody)
        return _state(await self._runs.progress(grant.result_id, body.value))

    async def _cancel(self, request: Request) -> Response:
        grant = await self._grant(request)
        body = await self._bodies.read(request, CallCancelBody)
        settlement = await self._runs.settle(
            grant.result_id, error=body.reason, status="cancelled", run_id=grant.run_id
        )
        return _answered(grant.result_id, settlement)

    async def _admitted(self, request: Request, shape: type[M]) -> tuple[CallGrant, M]:
        """Return what the token allows, and the body.

        Raises:
            Problem: the token, the body, or the call is not valid, in this order.
        """
        grant = await self._grant(request)
        body = await self._bodies.read(request, shape)
        await self._check_known(grant)
        return grant, body

    async def _grant(self, request: Request) -> CallGrant:
        """Return what the token of the call allows, or a caller that may settle.

        Raises:
            Problem: 401, neither; 404, the token is for another call.
        """
        token = token_of(request)
        if token.startswith(f"{PREFIX}."):
            return await grant_of(token, request, self._tokens, self._runs)
        return await self._access.call(request, self._runs)

    async def _check_known(self, grant: CallGrant) -> None:
        call = await self._runs.call(grant.result_id)
        if call is None or call.run_id != grant.run_id:
            raise unknown_call()


async def settled_by(request: Request, runs: DurableRuns, bodies: BodyReader, result_id: str, run_id: str) -> Response:
    """Store the result in the body of a request, and return the answer.

    Raises:
        Problem: 400, the body is not valid; 404, the run has no such call; 409, it has another result.
    """
    body = await bodies.read(request, CompleteBody)
    if body.status == "completed" and body.error is not None:
        raise Problem(400, "a completed call has no error", path="error")
    if body.status == "failed" and body.error is None:
        raise Problem(400, "a failed call needs an error, which the model reads", path="error")
    if {"output", "response"} <= body.model_fields_set:
        raise Problem(400, "response is the old name of output; give one of them", path="response")
    given = body.output if "output" in body.model_fields_set else body.response
    output = given if body.status == "completed" else None
    settlement = await runs.settle(result_id, output=output, error=body.error, status=body.status, run_id=run_id)
    answer = _answered(result_id, settlement)
    if "response" in body.model_fields_set:
        answer.headers.update(DEPRECATED)
    return answer


def _answered(result_id: str, settlement: Settlement) -> Response:
    """Return the answer to a result: 202 if it counts, 200 if it repeats the one that does, otherwise 409."""
    call = settlement.call
    if call is None:
        raise unknown_call()
    if settlement.outcome in ("conflict", "late"):
        raise settled(call)
    if settlement.outcome == "duplicate":
        return JSONAnswer({"status": "duplicate", "resultId": result_id})
    if settlement.pending:
        waiting = {"status": "waiting_for_async_tools", "resultId": result_id, "pendingCount": settlement.pending}
        return JSONAnswer(waiting, 202)
    return JSONAnswer({"status": "accepted", "resultId": result_id, "invoked": settlement.is_run_due}, 202)


def _state(call: CallRecord | None, token: str | None = None) -> Response:
    """Return the state of a call, with its new token if it has one; 409 if it is settled, so that its worker stops."""
    if call is None:
        raise unknown_call()
    if call.status != "processing":
        raise settled(call)
    state: dict[str, Any] = {"status": call.status, "resultId": call.id, "deadline": call.expires_at}
    if token is None:
        return JSONAnswer(state)
    return JSONAnswer({**state, "token": token}, headers={TOKEN_HEADER: token, "Cache-Control": "no-store"})


def settled(call: CallRecord) -> Problem:
    """Return the problem of a call that was settled otherwise."""
    return Problem(409, "Async tool result is already settled", content={"status": call.status})
