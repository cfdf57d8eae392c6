"""Strands: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' strands-agents mcp-server-time`,
run with `python strands_agent.py [URL of another MCP server]`.
"""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from strands import Agent
from strands.models import Model
from strands.tools.mcp import MCPClient

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1


class ScriptedModel(Model):
    """A model that calls the tools first."""

    def update_config(self, **model_config: Any) -> None:
        """Ignore settings."""

    def get_config(self) -> Any:
        """Return no settings."""
        return {"model_id": "scripted"}

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Refuse."""
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer."""
        yield {"messageStart": {"role": "assistant"}}
        if len(messages) > 1:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "It is late."}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        calls: dict[str, Any] = {"get_current_time": {"timezone": "Asia/Tokyo"}, "search": {"text": "rooms"}}
        for tool in tool_specs:
            if tool["name"] in calls:
                yield {"contentBlockStart": {"start": {"toolUse": {"name": tool["name"], "toolUseId": tool["name"]}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(calls[tool["name"]])}}}}
                yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    clock = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server_time"])
    clients = [MCPClient(lambda: stdio_client(clock))]
    if url is not None:
        clients.append(MCPClient(lambda: streamable_http_client(url)))
    agent = Agent(ScriptedModel(), name="rooms", tools=list(clients), callback_handler=None)
    try:
        print(agent("What time is it in Tokyo?"))
    finally:
        agent.cleanup()


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    main(*sys.argv[1:2])
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
