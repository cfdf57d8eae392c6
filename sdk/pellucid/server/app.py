"""The ASGI application of durable runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.messages import Role
from pellucid.server.access import Access
from pellucid.server.assembly import MAX_BODY, assemble
from pellucid.server.bodies import BodyReader
from pellucid.server.callers import Authenticate, loopback_only
from pellucid.server.calls import CallEndpoints
from pellucid.server.conversations import ConversationEndpoints
from pellucid.server.draining import Draining
from pellucid.server.openapi import document
from pellucid.server.operation import OperatorEndpoints
from pellucid.server.pages import page_guard
from pellucid.server.rates import RequestRate
from pellucid.server.rights import Authorize, owner_only
from pellucid.server.runs import RunEndpoints
from pellucid.server.scores import ScoreEndpoints
from pellucid.telemetry import Pipeline

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from pellucid.durable import CallTokens, DurableRuns


def create_app(
    runs: DurableRuns,
    *,
    authenticate: Authenticate = loopback_only,
    authorize: Authorize = owner_only,
    rate: RequestRate | None = None,
    roles: Iterable[Role] = ("user",),
    origins: Iterable[str] = (),
    hosts: Iterable[str] | None = None,
    tokens: CallTokens | None = None,
    metrics: ASGIApp | None = None,
    max_body: int = MAX_BODY,
    heartbeat: float = 15.0,
    max_wait: float = 60.0,
    body_timeout: float = 30.0,
    telemetry: Pipeline | None = None,
) -> Starlette:
    """Return the application that serves runs over HTTP; run it by itself, or mount it in another one.

    It submits, reads and settles; a worker (`DurableRuns.work`) continues the runs, in this process or another.
    `app.state.drain()` ends open streams and waits, so that the server can shut down; clients reconnect elsewhere.

    Args:
        runs: The runs, on an open store.
        authenticate: Returns the identity of a caller of `/runs`, or None to refuse. By default callers must be on this
            machine.
        authorize: Returns whether a caller may do something with a run; by default its owner may.
        rate: Limit of the requests of each caller; there is none by default.
        roles: Roles of the messages that callers may send as `input`. With `assistant` or `tool`, they can say that
            tools or people have answered what they have not.
        origins: Origins whose web pages may send requests, such as `https://app.example.org`.
        hosts: Names under which the server answers, besides IP addresses; None for any name, or with `loopback_only`
            for those of this machine.
        tokens: Checker of the tokens of outside workers, and of tokens that score a run; without it there are neither.
            Give the same to `DurableRuns(completion=Completion(url, tokens))`.
        metrics: Application to serve at `/metrics`.
        max_body: Bytes of a request's body; a longer one is answered with 413.
        heartbeat: Seconds between comments in a stream without events.
        max_wait: Seconds for which `POST /runs` waits without streaming, before it answers 202.
        body_timeout: Seconds in which the body of a request must arrive; a later one is answered with 408.
        telemetry: Destination of scores, and of the span and the metric of each request, as the option of an agent.
            There are no spans and metrics if the application has instrumentation of its own.
    """
    access = Access(authenticate, authorize, rate)
    draining = Draining()
    bodies = BodyReader(max_body, body_timeout)
    endpoints = RunEndpoints(
        runs=runs,
        access=access,
        roles=frozenset(roles),
        heartbeat=heartbeat,
        max_wait=max_wait,
        bodies=bodies,
        draining=draining,
    )

    operators = OperatorEndpoints(runs=runs, access=access, bodies=bodies)
    # Routes are tried in this order, and calls are settled most often.
    routes = CallEndpoints(runs, tokens, bodies, access).routes() if tokens is not None else []
    scores = ScoreEndpoints(runs=runs, access=access, bodies=bodies, tokens=tokens, telemetry=telemetry)
    routes += [*endpoints.routes(), *operators.routes(), *ConversationEndpoints(runs, access).routes()]
    routes += scores.routes()
    return assemble(
        _by_path(routes),
        check=runs.check,
        description=document(has_calls=tokens is not None, has_metrics=metrics is not None),
        draining=draining,
        guard=page_guard(origins, hosts, is_local=authenticate is loopback_only),
        metrics=metrics,
        telemetry=telemetry,
    )


def _by_path(routes: Iterable[Route]) -> list[Route]:
    """Return one route for each path, so that `Allow` lists all of its methods."""
    paths: dict[str, list[Route]] = {}
    for route in routes:
        paths.setdefault(route.path, []).append(route)
    return [same[0] if len(same) == 1 else _merged(path, same) for path, same in paths.items()]


def _merged(path: str, routes: list[Route]) -> Route:
    by_method = {method: route.endpoint for route in routes for method in route.methods or ()}

    async def endpoint(request: Request) -> Response:
        return cast("Response", await by_method[request.method](request))

    return Route(path, endpoint, methods=list(by_method))
