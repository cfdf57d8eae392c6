"""Outcomes of requests, as a server sees them: results of tools, errors and cancellations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pellucid.errors import ToolError
from pellucid.failures import type_of_code
from pellucid.types import JSONValue
from pellucid_instrumentation import messages
from pellucid_instrumentation.failures import CANCELLED, code_of, error_type_of

TOOL_ERROR: Final = "tool_error"
"""Value of `error.type` of a call whose result says that the tool failed."""

_INVALID_PARAMS: Final = -32602


class Outcome(NamedTuple):
    """Failure of a request.

    Attributes:
        error_type: Value of `error.type`.
        code: Code of the JSON-RPC error that the client reads, as far as a standard defines it.
        error: Error that describes it; None if there is none.
    """

    error_type: str
    code: str | None = None
    error: Exception | None = None


def failure_in(result: Any) -> Outcome | None:
    """Return the failure that the result of a tool call reports."""
    if isinstance(result, Mapping):
        is_error = result.get("isError") is True
        text = _text_in(result) if is_error else ""
    else:
        is_error = messages.is_error(result)
        text = messages.text_of(result) if is_error else ""
    return Outcome(TOOL_ERROR, error=ToolError(text)) if is_error else None


def failure_of(error: BaseException) -> Outcome:
    """Return the failure of a request that raised."""
    if not isinstance(error, Exception):
        return Outcome(CANCELLED)
    code = code_of(error)
    if code is not None:
        return answered_with(code, str(getattr(error, "message", error)))
    if type(error).__name__ == "ValidationError" and type(error).__module__.startswith("pydantic"):
        # What the client reads; the message of the error quotes what the client had sent.
        return answered_with(_INVALID_PARAMS, "Invalid request parameters")
    return Outcome(error_type_of(error), error=error)


def answered_with(code: int, text: str) -> Outcome:
    """Return the failure of a request that was answered with an error."""
    kind = type_of_code(code)
    return Outcome(kind, kind, ToolError(text))


def value_of(result: Any) -> JSONValue:
    """Return the result of a tool call as JSON: structured content, else one text, else all content."""
    if not isinstance(result, Mapping):
        return messages.value_of(result)
    structured: JSONValue = result.get("structuredContent")
    if structured is not None:
        return structured
    content: list[Any] = list(result.get("content") or ())
    texts = list(_texts(content))
    return texts[0] if len(content) == 1 and texts else content


def tools_in(result: Any) -> set[str]:
    """Return the names of the tools of a listing."""
    listed: Any = result.get("tools") if isinstance(result, Mapping) else getattr(result, "tools", ())
    names = (tool.get("name") if isinstance(tool, Mapping) else getattr(tool, "name", None) for tool in listed or ())
    return {name for name in names if isinstance(name, str)}


def _text_in(result: Mapping[str, Any]) -> str:
    return next(_texts(result.get("content") or ()), "the tool failed")


def _texts(content: Any) -> Iterator[str]:
    for item in content:
        text = item.get("text") if isinstance(item, Mapping) else getattr(item, "text", None)
        if isinstance(text, str):
            yield text
