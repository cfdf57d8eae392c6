"""What OpenAI's two APIs share: how content is written and read."""

from __future__ import annotations

import json
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
"""Codes and types of errors that are reported within an answer, where no HTTP status tells what they mean."""

_REFUSED: Final = ("bad_request", "content_filter", "data_residency", "image", "invalid", "policy", "unsupported")
"""Words in other codes, after which the same request would be refused again."""


class ReportedError(Exception):
    """An error that the vendor reports within an answer.

    Attributes:
        kind, status: What the vendor says it is.
    """

    def __init__(self, error: JSONValue) -> None:
        given = error if isinstance(error, Mapping) else {"message": error}
        super().__init__(str(given.get("message") or "the vendor reports an error and does not say which"))
        names = [str(name).lower() for name in (given.get("code"), given.get("type")) if name is not None]
        self.status = next((int(name) for name in names if name.isdigit() and 400 <= int(name) < 600), None)  # noqa: PLR2004
        self.kind: ErrorKind | None = None if self.status is not None else _kind_of(names)


def _kind_of(names: Sequence[str]) -> ErrorKind:
    for name in names:
        if name in _CODES:
            return _CODES[name]
        if any(word in name for word in _REFUSED):
            return "invalid_request"
    return "unavailable"


def refused(model: str, part: Part, remedy: str) -> ModelError:
    """Return what to raise for a part that an API cannot take."""
    kind = getattr(part, "mime_type", None) or getattr(part, "modality", None)
    return ModelError(
        model,
        f"its API takes no {type(part).__name__}{f' ({kind})' if kind else ''} here; {remedy}",
        error_type="invalid_request",
        error_kind="invalid_request",
    )


def data_url(model: str, part: BlobPart) -> str:
    """Return binary content as a `data:` URL.

    Raises:
        ModelError: nothing says what kind of content it is.
    """
    if part.mime_type is None:
        raise refused(model, part, "say what it is with mime_type, such as image/png or application/pdf")
    return f"data:{part.mime_type};base64,{part.content}"


def file_name(part: BlobPart) -> str:
    """Return a name for a document, which has none of its own but needs one; the same for the same document."""
    kind = (part.mime_type or "").partition(";")[0].rpartition("/")[2]
    return f"document.{ {'plain': 'txt', 'markdown': 'md'}.get(kind, kind) or 'bin' }"


def json_text(value: JSONValue) -> str:
    """Return a value as JSON, the same for the same value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as the JSON object that servers insist on; text that was none becomes a member."""
    if isinstance(call.arguments, str):
        return json_text({"arguments": call.arguments}) if call.arguments.strip() else "{}"
    return json_text(call.arguments)


def arguments_of(given: JSONValue) -> JSONObject | str:
    """Return a call's arguments as an object, or what the model wrote if it is none."""
    if isinstance(given, dict):
        return given
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    text = given if isinstance(given, str) else json_text(given)
    try:
        parsed = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def result_parts(result: ToolResult) -> tuple[Part, ...]:
    """Return what a tool's result consists of."""
    response = result.response
    if isinstance(response, tuple):
        return response
    return (TextPart(response if isinstance(response, str) else json_text(response)),)


def members(value: JSONValue) -> Mapping[str, Any]:
    """Return an object that may be missing."""
    return value if isinstance(value, Mapping) else {}


def text(value: JSONValue) -> str:
    """Return a text that may be missing; some servers write ids as numbers.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return "" if value is None else str(value)
    raise ValueError(f"the answer has a value of type {type(value).__name__} where text belongs")


def tokens(value: JSONValue) -> int | None:
    """Return a number of tokens, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def by_modality(kind: str, details: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of each modality in the details of a usage; `kind` is such as `input_tokens`."""
    counts = {
        f"{modality}.{kind}": tokens(details.get(f"{modality}_tokens")) for modality in ("text", "image", "audio")
    }
    return {name: count for name, count in counts.items() if count}


def merged(body: JSONObject, extra: Mapping[str, Any]) -> JSONObject:
    """Return a request's body with further members; an object in both has the members of both."""
    both = {name: {**body[name], **value} for name, value in extra.items() if _are_objects(body.get(name), value)}
    return {**body, **extra, **both}


def _are_objects(mine: JSONValue, other: JSONValue) -> bool:
    return isinstance(mine, Mapping) and isinstance(other, Mapping)
