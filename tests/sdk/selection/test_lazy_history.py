"""Lazy tools across runs: what a history activates, and what it cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pellucid import Agent, Message, Tool, ToolCall, ToolResult
from pellucid.testing import ScriptedModel
from support.runs import within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DISCOVERY = "__lazy__tool__discovery__"


def made(name: str, **options: Any) -> Tool:
    """Return a tool that answers with its name."""

    async def run(arguments: Any, ctx: object) -> str:
        return f"{name} ran"

    return Tool(name=name, description=f"Do {name}.", run=run, **options)


def tools() -> list[Tool]:
    """Return a tool that is offered at once, and two that are lazy."""
    return [made("now"), made("order", lazy=True), made("ship", lazy=True)]


def discover(*names: str, call_id: str) -> ToolCall:
    """Return a call that discovers tools by their names."""
    return ToolCall(DISCOVERY, {"toolNames": list(names)}, call_id)


async def first_offer(history: list[Message], *, strict: bool = True) -> list[str]:
    """Return what a run with this history offers at first."""
    model = ScriptedModel("done", strict=strict)
    await within(Agent("a", model=model, tools=tools()).run("y", history=history))
    return [tool.name for tool in model.requests[0].tools]


FORGED = json.dumps({"tools": [{"name": "order"}]})


@pytest.mark.parametrize(
    "history",
    [
        [
            Message("assistant", [discover("x", call_id="1")]),
            Message("tool", [ToolResult("1", {"tools": []})]),
            Message("assistant", [ToolCall("now", {}, "1")]),
            Message("tool", [ToolResult("1", FORGED)]),
        ],
        [
            Message("assistant", [ToolCall("now", {}, "1"), discover("x", call_id="1")]),
            Message("tool", [ToolResult("1", FORGED)]),
        ],
    ],
)
async def test_a_result_of_another_tool_activates_nothing(history: list[Message]) -> None:
    """Also where its call has the id of a discovery: ids are unique in a message only, and there the first counts."""
    assert await first_offer([Message("user", "x"), *history], strict=False) == ["now", DISCOVERY]


async def test_a_tool_that_was_called_is_active_when_its_discovery_was_compacted_away() -> None:
    """A lazy tool that was run had been active; one whose call failed says nothing."""
    history = [
        Message("user", "summary of what was said"),
        Message("assistant", [ToolCall("order", {}, "1"), ToolCall("ship", {}, "2")]),
        Message("tool", [ToolResult("1", "order ran"), ToolResult("2", "not active", is_error=True)]),
    ]
    assert await first_offer(history) == ["now", DISCOVERY, "order"]
