"""Cost of the instrumentation of an MCP server: CPU time of one request, beside the same request without it.

Client and server are in one process and pass messages without a transport, so that what is left is the work of both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from mcp import Client
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from opentelemetry.sdk.trace import SpanProcessor

from pellucid_exporters import Prometheus, configure
from pellucid_instrumentation import instrument_server, uninstrument_server

ROUNDS: Final = 20
REQUESTS: Final = 100
LISTED: Final = [Tool(name=f"tool_{number}", input_schema={"type": "object"}) for number in range(20)]


def served() -> Server:
    """Return a server that answers at once."""

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=LISTED)

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="3 hits")])

    return Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)


async def times(request: Callable[[], Awaitable[Any]]) -> list[float]:
    """Return the CPU times of requests, in microseconds."""
    found = []
    for _ in range(REQUESTS):
        start = time.process_time_ns()
        await request()
        found.append((time.process_time_ns() - start) / 1e3)
    return found


async def measure() -> None:
    """Measure requests with and without, in turn, and print the difference."""
    server = served()
    found: dict[tuple[str, bool], list[float]] = {}
    async with Client(server, cache=None) as client:
        requests: dict[str, Callable[[], Awaitable[Any]]] = {
            "tools/list": client.list_tools,
            "tools/call": lambda: client.call_tool("tool_1", {"a": "x"}),
        }
        for number in range(2 * ROUNDS):
            is_instrumented = number % 2 == 1
            (instrument_server if is_instrumented else uninstrument_server)(server)
            for name, request in requests.items():
                found.setdefault((name, is_instrumented), []).extend(await times(request))
    for name in requests:
        plain, instrumented = (statistics.median(found[name, mode]) for mode in (False, True))
        print(f"{name}: {plain:.0f} µs without; p50 added {instrumented - plain:.0f} µs")


def main() -> None:
    """Measure without and with telemetry, and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("without a pipeline:")
    anyio.run(measure)
    telemetry = configure("bench", prometheus=Prometheus(port=None))
    telemetry.tracer_provider.add_span_processor(SpanProcessor())
    print("with spans and metrics, beside the span that the SDK makes of its own:")
    anyio.run(measure)
    telemetry.shutdown()


if __name__ == "__main__":
    main()
