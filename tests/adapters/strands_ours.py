"""Strands with a provider of ours."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent
from strands.models import Model

from pellucid import BlobPart, static_tools, tool
from pellucid.adapters.strands import PellucidTools
from pellucid_exporters.testing import capture

sys.path.insert(0, str(Path(__file__).parents[1]))
from adapters.shop import check, rooms, shop

CALLS = {"rooms": {"floor": 2}, "picture": {}, "broken": {}, "pay": {"amount": 3}}


class Scripted(Model):
    """A model that calls every tool, then answers."""

    def update_config(self, **model_config: Any) -> None:
        """Ignore settings."""

    def get_config(self) -> Any:
        """Return no settings."""
        return {"model_id": "scripted"}

    def structured_output(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Refuse."""
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer."""
        yield {"messageStart": {"role": "assistant"}}
        if len(messages) > 1:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        assert {spec["name"] for spec in tool_specs} == set(CALLS)
        assert {spec["name"]: spec.get("outputSchema") for spec in tool_specs} == {
            **dict.fromkeys(CALLS),
            "rooms": {"json": rooms.output_schema},
        }
        for name, given in CALLS.items():
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def main() -> None:
    """Their agent calls our tools; the one that needs an approval is refused."""
    with capture() as telemetry:
        hub, provider = shop()
        agent = Agent(Scripted(), name="a", tools=[PellucidTools(provider)], callback_handler=None)
        agent("x")
        contents = [
            block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block
        ]
        found = {content["toolUseId"]: content for content in contents}
        assert found["rooms"]["content"] == [{"json": {"count": 20}}], found
        assert found["picture"]["content"][1]["image"]["source"]["bytes"] == b"hello"
        assert ("the disk is full" in str(found["broken"]), found["broken"]["status"]) == (True, "error")
        assert "a person must approve" in str(found["pay"])
        agent.cleanup()
        check(telemetry, hub, list(CALLS), listings=1)


@tool
def plan() -> BlobPart:
    """Return a picture that models do not take."""
    return BlobPart(content="aGVsbG8=", modality="image", mime_type="image/svg+xml")


async def other_pictures() -> None:
    """They are text: a model would refuse the conversation."""
    [ours] = await PellucidTools(static_tools([plan])).load_tools()
    [event] = [event async for event in ours.stream({"toolUseId": "x", "name": "plan", "input": {}}, {})]
    assert [list(block) for block in event.tool_result["content"]] == [["text"]]


if __name__ == "__main__":
    main()
    asyncio.run(other_pictures())
    print("ok")
