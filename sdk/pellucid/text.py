"""Text that others wrote, made fit to be shown."""

from __future__ import annotations


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
