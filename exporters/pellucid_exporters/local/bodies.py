"""Large texts, stored once: by the digest of their content, compressed."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from typing import Final

LONGEST_INLINE: Final = 100
"""Characters of the longest text that is stored with its span."""

DIGEST: Final = 16
"""Bytes of a digest."""


def digest_of(content: bytes) -> bytes:
    """Return the digest of a text: BLAKE2b of its UTF-8."""
    return blake2b(content, digest_size=DIGEST).digest()


def utf8(text: str) -> bytes:
    """Encode a text; half of a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace")


def pack(content: bytes) -> bytes:
    """Compress a text."""
    return zlib.compress(content, 6)


def unpack(content: bytes) -> str:
    """Return the text."""
    return zlib.decompress(content).decode()
