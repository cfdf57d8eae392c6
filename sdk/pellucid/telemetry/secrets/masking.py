"""Masking of the secrets in texts."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pellucid.telemetry.secrets.search import find_secrets

MASK: Final = "[redacted]"


@lru_cache(maxsize=4096)
def mask_key(key: str) -> tuple[str, int]:
    """Mask a key that is itself a secret, as in a mapping by token; return the key and the work of the search."""
    return mask_text(key)


def mask_text(text: str, max_work: int | None = None) -> tuple[str, int]:
    """Mask the secrets in a text; return the text and the work of the search.

    If the work is more than `max_work`, the text was not searched to its end, and must not be recorded.
    """
    secrets, work = find_secrets(text, max_work)
    if not secrets:
        return text, work
    pieces: list[str] = []
    end = 0
    for start, stop, quote in secrets:
        pieces += text[end:start], f"{quote}{MASK}{quote}"
        end = stop
    return "".join([*pieces, text[end:]]), work
