"""`GET /conversations/{id}`: the runs of a conversation, with their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.durable import DurableRuns
from pellucid.durable.runs.conversations import MAX_PAGE
from pellucid.durable.states.bodies import conversation_json
from pellucid.server.access import Access
from pellucid.server.answers import JSONAnswer
from pellucid.server.event_stream import MAX_DIGITS
from pellucid.server.problems import Problem

PAGE: Final = 20
"""Runs of a page, unless `limit` is given."""


@dataclass(frozen=True, slots=True)
class ConversationEndpoints:
    """Endpoints below `/conversations`. Attributes: runs: The runs. access: Access of callers."""

    runs: DurableRuns
    access: Access

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/conversations/{conversation_id:path}", self._conversation, methods=["GET"])]

    async def _conversation(self, request: Request) -> Response:
        caller = await self.access.identity(request, "list")
        limit = _number(request, "limit")
        if limit is not None and not 1 <= limit <= MAX_PAGE:
            raise Problem(400, f"not 1 to {MAX_PAGE}", path="limit")
        conversation = await self.runs.conversation(
            request.path_params["conversation_id"],
            identity=caller,
            before=_number(request, "before"),
            limit=limit if limit is not None else PAGE,
        )
        return JSONAnswer(conversation_json(conversation))


def _number(request: Request, name: str) -> int | None:
    """Return a member of the query.

    Raises:
        Problem: 400, it is not a number.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise Problem(400, "not a number", path=name)
    return int(text)
