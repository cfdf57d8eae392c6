"""Links from a dashboard to its traces and to other dashboards."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

from pellucid_dashboards.explore import METRICS, TRACES, explore, in_jaeger

TAG: Final = "pellucid"


def traces_link(operation: str, title: str = "Traces in Jaeger") -> dict[str, object]:
    """Return a data link to the traces of an operation.

    Args:
        operation: Name of the spans; Grafana fills in `${...}`.
        title: Text of the link.
    """
    return {"title": title, "url": explore(TRACES, in_jaeger(operation)), "targetBlank": True}


def choice_link(title: str, uid: str, variable: str) -> dict[str, object]:
    """Return a data link to a dashboard where only the value of this cell is chosen."""
    kept = "&".join(f"${{{name}:queryparam}}" for name in ("service", METRICS, TRACES))
    url = f"/d/{uid}?${{__url_time_range}}&{kept}&var-{variable}=${{__value.raw}}"
    return {"title": title, "url": url, "targetBlank": False}


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
