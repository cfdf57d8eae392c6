"""Fields of MCP messages, whose Python names differ between mcp 1.x and 2.x."""

from __future__ import annotations

from typing import Any

from pellucid.types import JSONValue


def method_of(request: Any) -> tuple[str, Any]:
    """Return method and parameters of a request; mcp 1.x wraps it in a `ClientRequest`."""
    request = getattr(request, "root", request)
    return request.method, request.params


def next_cursor(result: Any) -> str | None:
    """Return the cursor of the next page of a list, if there is one."""
    cursor: str | None = _either(result, "next_cursor", "nextCursor")
    return cursor


def is_error(result: Any) -> bool:
    """Return whether a tool failed."""
    return _either(result, "is_error", "isError") is True


def protocol_version(result: Any) -> str | None:
    """Return the version that an `initialize` has negotiated."""
    version: str | None = _either(result, "protocol_version", "protocolVersion")
    return version


def server_info(result: Any) -> Any:
    """Return name and version of the server, if the handshake has told them."""
    return _either(result, "server_info", "serverInfo")


def text_of(result: Any) -> str:
    """Return the first text of a result."""
    texts = (getattr(item, "text", None) for item in getattr(result, "content", ()))
    return next((text for text in texts if isinstance(text, str)), "the tool failed")


def value_of(result: Any) -> JSONValue:
    """Return a result as JSON: structured content, else one text, else all content."""
    structured: JSONValue = _either(result, "structured_content", "structuredContent")
    if structured is not None:
        return structured
    content: list[Any] = list(getattr(result, "content", ()))
    if len(content) == 1 and isinstance(text := getattr(content[0], "text", None), str):
        return text
    return [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in content]


def _either(result: Any, name: str, former: str) -> Any:
    return getattr(result, name, None) if hasattr(result, name) else getattr(result, former, None)
