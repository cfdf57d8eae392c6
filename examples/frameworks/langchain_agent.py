"""LangChain: its hubs, as Pellucid shows them. A scripted model stands for a real one.

Install with `pip install 'pellucid[instrumentation]' langchain langchain-mcp-adapters mcp-server-time`,
run with `python langchain_agent.py [URL of another MCP server]`.
"""

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from opentelemetry import trace

from pellucid_exporters import configure
from pellucid_exporters.console.hub_stats import HubStatsProcessor, hub_table
from pellucid_instrumentation import ObservedHub, instrument

OBJECTIVE = 0.1


class ScriptedModel(FakeMessagesListChatModel):
    """A model that answers what it is told to."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Take any tools."""
        return self


async def main(url: str | None = None) -> None:
    """Run an agent with a server over stdio, and another one over HTTP."""
    servers: dict[str, Any] = {
        "clock": {"transport": "stdio", "command": sys.executable, "args": ["-m", "mcp_server_time"]}
    }
    calls = [{"name": "get_current_time", "args": {"timezone": "Asia/Tokyo"}, "id": "1"}]
    if url is not None:
        servers["catalogue"] = {"transport": "http", "url": url}
        calls.append({"name": "search", "args": {"text": "rooms"}, "id": "2"})
    model = ScriptedModel(responses=[AIMessage("", tool_calls=calls), AIMessage("It is late.")])
    # The line that joins what an agent does to one trace.
    with trace.get_tracer("rooms").start_as_current_span("invoke_agent rooms"):
        agent = create_agent(model, await MultiServerMCPClient(servers).get_tools(), name="rooms")
        result = await agent.ainvoke({"messages": [("user", "What time is it in Tokyo?")]})
    print(result["messages"][-1].content)


if __name__ == "__main__":
    telemetry = configure("rooms")
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    instrument({"*": ObservedHub(objective=OBJECTIVE)})
    asyncio.run(main(*sys.argv[1:2]))
    objectives = {hub.provider_id: OBJECTIVE for hub in hubs.stats()}
    print(hub_table(hubs.stats(objectives)))
    telemetry.shutdown()
