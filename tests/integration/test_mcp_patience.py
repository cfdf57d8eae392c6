"""Patience with an MCP server that takes long to start, beside one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import Agent, ToolCall, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import FunctionModel
from support.processes import python
from support.runs import attributes, ending

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_servers.py")
SLOW_START = """
import pathlib, runpy, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.argv = [sys.argv[2], "modern"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def round_trips(telemetry: Captured) -> list[ReadableSpan]:
    """Return the spans of round trips to the slow server in the background."""
    return [span for span in telemetry.find("discover_tools slow") if semconv.RUN_ID not in attributes(span)]


def slow_server(started: Path, **options: Any) -> MCPProvider:
    """Return a server that starts when a file is there."""
    return MCPProvider.stdio(*python("-c", SLOW_START, str(started), SCRIPT), id="slow", prefix=True, **options)


async def test_a_server_that_is_slow_to_start_joins_later(telemetry: Captured, tmp_path: Path) -> None:
    """The model calls a tool of the fast server first; the slow one's tools are there in the next iteration and run."""
    offered: list[set[str]] = []

    async def answer(request: Any) -> Any:
        offered.append({definition.name.split("__")[1] for definition in request.tools})
        if any(message.tool_calls for message in request.messages):
            return "done"
        (tmp_path / "started").touch()
        while not round_trips(telemetry):
            await checkpoint()
        return ToolCall("mcp__fast__add", {"a": 1, "b": 2}, "call_1")

    fast = MCPProvider.stdio(*python(SCRIPT, "modern"), id="fast", prefix=True)
    slow = slow_server(tmp_path / "started", patience=0.2, objective=0.1, ttl=600.0)
    agent = Agent("a", model=FunctionModel(answer), providers=[fast, slow])
    with anyio.fail_after(90):
        first, second = await agent.run("x"), await agent.run("x")
        await slow.aclose()
        await fast.aclose()
    assert (first.degraded, second.degraded) == (("slow",), ())
    assert offered == [{"fast"}, {"fast", "slow"}, {"fast", "slow"}, {"fast", "slow"}]
    [round_trip] = round_trips(telemetry)
    assert attributes(round_trip)[semconv.MCP_METHOD_NAME] == "tools/list"
    assert telemetry.value(semconv.HUB_OVER_OBJECTIVE, pellucid_provider_id="slow") >= 1


async def test_closing_ends_a_server_that_is_still_starting(telemetry: Captured, tmp_path: Path) -> None:
    """The process is stopped, and the round trip was cancelled."""
    provider = slow_server(tmp_path / "never", patience=0)
    with anyio.fail_after(90):
        result = await Agent("a", model=FunctionModel(lambda _request: "done"), providers=[provider]).run("x")
        await provider.aclose()
        while not round_trips(telemetry):
            await checkpoint()
    assert result.degraded == ("slow",)
    assert ending(round_trips(telemetry)[0]) == ("cancelled", "UNSET", None)
