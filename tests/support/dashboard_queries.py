"""The queries of a dashboard, and what Grafana puts into them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTED: Final = {"datasource": "prometheus", "traces": "jaeger", "provider": "docs|down", "traced": "shop"}
"""Values in the scenes of `support.dashboard_scenes`, of variables for which `All` is the list of them."""

_LABEL_VALUES: Final = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")
_QUERY_RESULT: Final = re.compile(r"query_result\((?P<expr>.+)\)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One query.

    Attributes:
        where: Dashboard, panel and query.
        label: Of a variable, whose values it lists.
        values: What variables are, if everything is chosen.
    """

    where: str
    expr: str
    legend: str = ""
    label: str = ""
    exemplar: bool = False
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.where

    def misspelt(self) -> Asked:
        """Return the query with a letter too many in the names of Pellucid's metrics."""
        return replace(self, expr=re.sub(r"\b(pellucid|gen|mcp)_(\w)", r"\1_x\2", self.expr))

    def filled_in(self, window: str = "1m") -> str:
        """Return the query with values for the variables."""
        seconds = int(window[:-1]) * {"s": 1, "m": 60, "h": 3600}[window[-1]]
        expr = self.expr.replace("$__rate_interval_ms", str(1000 * seconds)).replace("$__range_s", str(seconds))
        expr = expr.replace("$__rate_interval", window).replace("$__range", window)
        for name, value in self.values.items():
            expr = expr.replace(f"${name}", value)
        return expr


def real_panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that are no rows, also those in closed rows."""
    everywhere = (each for panel in board["panels"] for each in (panel, *panel.get("panels", [])))
    return [panel for panel in everywhere if panel["type"] != "row"]


def everything(board: dict[str, Any]) -> dict[str, str]:
    """Return what the variables of a dashboard are, if everything is chosen."""
    variables = board["templating"]["list"]
    return {each["name"]: each.get("allValue") or LISTED[each["name"]] for each in variables}


def panel_queries(board: dict[str, Any]) -> dict[str, list[Asked]]:
    """Return the queries of each panel."""
    return {
        panel["title"]: [
            Asked(
                f"{board['uid']}/{panel['title']}/{target['refId']}",
                target["expr"],
                target["legendFormat"] if panel["type"] != "table" else "",
                exemplar=target["exemplar"],
                values=everything(board),
            )
            for target in panel["targets"]
        ]
        for panel in real_panels(board)
    }


def queries(board: dict[str, Any]) -> list[Asked]:
    """Return the queries of all panels and annotations."""
    return [*(asked for found in panel_queries(board).values() for asked in found), *annotation_queries(board)]


def annotation_queries(board: dict[str, Any]) -> list[Asked]:
    """Return the queries of annotations."""
    return [
        Asked(f"{board['uid']}/{each['name']}", each["target"]["expr"], values=everything(board))
        for each in board["annotations"]["list"]
    ]


def variable_queries(board: dict[str, Any]) -> list[Asked]:
    """Return the queries of the variables: selectors with a `label`, and expressions without."""
    found = []
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        where, text = f"{board['uid']}/${variable['name']}", variable["query"]["query"]
        if match := _LABEL_VALUES.fullmatch(text):
            found.append(Asked(where, match["selector"], label=match["label"], values=everything(board)))
        else:
            match = _QUERY_RESULT.fullmatch(text)
            assert match, text
            found.append(Asked(where, match["expr"], values=everything(board)))
    return found
