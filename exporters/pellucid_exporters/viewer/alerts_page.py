"""The pages of alerts: the shipped rules whose conditions hold, those that a store cannot tell, and the runbooks."""

from __future__ import annotations

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid.errors import ConfigError
from pellucid_exporters.alerting import runbook_html
from pellucid_exporters.stored.alerts import UNTOLD
from pellucid_exporters.viewer.pages import alerts_of, render


def alerts_page(request: Request) -> Response:
    """Show the alerts that fire now, pages first."""
    return render(request, "alerts.html", {"alerts": alerts_of(request), "untold": UNTOLD})


def runbook_page(request: Request) -> Response:
    """Show what to do about an alert, with the labels in the query filled in.

    Raises:
        HTTPException: 404, there is no such runbook.
    """
    name = request.path_params["name"]
    try:
        body = Markup(runbook_html.body(name, request.query_params))  # noqa: S704  (escaped by the renderer)
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error
    return render(request, "runbook.html", {"name": name, "body": body})
