"""Recorded content of a span, as the values that a run works with; content that is missing or was cut is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

from pellucid import semconv
from pellucid.errors import (
    ConfigError,
    DiscoveryBackoff,
    DiscoveryError,
    DiscoveryTimeout,
    ErrorKind,
    InvalidCatalog,
    ModelError,
    ModelTimeout,
    ToolError,
)
from pellucid.messages import (
    BlobPart,
    FilePart,
    FinishReason,
    Message,
    TextPart,
    ToolResult,
    UriPart,
    Usage,
    load_messages,
    load_part,
)
from pellucid.models import ModelResponse
from pellucid.telemetry import CapturePolicy
from pellucid.telemetry.content import Capturer
from pellucid.telemetry.sanitize import dumps
from pellucid.types import JSONValue
from pellucid_replay.tape import TapedSpan, TapeError

_J = TypeVar("_J", dict[str, Any], list[Any])

_REMEDY: Final = "record runs with CapturePolicy('redacted'), the default, and raise its max_bytes if content was cut"
_PARTS: Final = frozenset(kind.type for kind in (TextPart, BlobPart, FilePart, UriPart))
_COUNTS: Final = {
    "input_tokens": semconv.USAGE_INPUT_TOKENS,
    "output_tokens": semconv.USAGE_OUTPUT_TOKENS,
    "cache_read_input_tokens": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "cache_write_input_tokens": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "reasoning_output_tokens": semconv.USAGE_REASONING_OUTPUT_TOKENS,
    "cost": semconv.COST_USD,
}
_BACKOFF: Final = re.compile(r"it will be called again in ([\d.]+) s")
_NOTE: Final = re.compile(r"\n\nNote: a person changed the arguments before they approved, to .*\.\Z", re.DOTALL)
_USAGE: Final = "gen_ai.usage."
_VENDOR: Final = "openai."
"""Beginning of the attributes that adapters add to a `chat` span."""


def lacks(span: TapedSpan, what: str) -> TapeError:
    """Return the error for a span without content."""
    return TapeError(f"run {span.run_id} cannot be replayed: span {span.span_id} ({span.name!r}) {what}; {_REMEDY}")


def parsed(span: TapedSpan, attribute: str, kind: type[_J]) -> _J | None:
    """Return recorded JSON that is an object or an array, as `kind` says; None if it was not recorded.

    Raises:
        TapeError: it was cut, or is something else.
    """
    text = span.get(attribute)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise lacks(span, f"has only a part of {attribute}") from error
    if not isinstance(value, kind):
        raise lacks(span, f"has {attribute} that is no JSON {kind.__name__}")
    return value


def value_of(span: TapedSpan, attribute: str, digest: str) -> JSONValue:
    """Return a recorded value.

    Raises:
        TapeError: it was not recorded, or was cut.
    """
    text = span.get(attribute)
    if not isinstance(text, str):
        raise lacks(span, f"has no {attribute}")
    if not _is_whole(text, span, digest):
        raise lacks(span, f"has only a part of {attribute}")
    value: JSONValue = json.loads(text)
    return value


def _is_whole(text: str, span: TapedSpan, digest: str) -> bool:
    """Return whether a recorded text was not cut: what is too long is cut before its digest, or after it."""
    data = text.encode("utf-8", "surrogatepass")
    size = span.get(semconv.INPUT_BYTES if digest == semconv.INPUT_DIGEST else semconv.OUTPUT_BYTES)
    return (size or 0) <= len(data) and blake2b(data, digest_size=16).hexdigest() == span.get(digest)


def input_of(root: TapedSpan) -> tuple[Message, ...]:
    """Return the messages with which a run started.

    Raises:
        TapeError: they were not recorded, or were cut.
    """
    if semconv.INPUT_MESSAGES not in root.attributes and semconv.INPUT_DIGEST in root.attributes:
        raise lacks(root, "was recorded without content, as with PELLUCID_CAPTURE=metadata")
    messages = _messages(root, semconv.INPUT_MESSAGES)
    whole = Capturer(CapturePolicy("full", max_bytes=2**30, max_span_bytes=2**30)).messages(messages)
    if (whole.digest, whole.size) != (root.get(semconv.INPUT_DIGEST), root.get(semconv.INPUT_BYTES)):
        raise lacks(root, f"has only a part of {semconv.INPUT_MESSAGES}")
    return messages


def _messages(span: TapedSpan, attribute: str) -> tuple[Message, ...]:
    messages = parsed(span, attribute, list)
    if messages is None:
        raise lacks(span, f"has no {attribute}")
    try:
        return load_messages(messages)
    except ConfigError as error:
        raise lacks(span, f"has {attribute} that cannot be read ({error})") from error


def answer_of(span: TapedSpan) -> ModelResponse:
    """Return the response of a model call.

    Raises:
        TapeError: it was not recorded, or was cut.
    """
    recorded = parsed(span, semconv.OUTPUT_MESSAGES, list)
    if not recorded:
        raise lacks(span, f"has no {semconv.OUTPUT_MESSAGES}")
    data = recorded[0]
    if len(recorded) > 1 or not isinstance(data, dict) or not data:
        raise lacks(span, f"has {semconv.OUTPUT_MESSAGES} that is not one message")
    # The reason is before the parts if it belongs to the message, else after them.
    if [*data][-1] == "finish_reason":
        del data["finish_reason"]
    if not _is_whole(dumps(data), span, semconv.OUTPUT_DIGEST):
        raise lacks(span, f"has only a part of {semconv.OUTPUT_MESSAGES}")
    try:
        [message] = load_messages([data])
    except ConfigError as error:
        raise lacks(span, f"has {semconv.OUTPUT_MESSAGES} that cannot be read ({error})") from error
    reason: FinishReason = (span.get(semconv.RESPONSE_FINISH_REASONS) or ["stop"])[0]
    return ModelResponse(
        message=message,
        usage=_usage_of(span.attributes),
        finish_reason=reason,
        model=span.get(semconv.RESPONSE_MODEL),
        id=span.get(semconv.RESPONSE_ID),
        attributes={name: value for name, value in span.attributes.items() if name.startswith(_VENDOR)},
    )


def _usage_of(attributes: Mapping[str, Any]) -> Usage:
    counts = {name: attributes[attribute] for name, attribute in _COUNTS.items() if attribute in attributes}
    modalities = {
        name.removeprefix(_USAGE): value
        for name, value in attributes.items()
        if name.startswith(_USAGE) and name not in _COUNTS.values()
    }
    return Usage(**counts, by_modality=modalities)


def chunks_of(span: TapedSpan) -> Sequence[tuple[float, str, int]]:
    """Return the pieces of a streamed answer: seconds since its start, kind, and number of characters."""
    chunks = parsed(span, semconv.RESPONSE_CHUNKS, list) or ()
    try:
        return [(moment / 1e3, str(kind), int(length)) for moment, kind, length in chunks]
    except (TypeError, ValueError) as error:
        raise lacks(span, f"has {semconv.RESPONSE_CHUNKS} that cannot be read") from error


def result_of(span: TapedSpan) -> Any:
    """Return the result of a tool call, as a tool returns it.

    Raises:
        TapeError: it was not recorded, or was cut.
    """
    return as_result(_response_of(span))


def _response_of(span: TapedSpan) -> JSONValue:
    """Return the recorded response without the note about arguments that a person changed, which the run adds."""
    value = value_of(span, semconv.TOOL_CALL_RESULT, semconv.OUTPUT_DIGEST)
    if span.get(semconv.APPROVAL_OUTCOME) != "approved":
        return value
    if isinstance(value, str):
        return _NOTE.sub("", value)
    if isinstance(value, list) and value and _is_part(value[-1]) and _NOTE.match(f"\n\n{value[-1].get('content')}"):
        return value[:-1]
    return value


def as_result(value: JSONValue) -> Any:
    """Return a recorded response as a tool returns it: content that is not text as parts."""
    if not (isinstance(value, list) and value and all(_is_part(item) for item in value)):
        return value
    try:
        parts = tuple(load_part(item, "result") for item in value)
    except ConfigError:
        return value  # data that looks like parts
    return parts if ToolResult("", parts).to_dict()["response"] == value else value


def _is_part(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") in _PARTS


def model_failure(span: TapedSpan) -> ModelError:
    """Return the error of a model call, with the text, type and kind of the recorded one."""
    model = str(span.get(semconv.REQUEST_MODEL))
    text = (span.error or span.error_type or "").removeprefix(f"call of model {model!r} failed: ")
    if span.error_type == semconv.TIMEOUT:
        return ModelTimeout(model, text)
    return ModelError(model, text, error_type=span.error_type or "", error_kind=kind_of(span))


def discovery_failure(span: TapedSpan) -> DiscoveryError:
    """Return the error of a discovery, with the text, type and kind of the recorded one."""
    provider_id = str(span.get(semconv.PROVIDER_ID))
    prefix = f"discovery of tools from provider {provider_id!r} failed: "
    text = (span.error or span.error_type or "").removeprefix(prefix)
    if span.error_type == DiscoveryBackoff.error_type and (wait := _BACKOFF.search(text)) is not None:
        return _with_text(
            DiscoveryBackoff(provider_id, float(wait.group(1)), DiscoveryError(provider_id, "")), span, text
        )
    for kind in (DiscoveryTimeout, InvalidCatalog):
        if span.error_type == kind.error_type:
            return kind(provider_id, text, error_kind=kind_of(span))
    error = DiscoveryError(provider_id, text, error_kind=kind_of(span))
    error.error_type = span.error_type or ""
    return error


def _with_text(error: DiscoveryError, span: TapedSpan, problem: str) -> DiscoveryError:
    """Return an error with the recorded text in place of its own."""
    error.args, error.problem = (span.error,), problem
    return error


def tool_failure(span: TapedSpan) -> ToolError:
    """Return the error of a tool call, with the text that the model has read.

    Raises:
        TapeError: it was not recorded, or was cut.
    """
    return ToolError(str(_response_of(span)), error_type=span.error_type or "", error_kind=kind_of(span))


def kind_of(span: TapedSpan) -> ErrorKind:
    """Return the kind of the failure."""
    kind: ErrorKind = span.get(semconv.ERROR_KIND) or "unknown"
    return kind
