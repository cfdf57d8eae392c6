"""openai-agents with a provider of ours."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

sys.path.insert(0, str(Path(__file__).parents[1]))
from adapters.shop import check, shop
from pellucid.adapters.openai_agents import PellucidServer
from pellucid_exporters.testing import capture

CALLS = {"rooms": {"floor": 2}, "picture": {}, "broken": {}, "pay": {"amount": 3}}


class Scripted(Model):
    """A model that calls every tool, then answers."""

    async def get_response(self, system_instructions: Any, input: Any, *more: Any, **options: Any) -> ModelResponse:  # noqa: A002
        """Answer."""
        output: list[Any] = [
            ResponseFunctionToolCall(call_id=name, name=name, arguments=json.dumps(given), type="function_call")
            for name, given in CALLS.items()
        ]
        if not isinstance(input, str) and len(input) > 1:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """Refuse."""
        raise NotImplementedError


async def main() -> None:
    """Their agent calls our tools, and a person approves one."""
    set_tracing_disabled(disabled=True)
    with capture() as telemetry:
        hub, provider = shop()
        agent = Agent(name="a", model=Scripted(), mcp_servers=[PellucidServer(provider)])
        paused = await Runner.run(agent, "x")
        assert [item.name for item in paused.interruptions] == ["pay"]
        state = paused.to_state()
        state.approve(paused.interruptions[0])
        done = await Runner.run(agent, state)
        outputs = {
            item["call_id"]: item["output"]
            for item in done.to_input_list()
            if item.get("type") == "function_call_output"
        }
        assert json.loads(text_of(outputs["rooms"])) == {"count": 20}, outputs
        assert "the disk is full" in str(outputs["broken"])
        assert "paid 3" in str(outputs["pay"])
        assert "a cat" in str(outputs["picture"])
        check(telemetry, hub, list(CALLS))


def text_of(output: Any) -> str:
    """Return the text of an output, whatever shape openai-agents gives it."""
    data = json.loads(output) if isinstance(output, str) else output
    data = data[0] if isinstance(data, list) else data
    return str(data.get("text", json.dumps(data)))


if __name__ == "__main__":
    asyncio.run(main())
    print("ok")
