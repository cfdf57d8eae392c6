"""Routes of the pages of durable runs."""

from __future__ import annotations

from starlette.routing import Route

from pellucid_exporters.viewer.durable.actions import answer, sign_in
from pellucid_exporters.viewer.durable.list_page import list_page
from pellucid_exporters.viewer.durable.parts import DurablePages
from pellucid_exporters.viewer.durable.run_page import run_page
from pellucid_exporters.viewer.durable.waiting_page import waiting_page


def routes(durable: DurablePages) -> list[Route]:
    """Return the routes; those of actions only if there are any."""
    pages = [
        Route("/durable", list_page),
        Route("/durable/waiting", waiting_page),
        Route("/durable/runs/{run_id:path}/", run_page),
    ]
    if durable.actions is None:
        return pages
    return [
        *pages,
        Route("/durable/sign-in", sign_in),
        Route("/durable/do/{action}", answer, methods=["POST"]),
    ]
