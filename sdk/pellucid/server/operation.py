"""Endpoints for operators: list runs, retry one, look at a call and settle it without its token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.context import Identity
from pellucid.durable import DurableRuns, RunOverview, RunState
from pellucid.durable.states.bodies import call_json, overview_json
from pellucid.durable.store.overviews import MAX_LISTED, MAX_LOOKED_AT, STATUSES, Position, encoded, start_of
from pellucid.durable.store.values import is_storable
from pellucid.errors import ConfigError
from pellucid.server.access import Access
from pellucid.server.answers import JSONAnswer
from pellucid.server.bodies import Body, BodyReader
from pellucid.server.calls import settled_by
from pellucid.server.problems import Problem, unknown_run

PAGE: Final = 50
"""Runs of a page, unless `limit` is given."""
MAX_PAGE: Final = 200
MAX_AGE: Final = 1e9

_BATCH: Final = 250
_NOT_RETRIED: Final = {
    "open": "the run has neither ended nor waits for another attempt or for a version",
    "completed": "the run is completed; submit another one",
}


class RetryBody(Body):
    """Reason for a retry."""

    reason: str | None = Field(default=None, min_length=1, pattern=r"^[^\x00]*$")  # PostgreSQL stores no such text


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEndpoints:
    """Endpoints that show and mend runs. Attributes: runs: The runs. access: Of callers. bodies: Reader of bodies."""

    runs: DurableRuns
    access: Access
    bodies: BodyReader

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/runs", self._list, methods=["GET"]),
            Route("/runs/{run_id}/retry", self._retry, methods=["POST"]),
            Route("/calls/{result_id}", self._call, methods=["GET"]),
            Route("/calls/{result_id}", self._settle, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        caller = await self.access.lister(request)
        filters = filters_of(request.query_params.multi_items())
        limit, cursor = filters.pop("limit", PAGE), filters.pop("cursor", None)
        try:
            found, cursor = await self._visible(caller, filters, cursor, limit)
        except ConfigError as error:  # all else has been checked
            raise Problem(400, "not the cursor of a page", path="cursor") from error
        headers = {}
        if cursor is not None:
            others = [item for item in request.query_params.multi_items() if item[0] != "cursor"]
            headers["Link"] = f'<{request.url.path}?{urlencode([*others, ("cursor", cursor)])}>; rel="next"'
        return JSONAnswer({"runs": [overview_json(run) for run in found], "cursor": cursor}, headers=headers)

    async def _visible(
        self, caller: Identity, filters: Mapping[str, Any], cursor: str | None, limit: int
    ) -> tuple[list[RunOverview], str | None]:
        """Return runs that a caller may read, and where the next page starts.

        Whose a run is stands in its content, which no index has: each is looked at, up to a number.
        """
        found: list[RunOverview] = []
        begun = start_of(cursor)
        for _ in range(MAX_LOOKED_AT // _BATCH):
            page = await self.runs.list(**filters, cursor=cursor, limit=_BATCH)
            for run in page.runs:
                if await self.access.may_read(caller, _state_of(run)):
                    if len(found) == limit:
                        return found, encoded(Position(found[-1].created_at, found[-1].run_id))
                    found.append(run)
            cursor = page.cursor
            if cursor is None:
                return found, None
            if len(page.runs) < _BATCH:
                break
        # The last run that was looked at may be another one's, and its id is not for this caller: the next page starts
        # with all runs of the same time, which this one leaves out.
        last = start_of(cursor).created_at
        place = Position(math.nextafter(last, math.inf), "")
        if place.created_at >= begun.created_at:  # as many of one time: an id is shown rather than nothing
            return found, cursor
        return [run for run in found if run.created_at > last], encoded(place)

    async def _retry(self, request: Request) -> Response:
        _, state = await self.access.run(request, self.runs, "retry")
        body = await self.bodies.read(request, RetryBody)
        retry = await self.runs.retry(state.run_id, body.reason)
        if retry.outcome == "unknown":
            raise unknown_run()
        if retry.outcome != "due":
            raise Problem(409, _NOT_RETRIED[retry.outcome])
        return JSONAnswer({"outcome": retry.outcome}, 202)

    async def _call(self, request: Request) -> Response:
        call = await self.access.readable_call(request, self.runs, "read")
        return JSONAnswer({"runId": call.run_id, "kind": call.kind, **call_json(call)})

    async def _settle(self, request: Request) -> Response:
        call = await self.access.readable_call(request, self.runs, "settle")
        if call.kind == "approval":
            raise Problem(400, "this is an approval; decide about it with POST /runs/{id}/approvals")
        return await settled_by(request, self.runs, self.bodies, call.id, call.run_id)


def _state_of(run: RunOverview) -> RunState:
    """Return a run for `authorize`, without its content."""
    return RunState(
        run_id=run.run_id,
        agent=run.agent,
        status=run.status,
        passes=run.passes,
        identity=run.identity,
        created_at=run.created_at,
        updated_at=run.updated_at,
        due_at=run.due_at,
        worker=run.worker,
        lease_until=run.lease_until,
        attempts=run.attempts,
    )


def filters_of(items: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the filters of a query.

    Raises:
        Problem: 400, there is no such filter, it is given twice, or its value is not valid.
    """
    filters: dict[str, Any] = {}
    for name, text in items:
        if name not in _FILTERS:
            path = name if name.isidentifier() and len(name) < _LONG_NAME else "query"  # not what else may stand there
            raise Problem(400, f"no filter; give some of {', '.join(_FILTERS)}", path=path)
        argument, read = _FILTERS[name]
        if argument in filters:
            raise Problem(400, "given twice", path=name)
        try:
            filters[argument] = read(text)
        except ValueError as error:
            raise Problem(400, str(error), path=name) from None
    return filters


def _status(text: str) -> str:
    if text not in STATUSES:
        raise ValueError(f"not one of {', '.join(STATUSES)}")
    return text


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_AGE:
        raise ValueError("not a number of seconds")
    return number


def _limit(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < len(str(MAX_LISTED)) + 1 else 0
    if not 1 <= number <= MAX_PAGE:
        raise ValueError(f"not 1 to {MAX_PAGE}")
    return number


def _name(text: str) -> str:
    if not is_storable(text):
        raise ValueError("not up to 255 printable characters")
    return text


_LONG_NAME: Final = 40

_FILTERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "status": ("status", _status),
    "agent": ("agent", _name),
    "olderThan": ("older_than", _seconds),
    "worker": ("worker", _name),
    "key": ("key", _name),
    "text": ("text", _name),
    "cursor": ("cursor", str),
    "limit": ("limit", _limit),
}
"""Members of the query, the arguments of `DurableRuns.list` that they are, and what reads them."""
