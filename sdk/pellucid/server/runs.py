"""Endpoints for callers: submit a run, follow it, decide about its approvals, cancel it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import anyio
from pydantic import ConfigDict, Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.approvals.decisions import Decision
from pellucid.context import Identity
from pellucid.durable import DurableRuns
from pellucid.durable.states.bodies import state_json
from pellucid.durable.store.values import MAX_ID, is_storable
from pellucid.server.access import Access
from pellucid.server.answers import DEPRECATED, JSONAnswer
from pellucid.server.bodies import Body, BodyReader
from pellucid.server.draining import Draining
from pellucid.server.event_stream import EventStream, position
from pellucid.server.problems import Problem
from pellucid.server.submissions import SubmitBody, agent_named, input_of, tags_of


class DecisionBody(Body):
    """Decision about one approval; `decided_by` is the principal of the caller, and may be left out.

    `input` replaces the arguments of the model; `arguments` is its old name.
    """

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["input", "arguments"]}})

    approval_id: str
    approved: bool
    reason: str | None = None
    input: dict[str, JsonValue] | None = None
    arguments: dict[str, JsonValue] | None = Field(default=None, json_schema_extra={"deprecated": True})
    decided_by: str | None = None

    @property
    def edited(self) -> dict[str, JsonValue] | None:
        """The arguments that replace the model's, under either name."""
        return self.input if "input" in self.model_fields_set else self.arguments


class ApprovalResponse(Body):
    """Content part `tool-approval-response`, as the AI SDK sends it."""

    type: Literal["tool-approval-response"]
    approval_id: str
    approved: bool
    reason: str | None = None


