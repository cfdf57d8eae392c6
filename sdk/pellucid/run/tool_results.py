"""Conversion of tool results to content for the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeGuard, TypeVar, TypeVarTuple, Unpack, get_args

import anyio
import anyio.to_thread
from pydantic_core import PydanticSerializationError, to_jsonable_python

from pellucid.errors import PolicyHalt, ToolError
from pellucid.failures import describe
from pellucid.messages import Beginning, Part, Parts, TextPart, ToolCall, ToolResult
from pellucid.types import JSONValue

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

LARGE: Final = 64 * 1024
"""Bytes from which a result is serialized in a worker thread."""

PARTS: Final = get_args(Part)


async def result_of(request: ToolCall, value: object, max_bytes: int) -> ToolResult:
    """Return the result of a call that returned `value`.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    assert request.id is not None
    response = await respond(value, max_bytes)
    more = vars(value) if isinstance(value, Parts | Beginning) else {}
    return ToolResult(request.id, response, name=request.name, **more)


def failure_of(request: ToolCall, error: Exception, max_bytes: int) -> ToolResult:
    """Return the result of a call that failed."""
    assert request.id is not None
    text = halted_text(error) if isinstance(error, PolicyHalt) else failure_text(error)
    return ToolResult(request.id, to_response(text, max_bytes), is_error=True, name=request.name)


async def respond(value: object, max_bytes: int) -> JSONValue:
    """Return a result as `to_response` does; serialize a large one in a worker thread, not to block other runs.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    if isinstance(value, str) or is_small(value):
        return to_response(value, max_bytes)
    return await in_thread(to_response, value, max_bytes, True)


async def in_thread(work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
    """Return the result of work on a large value, which a worker thread does."""
    # A limiter of its own: threads of the application must not delay results.
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(work, *args, abandon_on_cancel=True, limiter=limiter)


def to_response(value: object, max_bytes: int, is_large: bool = False) -> JSONValue:
    """Return text, JSON-able data or a tuple of parts; cut content above `max_bytes` bytes, with a notice.

    Of a large value only the beginning is serialized.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    if isinstance(value, str):
        return _cut(value, max_bytes)
    if isinstance(value, PARTS):
        value = (value,)
    if is_content(value):
        return _parts(tuple(value), max_bytes)
    try:
        if is_large and (beginning := _beginning(value, max_bytes)) is not None:
            return beginning
        data, text = to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise no_json(value) from error
    return data if len(text.encode("utf-8", "replace")) <= max_bytes else _cut(text, max_bytes)


def no_json(value: object) -> ToolError:
    """Return the error of a result that cannot be turned into JSON."""
    return ToolError(
        f"The tool returned an object of type {type(value).__name__} that cannot be turned into JSON.",
        error_type="invalid_result",
    )


def halted_text(halt: PolicyHalt) -> str:
    """Return the result text for a call that was not run because the policy ended the run."""
    return f"Not run: {halt.reason}. The run has ended."


def failure_text(error: Exception) -> str:
    """Return what the model reads of a failure: the text of a `ToolError`, or a description of another exception."""
    return str(error) if isinstance(error, ToolError) else f"The tool failed. {describe(error)}"


def with_note(result: ToolResult, note: str) -> ToolResult:
    """Return a result with a note added to it."""
    if isinstance(result.response, tuple):
        return replace(result, response=(*result.response, TextPart(note)))
    response = result.response if isinstance(result.response, str) else json.dumps(result.to_dict()["response"])
    return replace(result, response=f"{response}\n\n{note}")


def is_content(value: object) -> TypeGuard[Sequence[Part]]:
    """Return whether a value is several content parts."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(part, PARTS) for part in value)


def is_small(value: object) -> bool:
    """Return whether a value certainly has less than `LARGE` bytes, looking at no more than that."""
    if value is None or isinstance(value, int | float):
        return True
    remaining, pending = LARGE, [value]
    while pending and remaining >= 0:
        item = pending.pop()
        remaining -= 2
        if isinstance(item, str | bytes):
            remaining -= len(item)
            continue
        members = _members(item)
        remaining -= 2 * len(members)
        if remaining >= 0:
            pending.extend(members)
    return remaining >= 0


def _members(value: object) -> Collection[object]:
    """Return the items, values or fields of a value."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if hasattr(type(value), "model_fields"):  # of pydantic, which need not be loaded
        return value.__dict__.values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return ()


def _beginning(value: object, max_bytes: int) -> str | None:
    """Return the JSON of a value cut at `max_bytes` bytes, without serializing the rest.

    Return None if it has less, or if only the whole value can be serialized.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_jsonable)
    pieces: list[str] = []
    remaining = max_bytes
    try:
        for piece in encoder.iterencode(value):
            pieces.append(piece)
            remaining -= len(piece)
            if remaining < 0:
                text = "".join(pieces)[: max_bytes + 1].encode("utf-8", "replace")[:max_bytes]
                return f"{text.decode('utf-8', 'ignore')}\n{_notice(f'over {max_bytes:,}', max_bytes)}"
    except (TypeError, ValueError):  # keys or numbers that only pydantic converts
        return None
    return None


def to_json(value: object) -> tuple[Any, str]:
    """Return a value as JSON data and as text; NaN and the infinities become texts.

    Raises:
        ValueError, RecursionError: the value cannot be turned into JSON.
    """
    data = _jsonable(value)
    try:
        return data, json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:  # of a number that is not finite, which pydantic leaves in data for Python
        data = json.loads(json.dumps(data), parse_constant=str)
        return data, json.dumps(data, ensure_ascii=False)


def _jsonable(value: object) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")


def _parts(parts: tuple[Part, ...], max_bytes: int) -> JSONValue:
    size = len(json.dumps([part.to_dict() for part in parts], default=str))
    if size <= max_bytes:
        return parts
    raise ToolError(
        f"The tool returned content of {size:,} bytes; at most {max_bytes:,} can be passed on. Ask for less.",
        error_type="result_too_large",
    )


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        # Decoded again, because a lone surrogate cannot be sent; encoding has replaced it.
        return encoded.decode()
    beginning = encoded[:max_bytes].decode("utf-8", "ignore")
    return f"{beginning}\n{_notice(f'{len(encoded):,}', max_bytes)}"


def _notice(size: str, max_bytes: int) -> str:
    return f"[cut: {size} bytes in all, the first {max_bytes:,} are above. Ask for less, or for a part.]"
