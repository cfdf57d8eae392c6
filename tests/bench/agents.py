"""Agents of the workers that are measured: their models answer at once, so that only Pellucid and the database work."""

from __future__ import annotations

import random
from typing import Any, Final

from pellucid import Agent, ModelRequest, Tool, ToolCall, ToolContext
from pellucid.testing import FunctionModel


async def enqueue(arguments: Any, ctx: ToolContext) -> None:
    """Leave the work to another process."""


def ask_once(request: ModelRequest) -> Any:
    """Call the tool, then answer."""
    return "x" * 200 if len(request.messages) > 1 else ToolCall("ask", {"question": "x" * 200}, "c")


ASK = Tool(name="ask", run=enqueue, execution="external-dispatch", pending="wait", expires_in=86_400.0)
waits = Agent("waits", model=FunctionModel(ask_once), tools=[ASK])
"""Waits for one external call."""

_WORDS: Final = random.Random(1).choices([f"{number:x}" for number in range(4096, 65536)], k=5000)
"""Words that compress about as text does."""


def text(size: int, number: int = 0) -> str:
    """Return a text of so many characters."""
    return " ".join(_WORDS[number * 400 :])[:size]


async def look(arguments: Any, ctx: ToolContext) -> str:
    """Return a result of 1.5 kB."""
    return text(1500, len(arguments["question"]) % 7)


STEPS: Final = ("look", "look", "look", "ask")
"""Tools that the typical run calls, one in each iteration."""


def look_and_ask(request: ModelRequest) -> Any:
    """Call a tool three times, then leave work to another process, then answer."""
    number = sum(message.role == "tool" for message in request.messages)
    name = STEPS[number] if number < len(STEPS) else None
    return text(500, 9) if name is None else ToolCall(name, {"question": text(200 + number, number)}, f"c{number}")


typical = Agent("typical", model=FunctionModel(look_and_ask), tools=[ASK, Tool(name="look", run=look, idempotent=True)])
"""Four iterations with tool calls, of which the last waits for another process, and an answer."""

answers = Agent("answers", model=FunctionModel(lambda request: "x" * 200))
"""Answers: one pass with one step."""
