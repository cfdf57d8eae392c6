"""pydantic-ai: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' "pydantic-ai-slim[mcp]" mcp-server-time`,
run with `python pydantic_ai_agent.py [URL of another MCP server]`.
"""

import asyncio
import sys

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1

Agent.instrument_all()  # its own spans


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tools first."""
    if len(messages) > 1:
        return ModelResponse([TextPart("It is late.")])
    names = {tool.name for tool in info.function_tools}
    calls = [ToolCallPart("get_current_time", {"timezone": "Asia/Tokyo"})]
    return ModelResponse(calls + ([ToolCallPart("search", {"text": "rooms"})] if "search" in names else []))


async def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    toolsets = [MCPToolset(StdioTransport(sys.executable, ["-m", "mcp_server_time"], keep_alive=False), id="clock")]
    if url is not None:
        toolsets.append(MCPToolset(url, id="catalogue"))
    agent = Agent(FunctionModel(answer), name="rooms", toolsets=toolsets)
    async with agent:
        print((await agent.run("What time is it in Tokyo?")).output)


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
