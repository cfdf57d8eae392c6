"""Cost of the instrumentation of an MCP client: CPU time of one request, beside the same request without it.

The server answers at once in the same task, so that what is left is the client and the instrumentation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from mcp import ClientSession
from opentelemetry.sdk.trace import SpanProcessor

from pellucid_exporters import Prometheus, configure
from pellucid_instrumentation import ObservedHub, instrument, uninstrument

TOOLS: Final = [
    {"name": f"tool_{number}", "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for number in range(20)
]
ANSWERS: Final[dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bench", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "3 hits"}]},
}
REQUESTS: Final = 500


class Server:
    """A dispatcher that answers at once."""

    async def run(self, *args: Any, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until the session ends."""
        task_status.started()
        await anyio.sleep_forever()

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> Any:
        """Answer."""
        return dict(ANSWERS[method])

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        """Receive nothing."""


async def cost(request: Callable[[], Awaitable[Any]], samples: int) -> float:
    """Return the median CPU time of a request, in microseconds."""
    found = []
    for _ in range(samples):
        start = time.process_time()
        for _ in range(REQUESTS):
            await request()
        found.append((time.process_time() - start) / REQUESTS * 1e6)
    return statistics.median(found)


async def measure(samples: int) -> dict[str, float]:
    """Return the cost of a listing and of a call."""
    async with ClientSession(dispatcher=Server()) as session:
        await session.initialize()
        await session.list_tools()
        listing = await cost(session.list_tools, samples)
        call = await cost(lambda: session.call_tool("tool_1", {"a": "x"}), samples)
    return {"tools/list": listing, "tools/call": call}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=15)
    options = parser.parse_args()
    plain = anyio.run(measure, options.samples)
    instrument({"*": ObservedHub("bench", objective=0.1)})
    silent = anyio.run(measure, options.samples)
    telemetry = configure("bench", prometheus=Prometheus(port=None))
    telemetry.tracer_provider.add_span_processor(SpanProcessor())
    every = anyio.run(measure, options.samples)
    uninstrument()
    telemetry.shutdown()
    for method, microseconds in plain.items():
        print(
            f"{method}: {microseconds:.0f} µs without; "
            f"more without providers {silent[method] - microseconds:.0f} µs, "
            f"with spans and metrics {every[method] - microseconds:.0f} µs"
        )


if __name__ == "__main__":
    main()
