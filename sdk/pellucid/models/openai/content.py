"""Conversion of content that OpenAI's two APIs share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from pellucid.errors import ErrorKind, ModelError
from pellucid.messages import BlobPart, Part, TextPart, ToolCall, ToolResult
from pellucid.types import JSONObject, JSONValue

_CODES: Final[Mapping[str, ErrorKind]] = {
    "authentication_error": "auth",
    "billing_hard_limit_reached": "auth",
    "context_length_exceeded": "invalid_request",
    "insufficient_quota": "auth",  # waiting does not help
    "invalid_api_key": "auth",
    "invalid_request_error": "invalid_request",
    "permission_error": "auth",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "requests": "rate_limited",
    "tokens": "rate_limited",
    "vector_store_timeout": "timeout",
}
"""Codes and types of errors that are reported within a response, without an HTTP status."""

_REFUSED: Final = ("bad_request", "content_filter", "data_residency", "image", "invalid", "policy", "unsupported")
"""Words in other codes that mean that the same request would be refused again."""


class ReportedError(Exception):
    """An error that the vendor reports within a response.

    Attributes:
        code: Its code, or its type.
        status: The HTTP status in its code or type, if there is one.
        kind: The kind of failure that the code or type means; None with a status.
    """

    def __init__(self, error: JSONValue) -> None:
        details = error if isinstance(error, Mapping) else {"message": error}
        super().__init__(str(details.get("message") or "the vendor reports an error without a message"))
        names = [str(name).lower() for name in (details.get("code"), details.get("type")) if name is not None]
        self.code = names[0] if names else None
        self.status = next((int(name) for name in names if re.fullmatch("[45][0-9][0-9]", name)), None)
        self.kind: ErrorKind | None = None if self.status is not None else _kind_of(names)


def _kind_of(names: Sequence[str]) -> ErrorKind:
    for name in names:
        if name in _CODES:
            return _CODES[name]
        if any(word in name for word in _REFUSED):
            return "invalid_request"
    return "unavailable"


def refused(model: str, part: Part, remedy: str) -> ModelError:
    """Return the error for a part that an API does not support."""
    kind = getattr(part, "mime_type", None) or getattr(part, "modality", None)
    return ModelError(
        model,
        f"its API does not accept {type(part).__name__}{f' ({kind})' if kind else ''} here; {remedy}",
        error_type="invalid_request",
        error_kind="invalid_request",
    )


def data_url(model: str, part: BlobPart) -> str:
    """Return binary content as a `data:` URL.

    Raises:
        ModelError: the part has no `mime_type`.
    """
    if part.mime_type is None:
        raise refused(model, part, "set its mime_type, such as image/png or application/pdf")
    return f"data:{part.mime_type};base64,{part.content}"


def file_name(part: BlobPart) -> str:
    """Return a file name for a document, which the API requires; the same for the same document."""
    kind = (part.mime_type or "").partition(";")[0].rpartition("/")[2]
    return f"document.{ {'plain': 'txt', 'markdown': 'md'}.get(kind, kind) or 'bin' }"


def json_text(value: JSONValue) -> str:
    """Return a value as JSON; equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as the JSON object that servers require; invalid text becomes a member of it."""
    if isinstance(call.arguments, str):
        return json_text({"arguments": call.arguments}) if call.arguments.strip() else "{}"
    return json_text(call.arguments)


def arguments_of(value: JSONValue) -> JSONObject | str:
    """Return a call's arguments as an object, or as the model's text if that is not a JSON object."""
    if isinstance(value, dict):
        return value
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    text = value if isinstance(value, str) else json_text(value)
    try:
        parsed = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def result_parts(result: ToolResult) -> tuple[Part, ...]:
    """Return the parts of a tool's result."""
    response = result.response
    if isinstance(response, tuple):
        return response
    return (TextPart(response if isinstance(response, str) else json_text(response)),)


def members(value: JSONValue) -> Mapping[str, Any]:
    """Return an object, or an empty one if it is missing."""
    return value if isinstance(value, Mapping) else {}


def text(value: JSONValue) -> str:
    """Return a text, or an empty one if it is missing. Numbers become text, because some servers use them as ids.

    Raises:
        ValueError: the value is neither text nor a number.
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return "" if value is None else str(value)
    raise ValueError(f"the response has a value of type {type(value).__name__} instead of text")


def tokens(value: JSONValue) -> int | None:
    """Return a token count, or None if the value is not an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def by_modality(kind: str, details: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens per modality in the details of a usage; `kind` is for example `input_tokens`."""
    counts = {
        f"{modality}.{kind}": tokens(details.get(f"{modality}_tokens")) for modality in ("text", "image", "audio")
    }
    return {name: count for name, count in counts.items() if count}


def merged(body: JSONObject, extra: Mapping[str, Any]) -> JSONObject:
    """Merge further members into a request's body, including those of objects that are in both."""
    both = {name: {**body[name], **value} for name, value in extra.items() if _are_objects(body.get(name), value)}
    return {**body, **extra, **both}


def _are_objects(value: JSONValue, other: JSONValue) -> bool:
    return isinstance(value, Mapping) and isinstance(other, Mapping)
