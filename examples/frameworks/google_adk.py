"""Google ADK: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' "google-adk[mcp]" mcp-server-time`,
run with `python google_adk.py [URL of another MCP server]`.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from google.genai import types
from mcp import StdioServerParameters

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1


class ScriptedModel(BaseLlm):
    """A model that calls the tools first."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer."""
        if len(llm_request.contents) > 1:
            parts = [types.Part.from_text(text="It is late.")]
        else:
            parts = [types.Part.from_function_call(name="get_current_time", args={"timezone": "Asia/Tokyo"})]
            if "search" in llm_request.tools_dict:
                parts.append(types.Part.from_function_call(name="search", args={"text": "rooms"}))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    clock = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server_time"])
    toolsets = [McpToolset(connection_params=StdioConnectionParams(server_params=clock, timeout=60))]
    if url is not None:
        toolsets.append(McpToolset(connection_params=StreamableHTTPConnectionParams(url=url, timeout=60)))
    agent = LlmAgent(name="rooms", model=ScriptedModel(model="scripted"), tools=toolsets)
    async with InMemoryRunner(agent, app_name="rooms") as runner:
        await runner.session_service.create_session(app_name="rooms", user_id="ann", session_id="1")
        question = types.Content(role="user", parts=[types.Part.from_text(text="What time is it in Tokyo?")])
        async for event in runner.run_async(user_id="ann", session_id="1", new_message=question):
            if event.is_final_response() and event.content:
                print(event.content.parts[0].text)


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
