"""Assembly of a dashboard: variables, links, annotations, and positions of panels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from grafana_foundation_sdk.builders.dashboard import AnnotationQuery, Dashboard, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, GridPos

from pellucid import semconv
from pellucid_dashboards.grafana.links import TAG, siblings
from pellucid_dashboards.grafana.queries import select
from pellucid_dashboards.grafana.variables import PROMETHEUS, variables
from pellucid_dashboards.names import label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pellucid_dashboards.grafana.panels import Panel

WIDTH: Final = 24
"""Columns of Grafana's grid."""
_SUBJECTS: Final = (
    semconv.PROVIDER_ID,
    semconv.TOOL_NAME,
    semconv.REQUEST_MODEL,
    semconv.AGENT_NAME,
    semconv.MCP_SERVER_NAME,
)
"""Subjects of alerts, which are the tags of their marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Row of panels of equal width.

    Attributes:
        height: Height in rows of Grafana's grid.
        title: Title of a Grafana row that starts here.
        repeat: Variable. The Grafana row and the shelves up to the next title are repeated for each of its values.
        closed: Whether the Grafana row is closed at first: its panels ask nothing until it is opened.
    """

    panels: Sequence[Panel]
    height: int = 8
    title: str = ""
    repeat: str = ""
    closed: bool = False


def assemble(
    uid: str,
    title: str,
    description: str,
    shelves: Sequence[Shelf],
    *,
    chosen_by: Sequence[str],
    alerts: Sequence[str],
) -> dict[str, Any]:
    """Return a dashboard in Grafana's import format.

    The variables are the data sources, `service` and those in `chosen_by`. Firing alerts that the matchers `alerts`
    select are marked on all panels.
    """
    board = Dashboard(title).uid(uid).description(description).tags([TAG]).editable().refresh("30s")
    board.time("now-1h", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR).version(1)
    for variable in variables(chosen_by):
        board.with_variable(variable)
    board.link(siblings()).annotation(_alert_annotation(*alerts))
    number = top = 0
    closed: Row | None = None
    for shelf in shelves:
        if shelf.title:
            number += 1
            row = Row(shelf.title).id(number).grid_pos(GridPos(x=0, y=top, w=WIDTH, h=1))
            board.with_row(row.repeat(shelf.repeat) if shelf.repeat else row)
            closed = row if shelf.closed else None
            top += 1
            below = top
        width = WIDTH // len(shelf.panels)
        for column, panel in enumerate(shelf.panels):
            number += 1
            place = GridPos(x=column * width, y=below if closed else top, w=width, h=shelf.height)
            (closed or board).with_panel(panel.id(number).grid_pos(place))
        if closed:
            below += shelf.height
        else:
            top += shelf.height
    found: dict[str, Any] = json.loads(JSONEncoder().encode(board.build()))
    _tidy(found)
    return found


def _alert_annotation(*where: str) -> AnnotationQuery:
    """Return an annotation that marks the time of firing alerts on all panels."""
    query = Dataquery().ref_id("alerts").expr(select("ALERTS", *where, 'alertstate="firing"')).range()
    return (
        AnnotationQuery()
        .name("Alerts")
        .datasource(PROMETHEUS)
        .enable(True)
        .icon_color("red")
        .target(query)
        .title_format("{{alertname}}")
        .text_format("{{job}} {{severity}}")
        .tag_keys(",".join(map(label, _SUBJECTS)))
        .step("30s")
    )


def _tidy(dashboard: dict[str, Any]) -> None:
    """Remove fields that the builders add and one of the schemas of Grafana 11 to 13 does not have."""
    for each in (*dashboard["annotations"]["list"], *dashboard["links"]):
        each.pop("placement", None)
    for variable in dashboard["templating"]["list"]:
        for name in ("auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    for panel in _panels(dashboard):
        if panel["type"] == "table":
            panel["options"].pop("footer", None)


def _panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels of a dashboard, also those in closed rows."""
    for panel in dashboard["panels"]:
        yield from (panel, *panel.get("panels", []))