class ApprovalsBody(Body):
    """Decisions; or a message of role `tool` with approval responses."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"properties": {name: {"minItems": 1}}, "required": [name]} for name in ("decisions", "content")]
        }
    )

    decisions: list[DecisionBody] = Field(default_factory=list)
    role: Literal["tool"] = "tool"
    content: list[ApprovalResponse] = Field(default_factory=list)

    def all_decisions(self, caller: str | None) -> list[Decision]:
        """Return the decisions of both forms; the caller has made them.

        Raises:
            Problem: 403, one names somebody else; 400, one has arguments under both names.
        """
        for index, given in enumerate(self.decisions):
            if given.decided_by not in (None, caller):
                raise Problem(
                    403,
                    "a decision is its caller's; omit `decidedBy`, and authenticate as who decides",
                    path=f"decisions.{index}.decidedBy",
                )
            if {"input", "arguments"} <= given.model_fields_set:
                old = "arguments is the old name of input; give one of them"
                raise Problem(400, old, path=f"decisions.{index}.arguments")
        own = [
            Decision(given.approval_id, given.approved, reason=given.reason, arguments=given.edited, decided_by=caller)
            for given in self.decisions
        ]
        return [
            *own,
            *(
                Decision(part.approval_id, part.approved, reason=part.reason, decided_by=caller)
                for part in self.content
            ),
        ]


class CancelBody(Body):
    """Reason for which a run is cancelled."""

    reason: str = Field(default="Cancelled by the caller.", pattern=r"^[^\x00]+$")  # PostgreSQL stores no such text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndpoints:
    """Endpoints below `/runs`.

    Attributes:
        runs: The runs.
        access: Access of callers.
        roles: Roles of the messages that callers may send.
        heartbeat: Seconds between comments in a stream without events.
        max_wait: Seconds for which `POST /runs` waits for the end of a run, without streaming.
        bodies: Reader of bodies.
        draining: Ends streams and waits when the server shuts down.
    """

    runs: DurableRuns
    access: Access
    roles: frozenset[str]
    heartbeat: float
    max_wait: float
    bodies: BodyReader
    draining: Draining

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/runs", self._submit, methods=["POST"]),
            Route("/runs/{run_id}", self._status, methods=["GET"]),
            Route("/runs/{run_id}/events", self._events, methods=["GET"]),
            Route("/runs/{run_id}/approvals", self._decide, methods=["POST"]),
            Route("/runs/{run_id}/cancel", self._cancel, methods=["POST"]),
            Route("/runs/{run_id}/callback", self._call_back, methods=["POST"]),
        ]

    async def _submit(self, request: Request) -> Response:
        caller = await self.access.identity(request, "submit")
        body = await self.bodies.read(request, SubmitBody)
        after, stays = position(request), _stays(request)
        key = _idempotency_key(request)
        run_id, is_streamed = _run_id(caller, key), "text/event-stream" in request.headers.get("accept", "")
        reader = self.runs._expecting_reader(run_id)  # noqa: SLF001  (not public: the reader comes after the run)
        async with reader if is_streamed else nullcontext():
            await self.runs.submit(
                agent_named(body.agent, self.runs.agents),
                input_of(body, self.roles),
                identity=caller,
                conversation_id=_conversation_id(body) or caller.conversation_id,
                run_id=run_id,
                callback=body.callback_url,
                tags=tags_of(body),
            )
        headers = {"Location": f"{request.scope['path'].rstrip('/')}/{run_id}"}
        if is_streamed:
            return self._stream(request, run_id, after, headers, stays=stays)
        if "respond-async" not in request.headers.get("prefer", ""):
            with self.draining.interruptible(), anyio.move_on_after(self.max_wait):
                await self._paused(run_id)
                return JSONAnswer(state_json(await self.runs.status(run_id)), headers=headers)
        return JSONAnswer(state_json(await self.runs.status(run_id)), 202, headers=headers)

    async def _status(self, request: Request) -> Response:
        _, state = await self.access.run(request, self.runs, "read")
        return JSONAnswer(state_json(state))

    async def _events(self, request: Request) -> Response:
        _, state = await self.access.run(request, self.runs, "read")
        return self._stream(request, state.run_id, position(request), {}, stays=_stays(request))

    async def _decide(self, request: Request) -> Response:
        caller, state = await self.access.run(request, self.runs, "decide")
        body = await self.bodies.read(request, ApprovalsBody)
        decisions = body.all_decisions(caller.principal)
        if not decisions:
            raise Problem(400, "no decision; give `decisions`, or `content` with approval responses", path="decisions")
        settlements = await self.runs.decide(state.run_id, decisions)
        outcomes = [
            {"approvalId": decision.approval_id, "outcome": settlement.outcome}
            for decision, settlement in zip(decisions, settlements, strict=True)
        ]
        counted = {"settled", "duplicate"}
        status = 200 if all(settlement.outcome in counted for settlement in settlements) else 409
        is_old = any("arguments" in given.model_fields_set for given in body.decisions)
        return JSONAnswer({"approvals": outcomes}, status, headers=DEPRECATED if is_old else None)

    async def _cancel(self, request: Request) -> Response:
        _, state = await self.access.run(request, self.runs, "cancel")
        body = await self.bodies.read(request, CancelBody)
        cancellation = await self.runs.cancel(state.run_id, body.reason)
        status = {"cancelled": 200, "requested": 202, "ended": 409}.get(cancellation.outcome, 404)
        return JSONAnswer({"outcome": cancellation.outcome}, status)

    async def _call_back(self, request: Request) -> Response:
        _, state = await self.access.run(request, self.runs, "retry")
        if not await self.runs.retry_callback(state.run_id):
            raise Problem(409, "the run has no state that is to be delivered to a callback URL")
        return JSONAnswer({"status": "due"}, 202)

    def _stream(
        self, request: Request, run_id: str, after: int, headers: Mapping[str, str], *, stays: bool
    ) -> Response:
        events = EventStream(
            self.runs,
            run_id,
            heartbeat=self.heartbeat,
            stays=stays,
            draining=self.draining,
        )
        return events.response(after, headers, has_body=request.method != "HEAD")

    async def _paused(self, run_id: str) -> None:
        """Wait until a run has ended, or waits for approvals or results."""
        after = 0
        while True:
            page = await self.runs.event_page(run_id, after)
            after = page.events[-1].seq if page.events else after
            if page.is_over or page.status == "waiting":
                return
            if not page.has_more:
                await self.runs.wait_for_events(run_id, after, self.max_wait)


def _stays(request: Request) -> bool:
    """Return whether a stream stays open while the run waits."""
    text = request.query_params.get("wait", "false")
    if text not in ("true", "false"):
        raise Problem(400, "not true or false", path="wait")
    return text == "true"


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (key.strip() and is_storable(key)):
        raise Problem(400, f"not 1 to {MAX_ID} printable characters", path="Idempotency-Key")
    return key


def _conversation_id(body: SubmitBody) -> str | None:
    """Return the conversation of a body.

    Raises:
        Problem: 400, no path can name it.
    """
    if body.conversation_id is not None and not is_storable(body.conversation_id):
        raise Problem(400, f"not up to {MAX_ID} printable characters", path="conversationId")
    return body.conversation_id


def _run_id(caller: Identity, key: str | None) -> str:
    """Return the id of a new run, the same for the same caller and idempotency key."""
    if key is None:
        return uuid.uuid4().hex
    return uuid.uuid5(uuid.NAMESPACE_OID, repr((caller.tenant, caller.principal, key))).hex
