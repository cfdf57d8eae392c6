"""Parts that all applications of the server have: probes, metrics, their document, and the answers to errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.server.answers import JSONAnswer
from pellucid.server.draining import Draining
from pellucid.server.problems import HANDLERS, unavailable
from pellucid.server.telemetry import ServerTelemetry
from pellucid.telemetry import Pipeline

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY: Final = 1024 * 1024
"""Bytes of a request's body, by default."""

READY_TIMEOUT: Final = 2.0
"""Seconds in which the store must answer `/readyz`; probes do not wait for longer."""


def assemble(
    routes: Sequence[Route],
    *,
    check: Callable[[], Awaitable[None]],
    description: Mapping[str, Any],
    draining: Draining,
    guard: Sequence[Middleware],
    metrics: ASGIApp | None,
    telemetry: Pipeline | None,
) -> Starlette:
    """Return an application.

    Args:
        routes: Its own routes.
        check: Raises, or does not return in time, if it is not ready.
        description: Its OpenAPI document.
        draining: The drain that `app.state.drain()` starts.
        guard: Middleware against web pages.
        metrics: Application to serve at `/metrics`.
        telemetry: Destination of the span and the metric of each request.
    """

    async def ready(_request: Request) -> Response:
        is_ready = False
        with anyio.move_on_after(READY_TIMEOUT):
            await check()
            is_ready = True
        if draining.is_active or not is_ready:
            raise unavailable()
        return JSONAnswer({"status": "ready"})

    def describe(request: Request) -> Response:
        return JSONAnswer({**description, "servers": [{"url": request.scope.get("root_path") or "/"}]})

    routes = [
        *routes,
        Route("/openapi.json", describe, methods=["GET"]),
        Route("/healthz", _healthy, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
    ]
    if metrics is not None:
        routes.append(Route("/metrics", _Application(metrics), methods=["GET"]))
    measured = Middleware(ServerTelemetry, routes=routes, telemetry=telemetry)
    app = Starlette(routes=routes, exception_handlers=HANDLERS, middleware=[measured, *guard])
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
