"""Limits of what MCP servers send over standard output."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, DiscoveryError, ToolContext, ToolError, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.processes import python
from support.runs import attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

SCRIPT = str(Path(__file__).parents[1] / "support" / "flooding_server.py")
LIMITS = {"max_listing_bytes": 2**20, "max_result_bytes": 2**21}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


def flooding(method: str, way: str, size: int, **limits: int) -> MCPProvider:
    """Return a provider of a server that answers a method with this."""
    options: Any = {**LIMITS, **limits}
    return MCPProvider.stdio(*python(SCRIPT, method, way, str(size)), id="hub", **options)


@pytest.mark.parametrize("size", [2**22, 2**30], ids=["4 MiB", "1 GiB"])
async def test_a_line_that_is_too_long_closes_the_connection(telemetry: Captured, size: int) -> None:
    """The listing fails with a type of its own; the server is stopped, whatever it still wants to write."""
    with anyio.fail_after(60):
        async with flooding("tools/list", "line", size) as provider:
            with pytest.raises(DiscoveryError, match=r"a message of the server has more than 2097152 bytes") as failed:
                await Agent("a", model=ScriptedModel("done"), providers=[provider]).run("x")
    assert (failed.value.error_type, failed.value.error_kind) == ("response_too_large", "invalid_response")
    assert "raise max_result_bytes" in str(failed.value)
    [span] = [span for span in telemetry.spans if span.name.startswith("discover_tools")]
    assert attributes(span)[semconv.ERROR_TYPE] == "response_too_large"


async def test_a_result_that_is_too_large_fails_its_call() -> None:
    """The next call opens another connection."""
    with anyio.fail_after(60):
        async with flooding("none", "line", 2**22) as provider:
            for _ in range(2):
                [tool] = await provider.list_tools(DiscoveryContext())
                with pytest.raises(ToolError, match=r"more than 2097152 bytes") as failed:
                    await tool.run({}, ToolContext())
                assert failed.value.error_type == "response_too_large"


async def test_a_greeting_that_is_too_large_fails_the_connection() -> None:
    """All that is no listing has the limit of a result."""
    with anyio.fail_after(60):
        with pytest.raises(DiscoveryError, match=r"cannot connect.*more than 2097152 bytes") as failed:
            async with flooding("initialize", "line", 2**22):
                pass
    assert failed.value.error_type == "response_too_large"


async def test_all_pages_of_a_listing_share_the_limit() -> None:
    """The session goes on: the server answered in time, and each page was short."""
    with anyio.fail_after(60):
        async with flooding("tools/list", "pages", 300_000) as provider:
            with pytest.raises(DiscoveryError, match=r"tools/list has more than 1048576 bytes") as failed:
                await provider.list_tools(DiscoveryContext())
    assert failed.value.error_type == "response_too_large"


async def test_what_is_below_the_limits_arrives() -> None:
    """A result of megabytes is one line, too."""
    with anyio.fail_after(60):
        async with flooding("none", "line", 2**23, max_result_bytes=2**24) as provider:
            [tool] = await provider.list_tools(DiscoveryContext())
            assert await tool.run({}, ToolContext()) == "y" * 2**23
