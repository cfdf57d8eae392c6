"""Request and answer of an MCP call on the wire, from its span or the one above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import SpanRow, text_of
from pellucid_exporters.stored.sent_messages import Recorded

_SENT: Final = "MCP send tools/call "
"""Start of the names of the MCP SDK's own spans of calls; the rest is the name of the tool."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to an MCP server and its answer.

    Attributes:
        request: The JSON-RPC request, rebuilt.
        answer: The result, as the model got it; `None` if it is not recorded.
        holder: The span that recorded them.
    """

    request: dict[str, Any]
    answer: Recorded | None
    holder: SpanRow


def exchange_of(content: RunContent, span: SpanRow) -> Exchange | None:
    """Return the request and answer of a span of an MCP server; `None` for any other span."""
    method = text_of(span.attributes, semconv.MCP_METHOD_NAME)
    if method is None:
        return None
    parent = content.span(span.parent_span_id)
    is_inner = span.phase is None and parent is not None and semconv.MCP_METHOD_NAME in parent.attributes
    holder = parent if is_inner and parent is not None else span
    number = text_of(span.attributes, semconv.JSONRPC_REQUEST_ID) or ""
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": int(number) if number.isdecimal() else number, "method": method}
    if method == "tools/call":
        name = text_of(holder.attributes, semconv.TOOL_NAME)
        name = span.name.removeprefix(_SENT) if span.name.startswith(_SENT) else name
        arguments = content.get(holder, semconv.TOOL_CALL_ARGUMENTS)
        request["params"] = {"name": name, "arguments": arguments.value if arguments is not None else None}
    answer = content.get(holder, semconv.TOOL_CALL_RESULT) or content.get(holder, semconv.OUTPUT)
    return Exchange(request, answer, holder)
