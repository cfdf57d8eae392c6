"""Compressed bodies that are far larger than what is sent."""

from __future__ import annotations

import zlib
from typing import Final

MIB: Final = 2**20
_WBITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS, "raw deflate": -zlib.MAX_WBITS}


def compressed(body: bytes, encoding: str = "gzip") -> bytes:
    """Return a body in a content encoding; `raw deflate` is what some servers call deflate."""
    if encoding == "identity":
        return body
    packer = zlib.compressobj(wbits=_WBITS[encoding])
    return packer.compress(body) + packer.flush()


def bomb(size: int, *, start: bytes = b'{"a": "', encoding: str = "gzip") -> bytes:
    """Return what decompresses to `size` MiB of one JSON text, without ever holding that."""
    packer = zlib.compressobj(9, wbits=_WBITS[encoding])
    mebibyte = b"x" * MIB
    return packer.compress(start) + b"".join(packer.compress(mebibyte) for _ in range(size)) + packer.flush()


def name_of(encoding: str) -> str:
    """Return the value of `content-encoding`."""
    return encoding.removeprefix("raw ")
