"""Endpoints for callers: submit a run, follow it, decide about its approvals, cancel it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pellucid.approvals.decisions import Decision
from pellucid.context import Identity
from pellucid.durable_runs import DurableRuns, RunState
from pellucid.errors import ConfigError
from pellucid.messages import load_messages
from pellucid.run.start import Input
from pellucid.server.bodies import Body, read
from pellucid.server.callers import Authenticate, caller_of
from pellucid.server.event_stream import position, stream
from pellucid.server.problems import Problem, unknown_run
from pellucid.server.states import state_json
from pellucid.server.traces import in_trace_of

_MAX_ID = 200


class SubmitBody(Body):
    """A run to submit: `input` is a text, or messages as `dump_messages` returns them."""

    input: str | list[dict[str, JsonValue]]
    agent: str | None = None
    conversation_id: str | None = None


class DecisionBody(Body):
    """Decision about one approval."""

    approval_id: str
    approved: bool
    reason: str | None = None
    arguments: dict[str, JsonValue] | None = None
    decided_by: str | None = None


class ApprovalResponse(Body):
    """Content part `tool-approval-response`, as the AI SDK sends it."""

    type: Literal["tool-approval-response"]
    approval_id: str
    approved: bool
    reason: str | None = None


class ApprovalsBody(Body):
    """Decisions; or a message of role `tool` with approval responses."""

    decisions: list[DecisionBody] = Field(default_factory=list)
    role: Literal["tool"] = "tool"
    content: list[ApprovalResponse] = Field(default_factory=list)


class CancelBody(Body):
    """Reason for which a run is cancelled."""

    reason: str = Field(default="Cancelled by the caller.", min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndpoints:
    """Endpoints below `/runs`.

    Attributes:
        runs: The runs.
        authenticate: Returns the identity of a caller.
        heartbeat: Seconds between comments in a stream without events.
        max_wait: Seconds for which `POST /runs` waits for the end of a run, without streaming.
    """

    runs: DurableRuns
    authenticate: Authenticate
    heartbeat: float
    max_wait: float

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/runs", self._submit, methods=["POST"]),
            Route("/runs/{run_id}", self._status, methods=["GET"]),
            Route("/runs/{run_id}/events", self._events, methods=["GET"]),
            Route("/runs/{run_id}/approvals", self._decide, methods=["POST"]),
            Route("/runs/{run_id}/cancel", self._cancel, methods=["POST"]),
        ]

    async def _submit(self, request: Request) -> Response:
        caller = await caller_of(request, self.authenticate)
        body = await read(request, SubmitBody)
        agent = self._agent(body.agent)
        identity = replace(caller, conversation_id=body.conversation_id or caller.conversation_id)
        key = request.headers.get("idempotency-key")
        run_id = _run_id(caller, key)
        with in_trace_of(request):
            await self.runs.submit(agent, _input(body), identity=identity, run_id=run_id)
        location = {"Location": str(request.url_for("status", run_id=run_id).path)}
        ...


def _run_id(caller: Identity, key: str | None) -> str:
    """Return the id of a new run, the same for the same caller and idempotency key."""
    if key is None:
        return uuid.uuid4().hex
    return uuid.uuid5(uuid.NAMESPACE_OID, repr((caller.tenant, caller.principal, key))).hex
