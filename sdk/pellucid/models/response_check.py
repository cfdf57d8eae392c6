"""Types of what a model returned: models are the application's, and no type checker saw all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeAlias

from pellucid.errors import ModelError
from pellucid.messages import (
    BlobPart,
    FilePart,
    Message,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    Usage,
)
from pellucid.models.base import ModelDelta, ModelResponse

_Fields: TypeAlias = Mapping[str, tuple[tuple[type[Any], ...], str]]

_TEXT: Final = ((str,), "a str")
_OPTIONAL: Final = ((str, NoneType), "a str or None")
_MAPPING: Final = ((Mapping,), "a mapping")
_COUNT: Final = ((int, NoneType), "an int or None")

_RESPONSE: Final[_Fields] = {
    "message": ((Message,), "a Message"),
    "usage": ((Usage,), "a Usage"),
    "finish_reason": _TEXT,
    "model": _OPTIONAL,
    "id": _OPTIONAL,
    "attributes": _MAPPING,
}
_MESSAGE: Final[_Fields] = {"role": _TEXT, "finish_reason": _OPTIONAL}
_COUNTS: Final = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens",
)  # fmt: skip
_USAGE: Final[_Fields] = {
    **dict.fromkeys(_COUNTS, _COUNT),
    "cost": ((int, float, NoneType), "a number or None"),
    "by_modality": _MAPPING,
}
_PLAIN_RESPONSE: Final = {*product((str,), (str, NoneType), (str, NoneType))}
_TEXT_AND_OPTIONAL: Final = {*product((str,), (str, NoneType))}
_PLAIN_COUNTS: Final = {int, NoneType}
_PLAIN_VALUES: Final = {str, int, float, bool, NoneType}
_counts_of: Final = attrgetter(*_COUNTS)

_DELTA: Final[_Fields] = {"type": _TEXT, "content": _TEXT}
_PARTS: Final[Mapping[type[Any], _Fields]] = {
    TextPart: {"content": _TEXT},
    ReasoningPart: {"content": _TEXT},
    ToolCall: {"name": _TEXT, "arguments": ((dict, str), "a dict or a str"), "id": _OPTIONAL},
    ToolResult: {"id": _TEXT},
    ServerToolCall: {"name": _TEXT, "server_tool_call": _MAPPING, "id": _OPTIONAL},
    ServerToolResult: {"server_tool_call_response": _MAPPING, "id": _OPTIONAL},
    BlobPart: {"content": _TEXT, "modality": _TEXT, "mime_type": _OPTIONAL},
    FilePart: {"file_id": _TEXT, "modality": _TEXT, "mime_type": _OPTIONAL},
    UriPart: {"uri": _TEXT, "modality": _TEXT, "mime_type": _OPTIONAL},
}


def check_response(model: str, response: object, *, is_streamed: bool = False) -> ModelResponse:
    """Return what a model returned, if it is a response whose fields have the right types.

    Raises:
        ModelError: it is not; the error names the field and its type, without the value.
    """
    if not isinstance(response, ModelResponse):
        returned = f"it returned an object of type {type(response).__name__} instead of a ModelResponse"
        raise _invalid(model, f"{returned}{'; a stream must end with one' if is_streamed else ''}")
    if not _is_plain(response) and (problem := next(_problems(response), None)) is not None:
        raise _wrong(model, "ModelResponse", problem)
    return response


def _is_plain(response: ModelResponse) -> bool:
    """Return whether a response is a usual one, so that it needs no look at each field; False for all others."""
    message, usage = response.message, response.usage
    if type(message) is not Message or type(usage) is not Usage:
        return False
    return (
        (type(response.finish_reason), type(response.model), type(response.id)) in _PLAIN_RESPONSE
        and (type(message.role), type(message.finish_reason)) in _TEXT_AND_OPTIONAL
        and {*map(type, _counts_of(usage))} <= _PLAIN_COUNTS
        and not (response.attributes or usage.by_modality or usage.cost is not None)
        and all(map(_is_plain_part, message.parts))
    )


def _is_plain_part(part: object) -> bool:
    if type(part) is ToolCall:
        arguments = part.arguments
        return bool(part.name) and (
            (type(part.name), type(part.id)) in _TEXT_AND_OPTIONAL
            and (type(arguments) is str or (type(arguments) is dict and _is_flat(arguments)))
        )
    return type(part) is TextPart and type(part.content) is str


def _is_flat(arguments: dict[Any, Any]) -> bool:
    return {*map(type, arguments)} <= {str} and {*map(type, arguments.values())} <= _PLAIN_VALUES


def check_piece(model: str, item: object) -> None:
    """Check an item of a stream; its last one is checked by `check_response`.

    Raises:
        ModelError: it is neither a delta with texts nor a response.
    """
    if isinstance(item, ModelDelta):
        problem = next(_of_fields(item, _DELTA, ""), None)
        if problem is not None:
            field, _, rest = problem.partition(" ")
            raise _wrong(model, "stream", f"{field} of a ModelDelta {rest}")
    elif not isinstance(item, ModelResponse):
        raise _wrong(model, "stream", f"an item of the stream is {_kind(item)}, not a ModelDelta or a ModelResponse")


def _wrong(model: str, thing: str, problem: str) -> ModelError:
    return _invalid(
        model, f"the adapter of the model returned a {thing} of wrong types: {problem}; correct the adapter"
    )


def _invalid(model: str, problem: str) -> ModelError:
    return ModelError(model, problem, error_type="invalid_response", error_kind="invalid_response")


def _problems(response: ModelResponse) -> Iterator[str]:
    """Yield problems of a response; later ones may assume that there were no earlier ones."""
    yield from _of_fields(response, _RESPONSE, "")
    message, usage = response.message, response.usage
    yield from _of_fields(message, _MESSAGE, "message.")
    for index, part in enumerate(message.parts):
        yield from _of_part(part, f"message.parts[{index}]")
    yield from _of_fields(usage, _USAGE, "usage.")
    yield from _of_values("usage.by_modality", usage.by_modality, (int,), "an int")
    if usage.cost is not None and not 0 <= usage.cost < math.inf:
        yield "usage.cost is not a dollar amount"
    yield from _of_values("attributes", response.attributes, (str, int, float, bool), "a str")


def _of_part(part: Any, place: str) -> Iterator[str]:
    fields = _PARTS.get(type(part))
    if fields is None:
        yield f"{place} is {_kind(part)}, not a part of a message"
        return
    yield from _of_fields(part, fields, f"{place}.")
    if isinstance(part, ToolCall):
        if not part.name:
            yield f"{place}.name is empty"
        if isinstance(part.arguments, dict):
            yield from _of_keys(part.arguments, f"{place}.arguments")


def _of_fields(thing: object, fields: _Fields, prefix: str) -> Iterator[str]:
    for name, (kinds, expected) in fields.items():
        value = getattr(thing, name)
        if not _is_one_of(value, kinds):
            yield f"{prefix}{name} is {_kind(value)}, not {expected}"


def _of_values(place: str, values: Mapping[Any, Any], kinds: tuple[type[Any], ...], expected: str) -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(key, str):
            yield f"a key of {place} is {_kind(key)}, not a str"
        if not _is_one_of(value, kinds):
            yield f"a value of {place} is {_kind(value)}, not {expected}"


def _of_keys(arguments: dict[Any, Any], place: str) -> Iterator[str]:
    """Yield problems of the keys of arguments, at any depth."""
    seen: set[int] = set()
    remaining: list[Any] = [arguments]
    while remaining:
        value = remaining.pop()
        if id(value) in seen:
            continue  # it contains itself
        seen.add(id(value))
        inner: Iterable[Any] = value
        if isinstance(value, dict):
            yield from (f"a key of {place} is {_kind(key)}, not a str" for key in value if not isinstance(key, str))
            inner = value.values()
        remaining += [item for item in inner if isinstance(item, dict | list)]


def _is_one_of(value: object, kinds: tuple[type[Any], ...]) -> bool:
    """Return whether a value has one of these types; True and False are no numbers."""
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
