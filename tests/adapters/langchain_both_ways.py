"""LangChain with a provider of ours, and our agent with tools of theirs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import ToolException, tool

sys.path.insert(0, str(Path(__file__).parents[1]))
import pellucid
from adapters.shop import PNG, answered, calls_of, check, shop
from pellucid.adapters.langchain import from_langchain, langchain_tools
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture

CALLS = {"rooms": {"floor": 2}, "picture": {}, "broken": {}, "pay": {"amount": 3}}


class Scripted(GenericFakeChatModel):
    """A model that takes tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Return itself."""
        assert {one.name for one in tools} == set(CALLS)
        return self


async def theirs() -> None:
    """Their agent calls our tools; the one that needs an approval is refused."""
    with capture() as telemetry:
        hub, provider = shop()
        calls: list[Any] = [{"name": name, "args": given, "id": name} for name, given in CALLS.items()]
        model = Scripted(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
        agent = create_agent(model, tools=await langchain_tools(provider))
        done = await agent.ainvoke({"messages": [("user", "x")]})
        found = {message.name: message for message in done["messages"] if isinstance(message, ToolMessage)}
        assert json.loads(str(found["rooms"].content)) == {"count": 20}
        assert [block["type"] for block in found["picture"].content_blocks] == ["text", "image"]
        assert ("the disk is full" in str(found["broken"].content), found["broken"].status) == (True, "error")
        assert "a person must approve" in str(found["pay"].content)
        check(telemetry, hub, list(CALLS), listings=1)


async def any_arguments() -> None:
    """Arguments of our tools may be named as those of LangChain's methods."""
    names = ("config", "run_manager", "callbacks", "self")

    async def run(arguments: Any, _ctx: pellucid.ToolContext) -> Any:
        return arguments

    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    echo = pellucid.Tool(name="echo", description="Echo.", input_schema=schema, run=run)
    [converted] = await langchain_tools(pellucid.ToolRegistry([echo], id="registry"))
    given = dict.fromkeys(names, "x")
    assert json.loads(await converted.ainvoke(given)) == given


@tool
def count(floor: int) -> dict[str, int]:
    """Count the rooms."""
    return {"count": floor * 10}


@tool
def drawing(floor: int) -> list[dict[str, str]]:
    """Draw."""
    image = {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"}
    return [{"type": "text", "text": f"floor {floor}"}, image]


@tool
def refuse(floor: int) -> str:
    """Refuse."""
    raise ToolException("no such floor")


async def ours() -> None:
    """Our agent calls their tools."""
    refuse.handle_tool_error = True
    tools = [from_langchain(count, timeout=10), from_langchain(drawing), from_langchain(refuse)]
    agent = pellucid.Agent("a", model=ScriptedModel(calls_of("count", "drawing", "refuse"), "done"), tools=tools)
    with capture() as telemetry:
        run = await agent.run("x")
        results = answered([part for message in run.messages for part in message.parts])
        assert json.loads(str(results["count"].response)) == {"count": 20}, results
        assert (results["refuse"].response, results["refuse"].is_error) == ("no such floor", True)
        assert results["drawing"].response == (pellucid.TextPart("floor 2"), PNG)
        assert len(telemetry.find("execute_tool")) == 3


if __name__ == "__main__":
    asyncio.run(theirs())
    asyncio.run(any_arguments())
    asyncio.run(ours())
    print("ok")
