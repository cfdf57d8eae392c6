"""Agents of the workers that are measured: their models answer at once, so that only Pellucid and the database work."""

from __future__ import annotations

from typing import Any

from pellucid import Agent, ModelRequest, Tool, ToolCall, ToolContext
from pellucid.testing import FunctionModel


async def enqueue(arguments: Any, ctx: ToolContext) -> None:
    """Leave the work to another process."""


def ask_once(request: ModelRequest) -> Any:
    """Call the tool, then answer."""
    return "x" * 200 if len(request.messages) > 1 else ToolCall("ask", {"question": "x" * 200}, "c")


ASK = Tool(name="ask", run=enqueue, execution="external-dispatch", pending="wait", deadline=86_400.0)
waits = Agent("waits", model=FunctionModel(ask_once), tools=[ASK])
"""Waits for one external call."""

answers = Agent("answers", model=FunctionModel(lambda request: "x" * 200))
"""Answers: one pass with one step."""
