"""The ASGI application of durable runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.server.answers import JSONAnswer
from pellucid.server.bodies import BodyReader
from pellucid.server.callers import Authenticate, loopback_only
from pellucid.server.calls import CallEndpoints
from pellucid.server.draining import Draining
from pellucid.server.openapi import document
from pellucid.server.problems import HANDLERS, unavailable
from pellucid.server.runs import RunEndpoints
from pellucid.server.telemetry import ServerTelemetry
from pellucid.telemetry import Pipeline

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pellucid.durable_runs import CallTokens, DurableRuns

MAX_BODY: Final = 1024 * 1024
READY_TIMEOUT: Final = 2.0
"""Seconds in which the store must answer `/readyz`; probes do not wait for longer."""


def create_app(
    runs: DurableRuns,
    *,
    authenticate: Authenticate = loopback_only,
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
        tokens: Checker of the tokens of outside workers; without it there is no `/async-tools`. Give the same to
            `DurableRuns(completion=Completion(url, tokens))`.
        metrics: Application to serve at `/metrics`.
        max_body: Bytes of a request's body; a longer one is answered with 413.
        heartbeat: Seconds between comments in a stream without events.
        max_wait: Seconds for which `POST /runs` waits without streaming, before it answers 202.
        body_timeout: Seconds in which the body of a request must arrive; a later one is answered with 408.
        telemetry: Destination of the span and the metric of each request, as the option of an agent. There are none if
            the application has instrumentation of its own.
    """
    draining = Draining()
    bodies = BodyReader(max_body, body_timeout)
    endpoints = RunEndpoints(
        runs=runs,
        authenticate=authenticate,
        heartbeat=heartbeat,
        max_wait=max_wait,
        bodies=bodies,
        draining=draining,
    )

    async def ready(_request: Request) -> Response:
        is_reachable = False
        with anyio.move_on_after(READY_TIMEOUT):
            await runs.check()
            is_reachable = True
        if draining.is_active or not is_reachable:
            raise unavailable()
        return JSONAnswer({"status": "ready"})

    description = document(has_calls=tokens is not None, has_metrics=metrics is not None)

    def describe(request: Request) -> Response:
        return JSONAnswer({**description, "servers": [{"url": request.scope.get("root_path") or "/"}]})

    routes = [
        Route("/openapi.json", describe, methods=["GET"]),
        Route("/healthz", _healthy, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        *endpoints.routes(),
    ]
    if tokens is not None:
        routes += CallEndpoints(runs, tokens, bodies).routes()
    if metrics is not None:
        routes.append(Route("/metrics", _Application(metrics), methods=["GET"]))
    measured = Middleware(ServerTelemetry, routes=routes, telemetry=telemetry)
    app = Starlette(routes=routes, exception_handlers=HANDLERS, middleware=[measured])
    app.router.redirect_slashes = False  # a redirect would name the host that the client has sent
    app.state.drain = draining.start
    return app


class _Application:
    """An application at one path, which `Mount` would redirect to the path with a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _healthy(_request: Request) -> Response:
    return JSONAnswer({"status": "ok"})
