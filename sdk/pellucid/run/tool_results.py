"""What a tool returned, as something a model can be sent."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any, Final, get_args

import anyio
import anyio.to_thread
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from pellucid.errors import ToolError
from pellucid.messages import Part, TextPart, ToolResult
from pellucid.types import JSONValue

LARGE: Final = 64 * 1024
"""Bytes from which a result is written in a worker thread."""

_PARTS: Final = get_args(Part)
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})

_BATCH: Final = 256
"""Items that are written at once, if none has others in it."""


async def respond(value: object, most: int) -> JSONValue:
    """Return a result as `to_response` does; a large one is written in a worker thread, so that other runs do not wait.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    if isinstance(value, str) or _is_small(value):
        return to_response(value, most)
    # A limiter of its own: threads of the application must not keep results waiting.
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(to_response, value, most, True, abandon_on_cancel=True, limiter=limiter)


def to_response(value: object, most: int, is_large: bool = False) -> JSONValue:
    """Return text, JSON-able data or a tuple of parts; what has over `most` bytes is cut, with a notice.

    Of a value that is large no more is written than its beginning.

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
        if is_large and (beginning := _beginning(value, most)) is not None:
            return beginning
        data = _jsonable(value)
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


def _is_small(value: object) -> bool:
    """Return whether a value certainly has less than `LARGE` bytes, after looking at no more than that."""
    left, waiting = LARGE, [value]
    while waiting and left >= 0:
        item = waiting.pop()
        left -= 2
        if isinstance(item, str | bytes):
            left -= len(item)
            continue
        within = _within(item)
        left -= 2 * len(within)
        if left >= 0:
            waiting.extend(within)
    return left >= 0


def _within(value: object) -> Collection[object]:
    """Return what a value consists of."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, BaseModel):
        return value.__dict__.values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return ()


def _beginning(value: object, most: int) -> str | None:
    """Return the JSON of a value cut at `most` bytes, with a notice, without writing the rest; None if it has less."""
    pieces: list[str] = []
    left = most
    for piece in _written(value):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            text = "".join(pieces)[: most + 1].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
            return f"{text}\n{_notice(f'over {most:,}', most)}"
    return None


def _written(value: Any) -> Iterator[str]:
    """Yield the JSON of a value piece by piece."""
    if isinstance(value, dict):
        yield "{"
        for number, batch in enumerate(_batches(value.items())):
            yield ", " if number else ""
            if _LEAVES.issuperset(map(type, dict(batch).values())):
                yield _dumps(dict(batch))[1:-1]
            else:
                for n, (key, item) in enumerate(batch):
                    yield (", " if n else "") + _dumps({key: 0})[1:-2]
                    yield from _written(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, batch in enumerate(_batches(value)):
            yield ", " if number else ""
            if _LEAVES.issuperset(map(type, batch)):
                yield _dumps(batch)[1:-1]
            else:
                for n, item in enumerate(batch):
                    yield ", " if n else ""
                    yield from _written(item)
        yield "]"
    else:
        yield _dumps(value)


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _jsonable(value: object) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")


def _dumps(value: object) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False)


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
    return f"{kept}\n{_notice(f'{len(encoded):,}', most)}"


def _notice(size: str, most: int) -> str:
    return f"[cut: {size} bytes in all, the first {most:,} are above. Ask for less, or for a part.]"
