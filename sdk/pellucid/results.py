"""What a tool returned, as something a model can be sent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final, get_args

from pydantic_core import PydanticSerializationError, to_jsonable_python

from pellucid.errors import ToolError
from pellucid.messages import Part, TextPart, ToolResult
from pellucid.types import JSONValue

_PARTS: Final = get_args(Part)


def to_response(value: object, most: int) -> JSONValue:
    """Return text, JSON-able data or a tuple of parts; what has over `most` bytes is cut, with a notice.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    if isinstance(value, str):
        return _cut(value, most)
    if isinstance(value, _PARTS):
        value = (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(part, _PARTS) for part in value):
        return _parts(tuple(value), most)
    try:
        data = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
        text = json.dumps(data, ensure_ascii=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError(
            f"The tool returned an object of type {type(value).__name__} that cannot be turned into JSON.",
            error_type="invalid_result",
        ) from error
    return data if len(text.encode("utf-8", "replace")) <= most else _cut(text, most)


def with_note(result: ToolResult, note: str) -> ToolResult:
    """Return a result that says something more."""
    if isinstance(result.response, tuple):
        return replace(result, response=(*result.response, TextPart(note)))
    response = result.response if isinstance(result.response, str) else json.dumps(result.to_dict()["response"])
    return replace(result, response=f"{response}\n\n{note}")


def _parts(parts: tuple[Part, ...], most: int) -> JSONValue:
    size = len(json.dumps([part.to_dict() for part in parts], default=str))
    if size <= most:
        return parts
    raise ToolError(
        f"The tool returned content of {size:,} bytes; at most {most:,} can be passed on. Ask for less.",
        error_type="result_too_large",
    )


def _cut(text: str, most: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= most:
        # A lone surrogate cannot be sent to anybody; it was replaced on the way.
        return encoded.decode()
    kept = encoded[:most].decode("utf-8", "ignore")
    return f"{kept}\n[cut: {len(encoded):,} bytes in all, the first {most:,} are above. Ask for less, or for a part.]"
