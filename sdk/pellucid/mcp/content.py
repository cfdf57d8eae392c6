"""What a server's tool returned, as text, data or content parts."""

from __future__ import annotations

import json
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
from pellucid.messages import BlobPart, Modality, Part, TextPart, UriPart
from pellucid.types import JSONValue

_MODALITIES: Final = get_args(Modality)


def to_value(result: CallToolResult) -> JSONValue:
    """Return what a tool of Pellucid would have returned.

    Text alone is joined by newlines. Structured content is returned as it is if the text only repeats it. What is left,
    images for instance, becomes a tuple of content parts.

    Raises:
        ToolError: the server says that the tool failed.
    """
    parts = [_part(block) for block in result.content]
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    data = result.structured_content
    if result.is_error:
        raise ToolError("\n".join(texts) or _json(data) or "The tool failed and did not say why.")
    if data is None:
        return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)
    if _repeats(texts, data):
        parts = [part for part in parts if not isinstance(part, TextPart)]
    return data if not parts else (*parts, TextPart(_json(data)))


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


def _repeats(texts: list[str], data: Any) -> bool:
    """Say whether the text is only another spelling of the data; servers wrap what is not an object in `result`."""
    bare = data["result"] if isinstance(data, dict) and data.keys() == {"result"} else data
    if not texts or any(_same("\n".join(texts), value) for value in (data, bare)):
        return True
    return isinstance(bare, list) and len(bare) == len(texts) and all(map(_same, texts, bare))


def _same(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


def _json(data: Any) -> str:
    return "" if data is None else json.dumps(data, ensure_ascii=False)
