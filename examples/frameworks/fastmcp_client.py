"""FastMCP: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' fastmcp mcp-server-time`,
run with `python fastmcp_client.py [URL of another MCP server]`.
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from opentelemetry import trace

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1


async def main(url: str | None = None) -> None:
    """Use a server over stdio, and another one over HTTP."""
    clock = StdioTransport(sys.executable, ["-m", "mcp_server_time"], keep_alive=False)
    with trace.get_tracer("rooms").start_as_current_span("rooms"):
        async with Client(clock) as client:
            await client.list_tools()
            print((await client.call_tool("get_current_time", {"timezone": "Asia/Tokyo"})).data)
        if url is not None:
            async with Client(url) as client:
                await client.list_tools()
                await client.call_tool("search", {"text": "rooms"})


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
