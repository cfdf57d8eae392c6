"""Routes of the pages of durable runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route

from pellucid_exporters.viewer.durable.actions import Actions, answer, sign_in
from pellucid_exporters.viewer.durable.list_page import list_page
from pellucid_exporters.viewer.durable.run_page import run_page
from pellucid_exporters.viewer.durable.waiting_page import waiting_page

if TYPE_CHECKING:
    from pellucid.durable import DurableRuns, RunStore


@dataclass(frozen=True, slots=True)
class DurablePages:
    """Durable runs that the pages show.

    Attributes:
        store: Their store; it is open while the pages are served.
        runs: The runs.
        actions: What readers may do; None if the pages are read-only.
    """

    store: RunStore
    runs: DurableRuns
    actions: Actions | None = None

    def routes(self) -> list[Route]:
        """Return the routes; those of actions only if there are any."""
        pages = [
            Route("/durable", list_page),
            Route("/durable/waiting", waiting_page),
            Route("/durable/runs/{run_id:path}/", run_page),
        ]
        if self.actions is None:
            return pages
        return [
            *pages,
            Route("/durable/sign-in", sign_in),
            Route("/durable/do/{action}", answer, methods=["POST"]),
        ]
