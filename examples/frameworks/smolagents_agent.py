"""smolagents: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' "smolagents[mcp]" "mcp<2" mcp-server-time`,
run with `python smolagents_agent.py [URL of another MCP server]`.
"""

import sys
from typing import Any

from mcp import StdioServerParameters
from opentelemetry import trace
from smolagents import ChatMessage, MCPClient, MessageRole, Model, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1


class ScriptedModel(Model):
    """A model that calls the tools first."""

    def generate(self, messages: Any, *args: Any, tools_to_call_from: Any = (), **kwargs: Any) -> ChatMessage:
        """Answer."""
        calls: dict[str, Any] = {"get_current_time": {"timezone": "Asia/Tokyo"}, "search": {"text": "rooms"}}
        if any(message.role == MessageRole.TOOL_RESPONSE for message in messages):
            calls = {"final_answer": {"answer": "It is late."}}
        found = [
            ChatMessageToolCall(ChatMessageToolCallFunction(calls[tool.name], tool.name), tool.name, "function")
            for tool in tools_to_call_from
            if tool.name in calls
        ]
        return ChatMessage(MessageRole.ASSISTANT, "", found)


def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    servers: list[Any] = [StdioServerParameters(command=sys.executable, args=["-m", "mcp_server_time"])]
    if url is not None:
        servers.append({"url": url, "transport": "streamable-http"})
    with trace.get_tracer("rooms").start_as_current_span("invoke_agent rooms"), MCPClient(servers) as tools:
        agent = ToolCallingAgent(tools, ScriptedModel(), verbosity_level=0)
        print(agent.run("What time is it in Tokyo?"))


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    main(*sys.argv[1:2])
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
