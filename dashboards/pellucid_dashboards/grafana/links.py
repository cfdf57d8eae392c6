"""Links from a dashboard to its traces and to other dashboards."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

JAEGER: Final = "jaeger"
"""Uid of the data source of traces."""
TAG: Final = "pellucid"
TRACED: Final = "traced"
"""Variable with the name of the service in Jaeger."""


def traces_url(operation: str) -> str:
    """Return the URL that searches Jaeger for spans of an operation, within the dashboard's time range.

    Args:
        operation: Name of the spans; Grafana fills in `${...}`.
    """
    query = {"refId": "A", "queryType": "search", "service": f"${{{TRACED}}}", "operation": operation, "limit": 50}
    pane = {"datasource": JAEGER, "queries": [query], "range": {"from": "${__from}", "to": "${__to}"}}
    panes = json.dumps({"traces": pane}, separators=(",", ":"))
    return f"/explore?schemaVersion=1&orgId=${{__org.id}}&panes={quote(panes, safe='${}')}"


def traces_link(operation: str, title: str = "Traces in Jaeger") -> dict[str, object]:
    """Return a data link to the traces of an operation."""
    return {"title": title, "url": traces_url(operation), "targetBlank": True}


def dashboard_link(title: str, uid: str) -> dict[str, object]:
    """Return a data link to another dashboard, with the variables and time range of this one."""
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}", "targetBlank": False}


def siblings() -> DashboardLink:
    """Return links to all dashboards of Pellucid, with the variables and time range of this one."""
    return (
        DashboardLink("Pellucid")
        .type(DashboardLinkType.DASHBOARDS)
        .icon("external link")
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )
