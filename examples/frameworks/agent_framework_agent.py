"""Agent Framework: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' agent-framework-core mcp-server-time`,
run with `python agent_framework_agent.py [URL of another MCP server]`.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    MCPStdioTool,
    MCPStreamableHTTPTool,
    Message,
)
from agent_framework.observability import enable_instrumentation

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1

enable_instrumentation()  # its own spans


class ScriptedClient(FunctionInvocationLayer, BaseChatClient):
    """A model that calls the tools first."""

    OTEL_PROVIDER_NAME = "scripted"

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        async def answer() -> ChatResponse:
            if len(messages) > 1:
                return ChatResponse(messages=[Message(role="assistant", contents=[Content.from_text("It is late.")])])
            names = {tool.name for tool in options["tools"]}
            calls = [Content.from_function_call("1", "get_current_time", arguments={"timezone": "Asia/Tokyo"})]
            if "search" in names:
                calls.append(Content.from_function_call("2", "search", arguments={"text": "rooms"}))
            return ChatResponse(messages=[Message(role="assistant", contents=calls)])

        return answer()


async def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    tools: list[Any] = [MCPStdioTool("clock", sys.executable, args=["-m", "mcp_server_time"], load_prompts=False)]
    if url is not None:
        tools.append(MCPStreamableHTTPTool("catalogue", url, load_prompts=False))
    async with AsyncExitStack() as stack:
        for tool in tools:
            await stack.enter_async_context(tool)
        agent = Agent(ScriptedClient(), name="rooms", tools=tools)
        print((await agent.run("What time is it in Tokyo?")).text)


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
