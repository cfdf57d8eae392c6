"""Checks of an instrumented MCP server of any framework: `python served.py` prints the results, or fails.

It runs below every version of the packages that `instrument_server()` accepts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from pellucid.semconv import servers
from pellucid_instrumentation import instrument_server, uninstrument_server

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OURS = "pellucid.mcp.server"


def installed(package: str) -> str | None:
    """Return the version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def make() -> Any:
    """Return a server of the framework that is installed, without tools."""
    if installed("fastmcp"):
        from fastmcp import FastMCP

        return FastMCP("shop")
    if (installed("mcp") or "").startswith("1."):
        from mcp.server.fastmcp import FastMCP as Former  # type: ignore[attr-defined]  # of mcp 1.x

        return Former("shop")
    from mcp.server.mcpserver import MCPServer

    return MCPServer("shop")


@asynccontextmanager
async def connected(server: Any) -> AsyncIterator[Any]:
    """Connect a client of the framework to its server, in memory."""
    if installed("fastmcp"):
        from fastmcp import Client

        async with Client(server) as client:
            yield client
    elif (installed("mcp") or "").startswith("1."):
        from mcp.shared import memory

        connect: Any = memory.create_connected_server_and_client_session  # type: ignore[attr-defined]  # of mcp 1.x
        async with connect(server._mcp_server) as client:
            yield client
    else:
        from mcp import Client as Modern

        async with Modern(server) as client:
            yield client


async def call(client: Any, name: str, arguments: dict[str, Any] | None = None) -> None:
    """Call a tool, of which an error is one of its results."""
    with suppress(Exception):
        await client.call_tool(name, arguments or {}, meta={"traceparent": CALLER})


async def use(started: list[asyncio.Event], server: Any) -> None:
    """Use the tools, and give up one call."""
    started[:] = [asyncio.Event()]
    async with connected(server) as client:
        await client.list_tools()
        await call(client, "add", {"a": 1, "b": 2})
        await call(client, "fail")
        await call(client, "made_up")
        hanging = asyncio.create_task(call(client, "hang"))
        await asyncio.wait_for(started[0].wait(), 30)
        hanging.cancel()
        with suppress(asyncio.CancelledError):
            await hanging


def shop(started: list[asyncio.Event]) -> Any:
    """Return a server with a tool that works, one that fails and one that hangs."""
    server = make()

    @server.tool()  # type: ignore[untyped-decorator]
    def add(a: int, b: int) -> int:
        with trace.get_tracer("shop").start_as_current_span("inside"):
            return a + b

    @server.tool()  # type: ignore[untyped-decorator]
    def fail() -> int:
        raise ValueError("closed")

    @server.tool()  # type: ignore[untyped-decorator]
    async def hang() -> int:
        started[0].set()
        await asyncio.sleep(3600)
        return 0

    return server


def run() -> None:
    """Check, and print what was found."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))
    logging.disable(logging.CRITICAL)
    started: list[asyncio.Event] = []
    server = shop(started)
    for objective in (30.0, 0.5):
        instrument_server(server, objective=objective)
    asyncio.run(use(started, server))
    ended = spans.get_finished_spans()
    scopes = [span.instrumentation_scope.name for span in ended if span.instrumentation_scope is not None]
    ours = {span.name: span for span, scope in zip(ended, scopes, strict=True) if scope == OURS}
    assert max(Counter(span.name for span in ours.values()).values()) == 1
    assert {"tools/list", *(f"tools/call {name}" for name in ("add", "fail", "made_up", "hang"))} <= set(ours)
    _check(ended, ours)
    points = _points(reader)
    tools = {dict(point.attributes).get("gen_ai.tool.name") for point in points[servers.SERVER_OPERATION_DURATION.name]}
    assert tools - {None} == {"add", "fail", "hang", "_OTHER"}, tools
    for metric in (servers.SERVER_INFLIGHT, servers.SERVER_SESSIONS):
        assert [point.value for point in points[metric.name]] == [0], metric.name
    uninstrument_server(server)
    spans.clear()
    asyncio.run(use(started, server))
    assert OURS not in [getattr(span.instrumentation_scope, "name", None) for span in spans.get_finished_spans()]
    versions = {name: version for name in ("fastmcp", "mcp") if (version := installed(name))}
    served = [span for span in ended if span.kind is SpanKind.SERVER]
    others = sorted({span.name for span in served} if len(served) > len(ours) else ())
    assert not others or versions.get("fastmcp", "").startswith("3."), others
    print(json.dumps({"versions": versions, "spans": sorted(ours), "spans of a framework below them": others}))


def _check(ended: Sequence[ReadableSpan], ours: Mapping[str, ReadableSpan]) -> None:
    """Look at parents and failures."""
    by_id = {span.context.span_id: span for span in ended if span.context is not None}
    for name in ("add", "fail", "made_up", "hang"):
        parent = ours[f"tools/call {name}"].parent
        assert parent is not None
        caller = by_id.get(parent.span_id)  # a span of the client, or the one that the caller has told
        assert caller.kind is SpanKind.CLIENT if caller is not None else f"{parent.span_id:016x}" in CALLER
    errors = {name: (span.attributes or {}).get("error.type") for name, span in ours.items()}
    assert errors["tools/call add"] is None
    assert errors["tools/call fail"] == errors["tools/call made_up"] == "tool_error", errors
    assert errors["tools/call hang"] == "cancelled", errors
    above = next(span for span in ended if span.name == "inside")
    while above is not ours["tools/call add"]:
        assert above.parent is not None
        above = by_id[above.parent.span_id]


def _points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


if __name__ == "__main__":
    run()
