"""pydantic-ai with a provider of ours, and our agent with a toolset of theirs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, DeferredToolResults, FunctionToolset, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

sys.path.insert(0, str(Path(__file__).parents[1]))
import pellucid
from adapters.shop import answered, calls_of, check, shop
from pellucid.adapters.pydantic_ai import PellucidToolset, PydanticAIHub
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call every tool, then answer."""
    if len(messages) > 1:
        return ModelResponse([TextPart("done")])
    found = {tool.name: tool for tool in info.function_tools}
    assert found.keys() == {"rooms", "picture", "broken", "pay"}
    assert '"type": "integer"' in str(found["rooms"].description), found["rooms"]
    calls = {"rooms": {"floor": 2}, "picture": {}, "broken": {}, "pay": {"amount": 3}}
    return ModelResponse([ToolCallPart(name, arguments, name) for name, arguments in calls.items()])


async def theirs() -> None:
    """Their agent calls our tools, and a person approves one."""
    with capture() as telemetry:
        hub, provider = shop()
        agent = Agent(
            FunctionModel(model),
            toolsets=[PellucidToolset(provider).include_return_schemas()],
            output_type=[str, DeferredToolRequests],
        )
        paused = await agent.run("x")
        assert isinstance(paused.output, DeferredToolRequests), paused.output
        assert [call.tool_name for call in paused.output.approvals] == ["pay"]
        approved = DeferredToolResults(approvals={"pay": True})
        done = await agent.run(message_history=paused.all_messages(), deferred_tool_results=approved)
        parts = [part for message in done.all_messages() if isinstance(message, ModelRequest) for part in message.parts]
        returned = {part.tool_name: part for part in parts if isinstance(part, ToolReturnPart)}
        assert returned["rooms"].content == {"count": 20}
        assert returned["pay"].content == "paid 3"
        assert "the disk is full" in str(returned["broken"].content)
        [text, image] = returned["picture"].content
        assert (text, image.data) == ("a cat", b"hello")
        check(telemetry, hub, ["rooms", "picture", "broken", "pay"])


toolset: FunctionToolset[None] = FunctionToolset()


@toolset.tool_plain
def count(floor: int) -> dict[str, int]:
    """Count the rooms."""
    return {"count": floor * 10}


@toolset.tool_plain
def drawing(floor: int) -> BinaryContent:
    """Draw."""
    return BinaryContent(b"hello", media_type="image/png")


@toolset.tool_plain
def page(floor: int) -> list[Any]:
    """Return a text, data and a drawing, as servers of MCP do."""
    return ["hall", {"floor": floor}, drawing(floor)]


@toolset.tool_plain
def refuse(floor: int) -> str:
    """Refuse."""
    raise ModelRetry("no such floor")


@toolset.tool_plain(requires_approval=True)
def lock(floor: int) -> str:
    """Lock a floor."""
    return f"locked {floor}"


async def ours() -> None:
    """Our agent calls their tools."""
    with capture() as telemetry:
        provider = pellucid.DiscoveryProvider(PydanticAIHub(toolset), id="theirs", ttl=60)
        agent = pellucid.Agent(
            "a",
            model=ScriptedModel(calls_of("count", "drawing", "page", "refuse", "lock"), "done"),
            providers=[provider],
        )
        paused = await agent.run("x")
        assert [request.tool_name for request in paused.approvals] == ["lock"]
        assert paused.checkpoint is not None
        decision = pellucid.Decision(paused.approvals[0].approval_id, approved=True)
        run = await agent.resume(paused.checkpoint, decisions=[decision])
        results = answered([part for message in run.messages for part in message.parts])
        assert results["count"].response == {"count": 20}
        [image] = results["drawing"].response
        assert (image.content, image.modality) == ("aGVsbG8=", "image")
        hall, data, drawn = results["page"].response
        assert (hall.content, data.content, drawn) == ("hall", '{"floor":2}', image)
        assert (results["refuse"].response, results["refuse"].is_error) == ("no such floor", True)
        assert results["lock"].response == "locked 2"
        assert {span.name for span in telemetry.find("discover_tools")} == {"discover_tools theirs"}


if __name__ == "__main__":
    asyncio.run(theirs())
    asyncio.run(ours())
    print("ok")
