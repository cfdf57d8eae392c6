"""Older protocols: their features, and requests that servers may not make."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ToolCall, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.processes import python
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

SERVER = (str(Path(__file__).parents[1] / "support" / "mcp_servers.py"), "legacy")
PROTOCOLS = ("2025-11-25", "2025-06-18")
MESSAGE = {"role": "user", "content": {"type": "text", "text": "hi"}}
NOT_ANSWERED = {
    "sampling/createMessage": {"messages": [MESSAGE], "maxTokens": 5},
    "roots/list": {},
    "tasks/get": {"taskId": "1"},
}
"""Requests of servers that nobody answers, with their parameters."""


def clerk(tmp_path: Path, protocol: str, call: ToolCall, elicitation: Any = None) -> Agent[Any, Any]:
    """Return an agent that makes a call to a server of a protocol."""
    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log"), "PELLUCID_TEST_PROTOCOL": protocol}
    provider = MCPProvider.stdio(*python(*SERVER), id="old", env=env, elicitation=elicitation)
    return Agent("clerk", model=ScriptedModel(call, "Done."), providers=[provider])


async def answer_to(agent: Agent[Any, Any]) -> Any:
    """Return the result of the call."""
    async with agent:
        done = await within(agent.run("Go."))
    [result] = [part for message in done.messages for part in message.tool_results]
    assert not result.is_error
    return result.response


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", NOT_ANSWERED)
async def test_what_a_server_may_not_ask_for(tmp_path: Path, protocol: str, method: str) -> None:
    """A server that asks for something it may not ask for gets an error, and the call goes on."""
    call = ToolCall("ask", {"method": method, "params": NOT_ANSWERED[method]}, "c1")
    refusal = json.loads(await answer_to(clerk(tmp_path, protocol, call, lambda _: None)))
    assert refusal["code"] in (-32600, -32601)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("elicitation", [None, "pause"])
async def test_what_a_server_is_told(tmp_path: Path, protocol: str, elicitation: Any) -> None:
    """The client announces answers to questions if there are any, and nothing else, such as sampling or roots."""
    await answer_to(clerk(tmp_path, protocol, ToolCall("echo", {}, "c1"), elicitation))
    sent = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    [greeting] = [message["params"] for message in sent if message.get("method") == "initialize"]
    assert greeting["capabilities"] == ({} if elicitation is None else {"elicitation": {"form": {}, "url": {}}})
    methods = {message["method"] for message in sent if "method" in message}
    assert methods <= {"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_function_answers(tmp_path: Path, telemetry: Captured, protocol: str) -> None:
    """A function answers a form with each protocol, and the span names the protocol."""
    agent = clerk(tmp_path, protocol, ToolCall("ask", {}, "c1"), lambda _: {"size": "M"})
    assert json.loads(await answer_to(agent)) == {"action": "accept", "content": {"size": "M"}}
    assert attributes(telemetry.span("execute_tool ask"))[semconv.MCP_PROTOCOL_VERSION] == protocol


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_log_lines_of_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str) -> None:
    """Log lines of a server are ignored."""
    caplog.set_level(logging.DEBUG)
    assert await answer_to(clerk(tmp_path, protocol, ToolCall("log", {}, "c1"))) == "logged"
    assert "a line of the server" not in caplog.text
