"""Alerts on tool servers, tried minute by minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.promtool import HERE, Make, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.prometheus

SERVER = 'pellucid_mcp_server_name="tools"'
TOOL = 'mcp_method_name="tools/call",gen_ai_tool_name="stock"'
LABELS = {"job": "shop", "pellucid_mcp_server_name": "tools"}
OF_TOOL = {**LABELS, "mcp_method_name": "tools/call", "gen_ai_tool_name": "stock"}

Values = dict[str, "Sequence[float | None]"]


def served(values: Sequence[float | None], error: str = "", subject: str = TOOL) -> Values:
    """Return the requests that ended, with an error or without."""
    word = f',error_type="{error}"' if error else ""
    return {f"mcp_server_operation_duration_seconds_count{{{HERE},{SERVER},{subject}{word}}}": values}


def over(values: Sequence[float | None]) -> Values:
    """Return those that were over the objective."""
    return {f"pellucid_mcp_server_over_objective_total{{{HERE},{SERVER},{TOOL}}}": values}


def oldest(values: Sequence[float | None], objective: float | None) -> Values:
    """Return the age of the oldest request, and the objective."""
    age = {f"pellucid_mcp_server_inflight_age_seconds{{{HERE},{SERVER},{TOOL}}}": values}
    if objective is None:
        return age
    return {**age, f"pellucid_mcp_server_objective_seconds{{{HERE},{SERVER}}}": level((objective, len(values)))}


@pytest.mark.parametrize(("each", "fires"), [(4.9, False), (5.1, True)], ids=["below", "above"])
def test_slow(trial: Make, each: float, fires: bool) -> None:
    """More than a twentieth of the requests is over the objective."""
    found = trial({**served(grow((100, 40))), **over(grow((each, 40)))})
    found.firing(30, "ToolServerSlow", *([{**LABELS, "severity": "ticket"}] if fires else []))
    found.run()


def test_few_slow_requests_tell_nobody(trial: Make) -> None:
    """One in a minute, all late, are ten in 10 min."""
    found = trial({**served(grow((1, 40))), **over(grow((1, 40)))})
    found.firing(30, "ToolServerSlow")
    found.run()


@pytest.mark.parametrize(
    ("error", "each", "fires"),
    [("tool_error", 19.9, False), ("tool_error", 20.1, True), ("cancelled", 50, False), ("-32602", 50, False)],
)
def test_failing(trial: Make, error: str, each: float, fires: bool) -> None:
    """More than a fifth fails; what clients cancel, or make wrong, is no failure."""
    found = trial({**served(grow((100 - each, 40))), **served(grow((each, 40)), error)})
    found.firing(30, "ToolServerFailing", *([{**LABELS, "severity": "page"}] if fires else []))
    found.run()


def test_streams_and_notifications_are_no_requests(trial: Make) -> None:
    """However many there are, they do not hide failures."""
    many = served(grow((1000, 40)), subject='mcp_method_name="notifications/progress"')
    found = trial({**many, **served(late(10, level((5, 30))), "tool_error")})
    found.firing(14, "ToolServerFailing", {**LABELS, "severity": "page"})
    found.run()


@pytest.mark.parametrize(
    ("age", "objective", "fires"),
    [(59, None, False), (61, None, True), (61, 0.5, True), (299, 30.0, False), (301, 30.0, True)],
)
def test_hanging(trial: Make, age: float, objective: float | None, fires: bool) -> None:
    """For more than a minute, and more than ten times the objective; the alert names the tool."""
    found = trial(oldest(level((age, 20)), objective))
    found.firing(15, "ToolServerHanging", *([{**OF_TOOL, "severity": "page"}] if fires else []))
    found.run()
