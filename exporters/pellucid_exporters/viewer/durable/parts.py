"""Parts that the pages of durable runs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid.durable import DurableRuns, RunStore
from pellucid.errors import StoreUnavailable
from pellucid_exporters.viewer.pages import render
from pellucid_exporters.viewer.sessions import Actions


@dataclass(frozen=True, slots=True)
class DurablePages:
    """Durable runs that the pages show.

    Attributes:
        store: Their store; it is open while the pages are served.
        runs: The runs.
        actions: Actions of readers; None if the pages are read-only.
        label: Address of the store, without a password.
    """

    store: RunStore
    runs: DurableRuns
    actions: Actions | None = None
    label: str = ""


def durable_of(request: Request) -> DurablePages:
    """Return the durable runs of the application."""
    pages: DurablePages = request.app.state.durable
    return pages


async def shown(request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Return a page; templates see with `csrf` whether its reader may act."""
    pages = durable_of(request)
    csrf = pages.actions.form_token(request) if pages.actions is not None else None
    signed_out = pages.actions is not None and csrf is None
    shared = {"csrf": csrf, "is_signed_out": signed_out, **values}
    return await run_in_threadpool(render, request, name, shared, status)


def unavailable(error: StoreUnavailable) -> HTTPException:
    """Return the problem of a store that does not answer."""
    return HTTPException(503, f"The store of durable runs does not answer: {error}.")
