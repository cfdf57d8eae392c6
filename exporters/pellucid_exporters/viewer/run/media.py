"""Images and audio in recorded content: what they are, and their bytes by digest."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"})
"""Types of images that are shown; none of them can have script."""

AUDIO: Final = frozenset(
    {"audio/mpeg", "audio/mp3", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/mp4"}
)
"""Types of audio that can be played."""

DATA_URI: Final = re.compile(
    r"data:(?P<type>(?:image|audio)/[a-z0-9.+-]{1,40});base64,(?P<content>[A-Za-z0-9+/=_-]{4,})", re.IGNORECASE
)


class Media(NamedTuple):
    """An image, audio or other content as base64. Attributes: type: Its MIME type; empty if unknown."""

    type: str
    content: str

    @property
    def digest(self) -> str:
        """Its id in an address."""
        return hashlib.sha256(f"{self.type}:{self.content}".encode(errors="replace")).hexdigest()[:24]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.content.rstrip("=")) * 3 // 4

    def data(self) -> bytes | None:
        """Return the bytes; `None` if the content is no base64, because it was cut or redacted."""
        content = self.content.translate(str.maketrans("-_", "+/")).rstrip("=")
        try:
            return base64.b64decode(content + "=" * (-len(content) % 4), validate=True)
        except binascii.Error:
            return None


def blob(part: Any) -> Media | None:
    """Return the content of a part of a message that is a blob; `None` if it is none."""
    if not isinstance(part, dict) or part.get("type") != "blob" or not isinstance(part.get("content"), str):
        return None
    return Media(str(part.get("mime_type") or "").lower(), part["content"])


def media_in(value: Any) -> Iterator[Media]:
    """Yield the images, audio and other blobs of a recorded value."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        found = blob(item)
        if found is not None:
            yield found
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            yield from (Media(match["type"].lower(), match["content"]) for match in DATA_URI.finditer(item))
