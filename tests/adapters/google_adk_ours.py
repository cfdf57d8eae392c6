"""Google ADK with a provider of ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from pellucid.adapters.google_adk import PellucidToolset
from pellucid_exporters.testing import capture

sys.path.insert(0, str(Path(__file__).parents[1]))
from adapters.shop import check, shop

CALLS: dict[str, dict[str, Any]] = {"rooms": {"floor": 2}, "picture": {}, "broken": {}, "pay": {"amount": 3}}
CONFIRM = "adk_request_confirmation"


class Scripted(BaseLlm):
    """A model that calls every tool, then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer."""
        assert set(llm_request.tools_dict) == set(CALLS)
        parts = [types.Part.from_text(text="done")]
        if len(llm_request.contents) == 1:
            parts = [types.Part.from_function_call(name=name, args=given) for name, given in CALLS.items()]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def main() -> None:
    """Their agent calls our tools, and a person confirms one."""
    with capture() as telemetry:
        hub, provider = shop()
        agent = LlmAgent(name="a", model=Scripted(model="scripted"), tools=[PellucidToolset(provider)])
        found: dict[str, Any] = {}
        confirmations: list[Any] = []
        async with InMemoryRunner(agent, app_name="a") as runner:
            await runner.session_service.create_session(app_name="a", user_id="ann", session_id="1")

            async def send(part: types.Part) -> None:
                message = types.Content(role="user", parts=[part])
                async for event in runner.run_async(user_id="ann", session_id="1", new_message=message):
                    for answer in event.get_function_responses():
                        found[answer.name] = answer.response
                    confirmations.extend(call for call in event.get_function_calls() if call.name == CONFIRM)

            await send(types.Part.from_text(text="x"))
            [confirmation] = confirmations
            answer = types.FunctionResponse(id=confirmation.id, name=CONFIRM, response={"confirmed": True})
            await send(types.Part(function_response=answer))
        assert found["rooms"]["structuredContent"] == {"count": 20}, found
        assert found["picture"]["content"][1]["data"] == "aGVsbG8="
        assert "the disk is full" in found["broken"]["error"]
        assert found["pay"]["content"] == [{"type": "text", "text": "paid 3"}]
        check(telemetry, hub, list(CALLS))


if __name__ == "__main__":
    asyncio.run(main())
    print("ok")
