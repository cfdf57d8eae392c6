"""Spans of frameworks for the very call that is about to be made."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from pellucid import semconv

_SPAN_KIND = "openinference.span.kind"
_OPENINFERENCE_NAME = "tool.name"


def span_of_call(tool: str) -> Span | None:
    """Return the current span if it is that of a call of this tool, made by a framework.

    That of a server which passes the call on is not: it belongs to another call.
    """
    span = trace.get_current_span()
    if not span.is_recording() or getattr(span, "kind", None) is SpanKind.SERVER:
        return None
    if getattr(span, "name", None) == f"{semconv.EXECUTE_TOOL} {tool}":
        return span  # some frameworks set the attributes at its end
    attributes: Any = getattr(span, "attributes", None) or {}
    is_call = (
        attributes.get(semconv.OPERATION_NAME) == semconv.EXECUTE_TOOL
        or attributes.get(semconv.MCP_METHOD_NAME) == "tools/call"
        or attributes.get(_SPAN_KIND) == "TOOL"
    )
    name = attributes.get(semconv.TOOL_NAME) or attributes.get(_OPENINFERENCE_NAME)
    return span if is_call and isinstance(name, str) and _is_name_of(tool, name) else None


def _is_name_of(tool: str, name: str) -> bool:
    """Return whether a framework's name of a tool is that of the server, perhaps after a prefix."""
    return name == tool or (name.endswith(tool) and not name[-len(tool) - 1].isalnum())
