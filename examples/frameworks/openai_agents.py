"""openai-agents: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' openai-agents mcp-server-time`,
run with `python openai_agents.py [URL of another MCP server]`.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from agents.testing import ScriptedModel, assistant_message, function_call
from opentelemetry import trace

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1

set_tracing_disabled(True)  # its own traces go to OpenAI, and are not OpenTelemetry's


async def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    servers = [MCPServerStdio({"command": sys.executable, "args": ["-m", "mcp_server_time"]}, name="clock")]
    calls = [function_call("get_current_time", {"timezone": "Asia/Tokyo"}, call_id="1")]
    if url is not None:
        servers.append(MCPServerStreamableHttp({"url": url}, name="catalogue", client_session_timeout_seconds=60))
        calls.append(function_call("search", {"text": "rooms"}, call_id="2"))
    model = ScriptedModel([calls, [assistant_message("It is late.")]])
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        with trace.get_tracer("rooms").start_as_current_span(
            "invoke_agent rooms"
        ):  # the line that joins them to a trace
            result = await Runner.run(
                Agent(name="rooms", model=model, mcp_servers=servers), "What time is it in Tokyo?"
            )
        print(result.final_output)


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
