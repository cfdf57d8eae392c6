"""Endpoints for feedback: score a run, as its caller or with a token that is bound to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.context import Identity
from pellucid.durable import CallTokens, DurableRuns, RunState
from pellucid.server.access import Access
from pellucid.server.answers import JSONAnswer
from pellucid.server.bodies import Body, BodyReader
from pellucid.server.callers import token_of
from pellucid.server.problems import Problem, unauthorized, unknown_run
from pellucid.server.score_tokens import PREFIX, ScoreGrant, digest_of, grant_of, issue
from pellucid.telemetry import Pipeline

MAX_WORD: Final = 128
"""Characters of a name or a label."""

MAX_EXPLANATION: Final = 4 * 1024
MAX_NAMES: Final = 8
"""Names of one token."""

CALLER: Final = "caller"
"""Name of the judge for callers without a principal."""

LIFETIME: Final = 7 * 86_400.0
MAX_LIFETIME: Final = 30 * 86_400.0
"""Seconds for which a token is valid, by default and at most."""

Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_WORD, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ScoreBody(Body):
    """A score: a `value` of at least 0, a `label`, or both. With a token, the value is 0 to 1."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"value": {"type": "number"}}, "required": ["value"]},
                {"properties": {"label": {"type": "string"}}, "required": ["label"]},
            ]
        }
    )

    name: Word
    value: float | None = Field(default=None, ge=0)
    label: Word | None = None
    explanation: str | None = Field(default=None, max_length=MAX_EXPLANATION)


class ScoreTokenBody(Body):
    """Names of the scores that a token allows, who judges, and its lifetime in seconds."""

    names: list[Word] = Field(default=["thumb"], min_length=1, max_length=MAX_NAMES)
    by: Word | None = None
    expires_in: float = Field(default=LIFETIME, gt=0, le=MAX_LIFETIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEndpoints:
    """Endpoints below `/runs/{run_id}/scores`.

    Attributes:
        runs: The runs.
        access: Access of callers.
        bodies: Reader of bodies.
        tokens: Keys of tokens; without them there are no tokens, and none is accepted.
        telemetry: Destination of scores.
    """

    runs: DurableRuns
    access: Access
    bodies: BodyReader
    tokens: CallTokens | None
    telemetry: Pipeline | None

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/runs/{run_id}/scores", self._score, methods=["POST"]),
            Route("/runs/{run_id}/scores/token", self._issue, methods=["POST"]),
        ]

    async def _score(self, request: Request) -> Response:
        token = token_of(request)
        if token.startswith(f"{PREFIX}."):
            return await self._score_once(request, token)
        caller, state = await self.access.run(request, self.runs, "score")
        body = _checked(await self.bodies.read(request, ScoreBody))
        self._record(_grant(state, caller, (body.name,), CALLER), body)
        return JSONAnswer({"status": "recorded"}, 202)

    async def _score_once(self, request: Request, token: str) -> Response:
        """Record the score of the holder of a token, which gives each name once."""
        grant = grant_of(self.tokens, token) if self.tokens is not None else None
        if grant is None or await self.runs.now() >= grant.expires_at:
            raise unauthorized()
        if grant.run_id != request.path_params["run_id"]:
            raise unknown_run()
        if self.access.rate is not None:
            self.access.rate.take(Identity(principal=f"score:{grant.run_id}"))
        body = _checked(await self.bodies.read(request, ScoreBody))
        if body.name not in grant.names:
            raise Problem(
                403, f"this token scores {', '.join(grant.names)} only; ask for one of other names", path="name"
            )
        if body.value is not None and body.value > 1:
            raise Problem(400, "with a token, a value is 0 to 1", path="value")
        score = body.model_dump()
        given = await self.runs.give_score(grant.run_id, digest_of(token), body.name, score)
        if given is None:
            self._record(grant, body)
            return JSONAnswer({"status": "recorded"}, 202)
        if given == score:
            return JSONAnswer({"status": "duplicate"})
        raise Problem(409, f"this token has given another score of the name {body.name}; a caller may correct it")

    async def _issue(self, request: Request) -> Response:
        """Return a token that scores a run."""
        caller, state = await self.access.run(request, self.runs, "score")
        if self.tokens is None:
            raise Problem(404, "this server has no keys to sign tokens with; set PELLUCID_CALL_KEYS on the server")
        body = await self.bodies.read(request, ScoreTokenBody)
        expires_at = int(await self.runs.now() + body.expires_in)
        grant = _grant(state, caller, tuple(body.names), body.by or "user", expires_at)
        answer = {"token": issue(self.tokens, grant), "names": body.names, "expiresAt": expires_at}
        return JSONAnswer(answer, headers={"Cache-Control": "no-store"})

    def _record(self, grant: ScoreGrant, body: ScoreBody) -> None:
        from pellucid.scores import Score, Scored
        from pellucid.scores.record import record

        score = Score(name=body.name, value=body.value, label=body.label, explanation=body.explanation, by=grant.by)
        scored = Scored(
            trace_id=grant.trace_id,
            span_id=grant.span_id,
            run_id="" if grant.trace_id else grant.run_id,  # each pass is a traced run with an id of its own
            agent=grant.agent,
            version=grant.version,
        )
        record(scored, score, self.telemetry)


def _checked(body: ScoreBody) -> ScoreBody:
    if body.value is None and body.label is None:
        raise Problem(400, "give a value of at least 0, a label, or both", path="value")
    return body


def _grant(state: RunState, caller: Identity, names: tuple[str, ...], by: str, expires_at: int = 0) -> ScoreGrant:
    """Return what a caller may give: scores of a run that has been traced.

    Raises:
        Problem: 409, it has not.
    """
    if state.trace_id is None and not state.is_over:
        raise Problem(409, "the run has not begun, so that there is nothing to score; wait for its answer")
    return ScoreGrant(
        run_id=state.run_id,
        trace_id=state.trace_id or "",
        span_id=(state.span_id or "") if state.trace_id else "",
        agent=state.agent,
        version=state.agent_version,
        names=names,
        by=(caller.principal or by)[:MAX_WORD] if by == CALLER else by,
        expires_at=expires_at,
    )
