"""Results of a server's tools, converted to text, data or content parts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from pellucid.errors import ToolError
from pellucid.messages import BlobPart, Part, Parts, TextPart, UriPart, modality_of
from pellucid.types import JSONValue

ABOVE: Final = "[see above]"
DISTINCTIVE: Final = 64
"""Shortest text, in characters, that is unlikely to be part of another by chance."""

MAX_VALUES: Final = 1000
"""Values of structured content that are compared with the content. Content with more is not taken for a copy."""

_KINDS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})


def to_value(result: CallToolResult) -> JSONValue:
    """Convert a tool result of the server to the value that a local tool would return.

    Texts are joined by newlines if there is nothing else. Structured content is returned unchanged if the content only
    repeats it as text. Otherwise the result is content parts: those that the structured content does not repeat,
    followed by the structured content that is not in them.

    Raises:
        ToolError: the server reports that the tool failed.
    """
    parts = [part_of(block) for block in result.content]
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    data = result.structured_content
    if result.is_error:
        raise ToolError("\n".join(texts) or _json(data) or "The tool failed without an error message.")
    if data is None:
        return "\n".join(texts) if len(texts) == len(parts) else _distinct(parts)
    return _merged(_distinct(parts), texts, data)


def _merged(parts: tuple[Part, ...], texts: list[str], data: JSONValue) -> JSONValue:
    """Merge content and structured content without duplicates."""
    others = tuple(part for part in parts if not isinstance(part, TextPart))
    repeated = _repeats(texts, data)
    if repeated and not others:
        return data
    blobs = [part.content for part in others if isinstance(part, BlobPart)]
    if _is_covered(data, parts, texts, blobs):
        return Parts(parts, data)
    rest = TextPart(_json(_without(data, blobs)))
    return Parts((*(others if repeated else parts), rest), data)


def _distinct(parts: list[Part]) -> tuple[Part, ...]:
    """Remove repeated blobs. Texts may repeat."""
    blobs = {part.content: part for part in reversed(parts) if isinstance(part, BlobPart)}
    return tuple(part for part in parts if not isinstance(part, BlobPart) or blobs[part.content] is part)


def part_of(block: ContentBlock) -> Part:
    """Convert content of the server."""
    match block:
        case TextContent():
            return TextPart(block.text)
        case ImageContent():
            return BlobPart(content=block.data, modality="image", mime_type=block.mime_type)
        case AudioContent():
            return BlobPart(content=block.data, modality="audio", mime_type=block.mime_type)
        case ResourceLink():
            return UriPart(uri=block.uri, modality=modality_of(block.mime_type), mime_type=block.mime_type)
        case EmbeddedResource():
            return part_of_resource(block.resource)


def part_of_resource(contents: TextResourceContents | BlobResourceContents) -> Part:
    """Convert the contents of a resource."""
    if isinstance(contents, TextResourceContents):
        return TextPart(contents.text)
    return BlobPart(content=contents.blob, modality=modality_of(contents.mime_type), mime_type=contents.mime_type)


def _repeats(texts: list[str], data: JSONValue) -> bool:
    """Return whether the data contains each text, or all of them joined: as a string, or as the JSON of a value."""
    values = list(islice(_values(data), MAX_VALUES))
    return all(_is_in(text, values) for text in texts) or _is_in("\n".join(texts), values)


def _is_in(text: str, values: list[JSONValue]) -> bool:
    bare, parsed = text.strip(), _parsed(text)
    return not bare or any(
        _contains(value.strip(), bare) if isinstance(value, str) else _same(value, parsed) for value in values
    )


def _is_covered(data: JSONValue, parts: tuple[Part, ...], texts: list[str], blobs: list[str]) -> bool:
    """Return whether the content contains all of the data, also inside a wrapper."""
    bare = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else data
    if any(_same(bare, value) for text in texts for value in islice(_values(_parsed(text)), MAX_VALUES)):
        return True
    values = list(islice(_values(data), MAX_VALUES + 1))
    leaves = [value for value in values if value is not None and not isinstance(value, dict | list)]
    words = {getattr(part, name, None) for part in parts for name in ("mime_type", "modality", "uri")} | _KINDS
    stripped = [text.strip() for text in [*texts, "\n".join(texts)]]

    def is_leaf_covered(leaf: JSONValue) -> bool:
        if not isinstance(leaf, str):
            return False
        is_repeated = any(_contains(text, leaf.strip()) for text in stripped) or any(
            blob and blob in leaf for blob in blobs
        )
        return is_repeated or leaf in words

    return len(values) <= MAX_VALUES and all(map(is_leaf_covered, leaves))


def _without(value: JSONValue, blobs: list[str]) -> JSONValue:
    """Replace texts with a blob that the content has by a reference to it."""
    if isinstance(value, dict):
        return {key: _without(member, blobs) for key, member in value.items()}
    if isinstance(value, list):
        return [_without(item, blobs) for item in value]
    return ABOVE if isinstance(value, str) and any(blob and blob in value for blob in blobs) else value


def _values(value: JSONValue) -> Iterator[JSONValue]:
    """Yield a value and all values nested in it, outer ones first."""
    pending = deque([value])
    while pending:
        value = pending.popleft()
        yield value
        if isinstance(value, dict | list):
            pending.extend(value.values() if isinstance(value, dict) else value)


def _contains(text: str, part: str) -> bool:
    """Return whether a text equals `part`, or contains it where it is too long for a coincidence."""
    return text == part or (len(part) >= DISTINCTIVE and part in text)


def _same(value: JSONValue, other: JSONValue) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _parsed(text: str) -> JSONValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(data: Any) -> str:
    return "" if data is None else json.dumps(data, ensure_ascii=False)
