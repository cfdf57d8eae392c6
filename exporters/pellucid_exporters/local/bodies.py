"""Large texts, stored once: by the digest of their content, compressed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3

LONGEST_INLINE: Final = 100
"""Characters of the longest text that is stored with its span."""

DIGEST: Final = 16
"""Bytes of a digest."""

_MOST_KNOWN: Final = 65_536
_FRESH: Final = 60
"""Seconds for which the use of a large text is not noted again."""

_INSERT: Final = (
    "INSERT INTO bodies VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE SET used = max(used, excluded.used)"
)


class BodyWriter:
    """Writer of large texts. It knows which the store has until `forget`."""

    def __init__(self) -> None:
        self._used: dict[bytes, float] = {}
        self._packed: dict[bytes, bytes] = {}

    def forget(self) -> None:
        """Write all texts again: the store may be another one."""
        self._used = {}

    def prepare(self, texts: Iterable[Mapping[bytes, bytes]]) -> None:
        """Compress texts before the transaction, for which other processes wait."""
        self._packed = {digest: pack(content) for digest, content in self._due(texts).items()}

    def write(self, connection: sqlite3.Connection, texts: Iterable[Mapping[bytes, bytes]]) -> Iterable[bytes]:
        """Write the texts, by digest, that were not written within the last minute; return their digests."""
        due, now = self._due(texts), int(time.time())
        rows = [(digest, now, self._packed.get(digest) or pack(content)) for digest, content in due.items()]
        connection.executemany(_INSERT, rows)
        return due.keys()

    def remember(self, digests: Iterable[bytes]) -> None:
        """Note texts that the store has: their transaction has succeeded."""
        if len(self._used) >= _MOST_KNOWN:
            self._used.clear()
        self._used.update(dict.fromkeys(digests, time.time()))
        self._packed = {}

    def _due(self, texts: Iterable[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
        now, used = time.time(), self._used
        return {
            digest: content
            for bodies in texts
            for digest, content in bodies.items()
            if not 0 <= now - used.get(digest, 0.0) < _FRESH
        }


def digest_of(content: bytes) -> bytes:
    """Return the digest of a text: BLAKE2b of its UTF-8."""
    return blake2b(content, digest_size=DIGEST).digest()


def utf8(text: str) -> bytes:
    """Encode a text; half of a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace")


def storable(text: str) -> str:
    """Return a text that SQLite accepts: half of a surrogate pair becomes `?`."""
    return text if text.isascii() else utf8(text).decode()


def pack(content: bytes) -> bytes:
    """Compress a text."""
    return zlib.compress(content, 6)


def unpack(content: bytes) -> str:
    """Return the text."""
    return zlib.decompress(content).decode()
