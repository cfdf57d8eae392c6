"""The pages as an ASGI application."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pellucid.errors import ConfigError
from pellucid.text import clean
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.viewer.alerts_page import alerts_page, runbook_page
from pellucid_exporters.viewer.compare_page import compare_page
from pellucid_exporters.viewer.hubs_page import bucket_exemplar, hub_page, hubs_page
from pellucid_exporters.viewer.pages import reader_of, render
from pellucid_exporters.viewer.run.elsewhere import run_of_trace
from pellucid_exporters.viewer.run.page import run_page
from pellucid_exporters.viewer.runs.page import runs_page
from pellucid_exporters.viewer.runs.saved import save_filter
from pellucid_exporters.viewer.security import HEADERS, Protection
from pellucid_exporters.viewer.span_page import media, raw_text, request_text, span_of_id, span_page
from pellucid_exporters.viewer.trends.calls_page import calls_page
from pellucid_exporters.viewer.trends.page import trends_page
from pellucid_exporters.viewer.trends.people_page import people_page

if TYPE_CHECKING:
    from pellucid_exporters.viewer.durable import DurablePages
    from pellucid_exporters.viewer.feedback import Feedback
    from pellucid_exporters.viewer.runs.saved import SavedFilters

STATIC: Final = Path(__file__).parent / "static"


def create_viewer_app(
    reader: Reader,
    *,
    label: str = "",
    jaeger: str | None = None,
    grafana: str | None = None,
    durable: DurablePages | None = None,
    feedback: Feedback | None = None,
    images: bool = False,
    filters: SavedFilters | None = None,
) -> Starlette:
    """Return an ASGI application that shows stored telemetry.

    It answers requests for `127.0.0.1`, `localhost` and `::1` only, and is read-only unless there are durable runs
    with actions, or feedback. Serve it on a loopback address.

    Args:
        reader: Reader of the store.
        label: Name of the store, at the bottom of each page.
        jaeger: URL of a Jaeger UI to which the pages link by trace id.
        grafana: URL of a Grafana with Pellucid's dashboards, to which the page of a run links.
        durable: Durable runs to show, too. Their store is opened in the lifespan of the application.
        feedback: Actions of readers on a run; none if it is None.
        images: Whether pages load images of other hosts that recorded messages name.
        filters: Filters of the list of runs that were saved; with feedback, readers save more.
    """
    forms = ["/durable/do/"] if durable is not None and durable.actions is not None else []
    forms += ["/do/"] if feedback is not None else []
    app = Starlette(
        routes=[
            Route("/", hubs_page),
            Route("/hub", hub_page),
            Route("/hub/span", bucket_exemplar),
            Route("/runs", runs_page),
            Route("/runs/{run_id}/", run_page),
            Route("/runs/{run_id}/span/{span_id}", span_of_id),
            Route("/runs/{run_id}/{sequence}", span_page),
            Route("/runs/{run_id}/{sequence}/request", request_text),
            Route("/runs/{run_id}/{sequence}/raw/{attribute}", raw_text),
            Route("/runs/{run_id}/{sequence}/media/{attribute}/{digest}", media),
            Route("/traces/{trace_id}", run_of_trace),
            Route("/conversations", people_page("conversation")),
            Route("/users", people_page("user")),
            Route("/tenants", people_page("tenant")),
            Route("/tools", calls_page("tool")),
            Route("/models", calls_page("model")),
            Route("/trends", trends_page),
            Route("/alerts", alerts_page),
            Route("/runbooks/{name}", runbook_page),
            Route("/compare", compare_page),
            Route("/changes", _changes),
            *(_routes(durable) if durable is not None else ()),
            *(_feedback_routes() if feedback is not None else ()),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Protection, forms=tuple(forms), images=images)],
        exception_handlers={HTTPException: _problem, ConfigError: _unreadable, Exception: _broken},
        lifespan=_opened,
    )
    app.state.reader, app.state.durable, app.state.feedback = reader, durable, feedback
    app.state.alerts, app.state.alerts_at = [], -math.inf
    app.state.label = label
    app.state.jaeger, app.state.grafana = jaeger, grafana
    app.state.images, app.state.filters = images, filters
    return app


def _routes(durable: DurablePages) -> list[Route]:
    from pellucid_exporters.viewer.durable import routes

    return routes(durable)


def _feedback_routes() -> list[Route]:
    from pellucid_exporters.viewer.feedback.routes import routes

    return [*routes(), Route("/do/filter", save_filter, methods=["POST"])]


@asynccontextmanager
async def _opened(app: Starlette) -> AsyncIterator[None]:
    """Open the store of durable runs, if there is one."""
    durable: DurablePages | None = app.state.durable
    async with durable.store if durable is not None else nullcontext():
        yield


def _changes(request: Request) -> JSONResponse:
    return JSONResponse({"changes": reader_of(request).changes()})


def _unreadable(request: Request, problem: Exception) -> Response:
    return PlainTextResponse(f"{clean(str(problem))}\n", 503)


def _broken(request: Request, problem: Exception) -> Response:
    """Return the answer to what nobody handles; it is made outside of `Protection`."""
    return PlainTextResponse("This page cannot be shown; the log of the server has the reason.\n", 500, HEADERS)


def _problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    try:
        return render(request, "problem.html", {"problem": problem}, status=problem.status_code)
    except ConfigError as error:
        return _unreadable(request, error)
