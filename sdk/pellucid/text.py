"""Text that others wrote, made fit to be shown."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

COMPARED: Final = 500
"""Names that a wrong one is compared with; with 10,000 the event loop would stand still for half a second."""


def clean(text: object) -> str:
    """Make text harmless for a terminal and for whoever reads line by line: hubs, servers and models wrote it."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in said)


def excerpt(text: object, most: int = 200) -> str:
    """Return the beginning of a text, harmless."""
    found = str(text)
    return clean(found) if len(found) <= most else f"{clean(found[:most])}…"


def close_to(name: str, names: Iterable[str]) -> str:
    """Return the question whether one of up to three similar names was meant; empty if none is, or there are many."""
    known = list(names)
    close = get_close_matches(name, known, n=3) if len(known) <= COMPARED else []
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""
