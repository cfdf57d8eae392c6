"""Keys by which other systems recognise a repeated call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Reliability, Tool, ToolCall
from pellucid.reliability import Rule, retry
from pellucid.testing import ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_a_call_keeps_its_key_when_it_is_retried() -> None:
    """Calls of one id in other iterations, in sub-agents and in other runs have other keys."""
    keys: list[str] = []

    async def work(arguments: Any, ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise OSError("again")
        return "done"

    call, tool = ToolCall("work", {}, "c"), Tool(name="work", run=work, idempotent=True)
    clerk = Agent("clerk", model=ScriptedModel(call, "x"), tools=[tool], description="Works.")
    again = Rule(when=lambda situation: situation.error is not None, then=retry(), kind="again")
    steps: list[Any] = [call, call, ToolCall("clerk", {"input": "?"}, "c"), "x", call, "y"]
    tools = [tool, clerk.as_tool()]
    agent = Agent("a", model=ScriptedModel(*steps, strict=False), tools=tools, reliability=Reliability([again]))
    await within(agent.run("go"))
    await within(agent.run("go"))
    assert len(keys) == 5
    assert keys[0] == keys[1]
    assert len({*keys}) == 4
