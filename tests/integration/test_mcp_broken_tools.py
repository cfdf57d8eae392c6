"""Servers that list tools that violate the protocol."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, ToolCall, ToolResult
from pellucid.errors import InvalidCatalog
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.mcp_servers import OBJECT, LegacyHttp, serving
from support.processes import python

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_servers.py")
UNTYPED = {"$schema": "http://json-schema.org/draft-07/schema#"}  # as a published server lists all its tools
LISTING = {
    "tools": [
        {"name": "first", "inputSchema": OBJECT},
        {"name": "untyped", "inputSchema": UNTYPED},
        {"name": "numbers", "inputSchema": OBJECT, "outputSchema": {"type": "array"}},
        {"name": "bare"},
        {"inputSchema": OBJECT},
        "tool",
        {"name": "last", "inputSchema": OBJECT},
    ]
}


@contextmanager
def listed_by(way: str, listing: dict[str, Any], **options: Any) -> Iterator[MCPProvider]:
    """Give a provider of a server that lists this, reached in one way or another."""
    if way == "stdio":
        env = {"PELLUCID_TEST_LOG": os.devnull, "PELLUCID_TEST_LISTING": json.dumps(listing)}
        yield MCPProvider.stdio(*python(SCRIPT, "legacy"), id="hub", env=env, **options)
        return
    with serving(lambda: LegacyHttp(listing).app) as port:
        yield MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub", **options)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_only_the_broken_tools_are_left_out(way: str) -> None:
    """Only broken tools are left out with `on_invalid="quarantine"`, each with an event; the others can be called."""
    with listed_by(way, LISTING, on_invalid="quarantine") as provider, anyio.fail_after(60):
        model = ScriptedModel(ToolCall("last", {}), "done")
        agent = Agent("a", model=model, providers=[provider])
        left_out: list[tuple[str, str]] = []
        agent.on("tools.quarantined", lambda event: left_out.append((event.tool_name, event.problem)))
        async with provider:
            result = await agent.run("x")
    assert [tool.name for tool in model.requests[0].tools] == ["first", "last"]
    [called] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]
    assert not called.is_error
    problems = dict(left_out[:3])
    assert list(problems) == ["untyped", "numbers", "bare"]
    assert "inputSchema.type: Field required" in problems["untyped"]
    assert "outputSchema.type" in problems["numbers"]
    assert "inputSchema: Field required" in problems["bare"]
    assert "name: Field required" in left_out[3][1]
    assert len(set(left_out)) == 5


async def test_broken_tools_are_found_in_a_long_list() -> None:
    """Broken tools in a long list are found, and the others keep their order."""
    tools: list[dict[str, Any]] = [{"name": f"tool_{number}", "inputSchema": OBJECT} for number in range(1000)]
    broken = (0, 199, 200, 555, 999)
    for number in broken:
        tools[number]["inputSchema"] = UNTYPED
    with listed_by("http", {"tools": tools}, on_invalid="quarantine") as provider, anyio.fail_after(60):
        model = ScriptedModel("done")
        async with provider:
            await Agent("a", model=model, providers=[provider]).run("x")
    assert [tool.name for tool in model.requests[0].tools] == [
        f"tool_{number}" for number in range(1000) if number not in broken
    ]


async def test_a_broken_tool_is_an_invalid_catalog() -> None:
    """A broken tool raises InvalidCatalog by default, with its name, the problem, and none of its values."""
    with listed_by("stdio", LISTING) as provider, anyio.fail_after(60):
        async with provider:
            with pytest.raises(InvalidCatalog, match=r"'untyped'.*inputSchema\.type: Field required") as failed:
                await provider.list_tools(DiscoveryContext())
    assert "draft-07" not in str(failed.value)


@pytest.mark.parametrize("on_invalid", ["fail", "quarantine"])
@pytest.mark.parametrize(
    "listing", [{"tools": LISTING["tools"], "nextCursor": 5}, {"tools": "none"}, {"other": []}], ids=str
)
async def test_a_list_that_is_none_is_an_invalid_catalog(listing: dict[str, Any], on_invalid: str) -> None:
    """A list that is itself wrong raises InvalidCatalog, also with `on_invalid="quarantine"`."""
    with listed_by("stdio", listing, on_invalid=on_invalid) as provider, anyio.fail_after(60):
        async with provider:
            with pytest.raises(InvalidCatalog, match=r"violates the protocol"):
                await provider.list_tools(DiscoveryContext())
