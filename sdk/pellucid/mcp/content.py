"""What a server's tool returned, as text, data or content parts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, get_args

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
from pellucid.messages import BlobPart, Modality, Part, Parts, TextPart, UriPart
from pellucid.types import JSONValue

ABOVE: Final = "[see above]"
TELLING: Final = 64
"""Characters of a text that is not found inside another by chance."""

LOOKED_AT: Final = 1000
"""Values of structured content that are compared with the content; what has more of them is not taken for a copy."""

_KINDS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})

_MODALITIES: Final = get_args(Modality)


def to_value(result: CallToolResult) -> JSONValue:
    """Return what a tool of Pellucid would have returned.

    Text alone is joined by newlines. Structured content is returned as it is if the content only repeats it in text.
    Otherwise content parts are returned: without texts that the structured content repeats, and with what is new in it.

    Raises:
        ToolError: the server says that the tool failed.
    """
    parts = [_part(block) for block in result.content]
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    data = result.structured_content
    if result.is_error:
        raise ToolError("\n".join(texts) or _json(data) or "The tool failed and did not say why.")
    if data is None:
        return "\n".join(texts) if len(texts) == len(parts) else _distinct(parts)
    return _merged(_distinct(parts), texts, data)


def _merged(parts: tuple[Part, ...], texts: list[str], data: JSONValue) -> JSONValue:
    """Return content and structured content with everything in it once."""
    others = tuple(part for part in parts if not isinstance(part, TextPart))
    repeated = _repeats(texts, data)
    if repeated and not others:
        return data
    blobs = [part.content for part in others if isinstance(part, BlobPart)]
    if _is_known(data, parts, texts, blobs):
        return Parts(parts, data)
    rest = TextPart(_json(_without(data, blobs)))
    return Parts((*(others if repeated else parts), rest), data)


def _distinct(parts: list[Part]) -> tuple[Part, ...]:
    """Return the parts without blobs that were there before; a text may well be said twice."""
    blobs = {part.content: part for part in reversed(parts) if isinstance(part, BlobPart)}
    return tuple(part for part in parts if not isinstance(part, BlobPart) or blobs[part.content] is part)


def _part(block: ContentBlock) -> Part:
    match block:
        case TextContent():
            return TextPart(block.text)
        case ImageContent():
            return BlobPart(content=block.data, modality="image", mime_type=block.mime_type)
        case AudioContent():
            return BlobPart(content=block.data, modality="audio", mime_type=block.mime_type)
        case ResourceLink():
            return UriPart(uri=block.uri, modality=_modality(block.mime_type), mime_type=block.mime_type)
        case EmbeddedResource():
            return _resource(block.resource)


def _resource(contents: TextResourceContents | BlobResourceContents) -> Part:
    if isinstance(contents, TextResourceContents):
        return TextPart(contents.text)
    return BlobPart(content=contents.blob, modality=_modality(contents.mime_type), mime_type=contents.mime_type)


def _modality(mime_type: str | None) -> Modality:
    kind = (mime_type or "").partition("/")[0]
    return next((modality for modality in _MODALITIES if modality == kind), "document")


def _repeats(texts: list[str], data: JSONValue) -> bool:
    """Say whether each text, or all of them joined, is somewhere in the data: as it is, or as the JSON of a value."""
    values = list(islice(_values(data), LOOKED_AT))
    return all(_is_in(text, values) for text in texts) or _is_in("\n".join(texts), values)


def _is_in(text: str, values: list[JSONValue]) -> bool:
    bare, parsed = text.strip(), _parsed(text)
    return not bare or any(
        _holds(value.strip(), bare) if isinstance(value, str) else _same(value, parsed) for value in values
    )


def _is_known(data: JSONValue, parts: tuple[Part, ...], texts: list[str], blobs: list[str]) -> bool:
    """Say whether the content has all of the data, whatever it is wrapped in."""
    bare = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else data
    if any(_same(bare, value) for text in texts for value in islice(_values(_parsed(text)), LOOKED_AT)):
        return True
    values = list(islice(_values(data), LOOKED_AT + 1))
    leaves = [value for value in values if value is not None and not isinstance(value, dict | list)]
    words = {getattr(part, name, None) for part in parts for name in ("mime_type", "modality", "uri")} | _KINDS
    known = [text.strip() for text in [*texts, "\n".join(texts)]]

    def is_leaf_known(leaf: JSONValue) -> bool:
        if not isinstance(leaf, str):
            return False
        held = any(_holds(text, leaf.strip()) for text in known) or any(blob and blob in leaf for blob in blobs)
        return held or leaf in words

    return len(values) <= LOOKED_AT and all(map(is_leaf_known, leaves))


def _without(value: JSONValue, blobs: list[str]) -> JSONValue:
    """Return a structured value with a reference instead of blobs that the content has."""
    if isinstance(value, dict):
        return {key: _without(each, blobs) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, blobs) for each in value]
    return ABOVE if isinstance(value, str) and any(blob and blob in value for blob in blobs) else value


def _values(value: JSONValue) -> Iterator[JSONValue]:
    """Yield a value and all values inside of it, outer ones first."""
    pending = deque([value])
    while pending:
        value = pending.popleft()
        yield value
        if isinstance(value, dict | list):
            pending.extend(value.values() if isinstance(value, dict) else value)


def _holds(text: str, part: str) -> bool:
    """Say whether a text is another, or has it as a part that is too long to be there by chance."""
    return text == part or (len(part) >= TELLING and part in text)


def _same(value: JSONValue, other: JSONValue) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _parsed(text: str) -> JSONValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(data: Any) -> str:
    return "" if data is None else json.dumps(data, ensure_ascii=False)
