"""Tokens of requests: as the vendor counted those of the last answer, and an estimate of what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic_core import PydanticSerializationError, to_json

from pellucid.messages import BlobPart, FilePart, Message, Part, ToolResult, UriPart
from pellucid.models import ModelRequest

ATTACHMENT: Final = 256
"""Estimated tokens of an image, or of other content that is not text."""

BYTES: Final = 4
"""Bytes of JSON of one token."""


@dataclass(slots=True)
class TokenCount:
    """Tokens of a growing conversation.

    Attributes:
        counted: Tokens of its messages so far, as the vendor counts them; None if it does not.
        seen: Number of these messages, of which the last one is the answer.
        last: The message before the answer; None after a pause.
    """

    counted: int | None = None
    seen: int = 0
    last: Message | None = None

    def settle(self, messages: Sequence[Message], tokens: int | None) -> None:
        """Take over the tokens of a request with these messages and of its answer; None if they are unknown."""
        self.counted, self.seen = tokens, len(messages) + 1
        self.last = messages[-1] if messages else None

    def of(self, messages: Sequence[Message], estimated: Callable[[], int]) -> int:
        """Return the tokens of a request with these messages; `estimated` if they do not continue the counted ones."""
        if self.counted is None or not self._continue(messages):
            return estimated()
        return self.counted + sum(estimate(message.parts) for message in messages[self.seen :])

    def _continue(self, messages: Sequence[Message]) -> bool:
        before = self.seen - 1
        return len(messages) >= before and (self.last is None or messages[before - 1] is self.last)


def estimate(parts: Sequence[Part]) -> int:
    """Return the approximate number of tokens of the parts of a message."""
    tokens = size = 0
    for part in parts:
        if isinstance(part, BlobPart | FilePart | UriPart):
            tokens += ATTACHMENT
        elif isinstance(part, ToolResult) and isinstance(part.response, tuple):
            tokens += estimate(part.response)
        else:
            size += _size(part.to_dict())
    return tokens - -size // BYTES


def overhead(request: ModelRequest) -> int:
    """Return the approximate number of tokens of a request without its messages."""
    size = len((request.instructions or "").encode("utf-8", "replace"))
    if request.output is not None:
        size += _size(request.output.schema)
    return -(-size // BYTES) + sum(-(-_size(tool.to_dict()) // BYTES) for tool in request.tools)


def _size(value: object) -> int:
    try:
        return len(to_json(value, fallback=str))
    except (PydanticSerializationError, ValueError):  # of a lone surrogate
        return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))
