"""The page of alerts: the shipped rules whose conditions hold, and those that a store cannot tell."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pellucid_exporters.stored.alerts import UNTOLD
from pellucid_exporters.viewer.pages import alerts_of, render


def alerts_page(request: Request) -> Response:
    """Show the alerts that fire now, pages first."""
    return render(request, "alerts.html", {"alerts": alerts_of(request), "untold": UNTOLD})
