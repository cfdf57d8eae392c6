"""Links from a dashboard to the traces behind it, and to the other dashboards."""

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
"""The variable that holds the name under which Jaeger knows the service."""


def traces_url(operation: str) -> str:
    """Return the address that searches Jaeger for spans of an operation, within the time that the dashboard shows.

    Args:
        operation: The name of the spans; `${...}` in it is filled in by Grafana.
    """
    query = {"refId": "A", "queryType": "search", "service": f"${{{TRACED}}}", "operation": operation, "limit": 50}
    pane = {"datasource": JAEGER, "queries": [query], "range": {"from": "${__from}", "to": "${__to}"}}
    panes = json.dumps({"traces": pane}, separators=(",", ":"))
    return f"/explore?schemaVersion=1&orgId=${{__org.id}}&panes={quote(panes, safe='${}')}"


def traces_link(operation: str, title: str = "Traces in Jaeger") -> dict[str, object]:
    """Return a data link to the traces of an operation."""
    return {"title": title, "url": traces_url(operation), "targetBlank": True}


def dashboard_link(title: str, uid: str) -> dict[str, object]:
    """Return a data link to another dashboard, with the variables and the time of this one."""
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}", "targetBlank": False}


def siblings() -> DashboardLink:
    """Return links to all dashboards of Pellucid, with the variables and the time of this one."""
    return (
        DashboardLink("Pellucid")
        .type(DashboardLinkType.DASHBOARDS)
        .icon("external link")
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )
