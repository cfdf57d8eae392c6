"""Calling a tool of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from mcp import Client, MCPError
from mcp_types import CallToolResult
from opentelemetry import trace
from opentelemetry.trace import Span

from pellucid import semconv
from pellucid.context import ToolContext
from pellucid.errors import DiscoveryError, ToolError
from pellucid.mcp.connection import Connection, ServerGone, SessionUnknown
from pellucid.mcp.content import to_value
from pellucid.mcp.site import trace_context, type_of
from pellucid.mcp.transports import REQUEST_SENT
from pellucid.types import JSONObject, JSONValue


async def call(
    server: str, connect: Callable[[], Awaitable[Connection]], name: str, arguments: JSONObject, ctx: ToolContext
) -> JSONValue:
    """Call a tool by the server's own name for it.

    Raises:
        ToolError: the tool failed, the server refused the call, or it could not be reached.
    """

    async def report(progress: float, total: float | None, message: str | None) -> None:
        said = {"progress": progress, "total": total, "message": message}
        ctx.progress({key: value for key, value in said.items() if value is not None})

    async def send(client: Client) -> CallToolResult:
        return await client.call_tool(name, arguments, progress_callback=report, meta=trace_context())

    async def request() -> CallToolResult:
        connection = await connect()
        if span.is_recording():
            span.set_attributes(connection.attributes)
        return await connection.request(send)

    span = trace.get_current_span()
    try:
        with _noting_its_id(span):
            try:
                result = await request()
            except SessionUnknown:
                result = await request()
    except ServerGone as error:
        raise ToolError(
            f"The connection to MCP server {server!r} was lost during the call ({error}). "
            f"It is not known whether the tool ran. The connection is reopened at the next call.",
            error_type="connection_lost",
        ) from error
    except DiscoveryError as error:
        raise ToolError(f"MCP server {server!r} is not available: {error.problem}", error_type="unavailable") from error
    except MCPError as error:
        span.set_attribute(semconv.RPC_RESPONSE_STATUS_CODE, str(error.code))
        raise ToolError(
            f"MCP server {server!r} answered error {error.code}: {error}", error_type=type_of(error)
        ) from error
    return to_value(result)


@contextmanager
def _noting_its_id(span: Span) -> Iterator[None]:
    """Note the id of the request that is sent meanwhile; requests in memory are not JSON-RPC and have none."""
    token = REQUEST_SENT.set(lambda request_id: span.set_attribute(semconv.JSONRPC_REQUEST_ID, request_id))
    try:
        yield
    finally:
        REQUEST_SENT.reset(token)
