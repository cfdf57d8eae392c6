"""Tool calls to an MCP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, TypeVar

from mcp import Client
from mcp_types import CallToolResult
from opentelemetry import trace
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.approvals.elicitation import LISTENING
from pellucid.context import ToolContext
from pellucid.errors import DiscoveryError, ToolError
from pellucid.failures import error_kind_of
from pellucid.mcp.connection import Connection
from pellucid.mcp.content import to_value
from pellucid.mcp.credentials import HeadersFailed
from pellucid.mcp.elicitation import Answers, Elicitor
from pellucid.mcp.exchange import Asking, Exchange, Refused, ServerGone, SessionUnknown
from pellucid.mcp.listing import trace_context
from pellucid.response_limits import ResponseRefused
from pellucid.types import JSONObject, JSONValue

T = TypeVar("T")

FAILURES: Final = (ServerGone, DiscoveryError, Refused, ResponseRefused, HeadersFailed)
"""Errors of a request, for `failure_of_call`."""

Failure: TypeAlias = ServerGone | DiscoveryError | Refused | ResponseRefused | HeadersFailed


async def call(
    server: str,
    connect: Callable[[], Awaitable[Connection]],
    name: str,
    arguments: JSONObject,
    ctx: ToolContext,
    *,
    exposed: str,
    elicitor: Elicitor | None = None,
) -> JSONValue:
    """Call a tool and return its result.

    Args:
        server: The provider's id, for error messages.
        connect: Returns the connection to the server.
        name: The tool's name on the server.
        arguments: The arguments of the call.
        ctx: Receives progress notifications.
        exposed: The tool's name in metrics.
        elicitor: Answers the server's questions to a person.

    Raises:
        InputRequired: the server asks a person, for whose answer the run pauses.
        ToolError: the tool failed, the server refused the call, or the server could not be reached.
    """

    async def report(progress: float, total: float | None, message: str | None) -> None:
        update = {"progress": progress, "total": total, "message": message}
        ctx.progress({key: value for key, value in update.items() if value is not None})

    async def request(answers: Answers) -> CallToolResult:
        connection = await connect()
        sent = answers if elicitor is None else elicitor.sent(answers, is_modern=connection.modern)

        async def send(client: Client) -> CallToolResult:
            meta = trace_context()
            return await client.call_tool(name, arguments, progress_callback=report, meta=meta, **sent)

        for attribute, value in connection.attributes.items():
            set_attribute(span, attribute, value)
        exchange = Exchange("tools/call", partial(set_attribute, span), exposed)
        if elicitor is not None:
            exchange.asking = Asking(LISTENING.get(), ctx.identity, span)
        return await connection.request(exchange, send)

    def retried(answers: Answers) -> Awaitable[CallToolResult]:
        return repeated(partial(request, answers))

    span = trace.get_current_span()
    try:
        result = await (retried({}) if elicitor is None else elicitor.ask(retried, ctx.identity))
    except FAILURES as error:
        if isinstance(error, Refused) and error.code is not None:
            set_attribute(span, semconv.RPC_RESPONSE_STATUS_CODE, str(error.code))
        raise failure_of_call(server, error) from error.__cause__ if isinstance(error, Refused) else error
    return to_value(result)


async def repeated(request: Callable[[], Awaitable[T]]) -> T:
    """Make a request, and once more if the server did not process it because it no longer knows the session."""
    try:
        return await request()
    except SessionUnknown:
        return await request()


def failure_of_call(server: str, error: Failure) -> ToolError:
    """Convert an error of a request to one that the model reads."""
    match error:
        case ServerGone():
            return ToolError(
                f"The connection to MCP server {server!r} was lost during the call ({error}). "
                f"It is not known whether the tool ran. The next call reopens the connection.",
                error_type=error.error_type,
                error_kind="unavailable",
            )
        case HeadersFailed():
            return ToolError(f"MCP server {server!r} was not asked: {error}", error_type=error.error_type)
        case ResponseRefused():
            return ToolError(
                f"The result of MCP server {server!r} was not read: {error}",
                error_type=error.error_type,
                error_kind="invalid_response",
            )
        case DiscoveryError():
            return ToolError(
                f"MCP server {server!r} is not available: {error.problem}",
                error_type="unavailable",
                error_kind=error_kind_of(error),
                status=error.status,
                retry_after=error.retry_after,
            )
    return ToolError(
        f"MCP server {server!r} {error}",
        error_type=error.error_type,
        error_kind=error.error_kind,
        status=error.status,
        retry_after=error.retry_after,
    )


def set_attribute(span: Span, name: str, value: AttributeValue) -> None:
    """Set an attribute, unless the span has ended because its run was abandoned."""
    if span.is_recording():
        span.set_attribute(name, value)
