"""Helpers for tests of tool calls: tools, and a model that calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pellucid import Agent, Limits, Tool, ToolCall, ToolContext, ToolResult, tool
from pellucid.testing import ScriptedModel
from support.runs import results, within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


async def call(*calls: ToolCall, tools: Sequence[Any] = (), limits: Limits | None = None) -> list[ToolResult]:
    """Return the results of calls that a model makes in one message."""
    agent = Agent("a", model=ScriptedModel(list(calls), "done"), tools=tools, limits=limits or Limits())
    return results(await within(agent.run("x")))


def named(name: str, run: Callable[[Any, ToolContext], Any], **options: Any) -> Tool:
    """Return a tool without parameters."""
    return Tool(name=name, run=run, **options)


@tool
async def echo(text: str) -> str:
    """Repeat a text."""
    return text


@tool
async def measure(length: int) -> str:
    """Take a number."""
    return "x" * length
