"""The ASGI application of durable runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pellucid.server.callers import Authenticate, loopback_only
from pellucid.server.calls import CallEndpoints
from pellucid.server.problems import HANDLERS
from pellucid.server.runs import RunEndpoints

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pellucid.durable_runs import CallTokens, DurableRuns

MAX_BODY: Final = 1024 * 1024


def create_app(
    runs: DurableRuns,
    *,
    authenticate: Authenticate = loopback_only,
    tokens: CallTokens | None = None,
    metrics: ASGIApp | None = None,
    max_body: int = MAX_BODY,
    heartbeat: float = 15.0,
    max_wait: float = 60.0,
) -> Starlette:
    """Return the application that serves runs over HTTP; run it by itself, or mount it in another one.

    It submits, reads and settles; a worker (`DurableRuns.work`) continues the runs, in this process or another.

    Args:
        runs: The runs, on an open store.
        authenticate: Returns the identity of a caller of `/runs`, or None to refuse. By default callers must be on this
            machine.
        tokens: Checker of the tokens of outside workers; without it there is no `/async-tools`. Give the same to
            `DurableRuns(completion=Completion(url, tokens))`.
        metrics: Application to serve at `/metrics`.
        max_body: Bytes of a request's body; a longer one is answered with 413.
        heartbeat: Seconds between comments in a stream without events.
        max_wait: Seconds for which `POST /runs` waits without streaming, before it answers 202.
    """
    endpoints = RunEndpoints(runs=runs, authenticate=authenticate, heartbeat=heartbeat, max_wait=max_wait)

    async def ready(_request: Request) -> Response:
        await runs.check()
        return JSONResponse({"status": "ready"})

    routes: list[BaseRoute] = [
        Route("/healthz", _healthy, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        *endpoints.routes(),
    ]
    if tokens is not None:
        routes += CallEndpoints(runs, tokens).routes()
    if metrics is not None:
        routes.append(Route("/metrics", _Application(metrics)))
    return Starlette(routes=routes, exception_handlers=HANDLERS, max_body_size=max_body)


class _Application:
    """An application at one path, which `Mount` would redirect to the path with a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _healthy(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})
