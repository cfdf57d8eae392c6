"""Sanitizing and shortening of untrusted text for display."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_COMPARED: Final = 500
"""Maximum number of names to compare an unknown one with; 10,000 would block the event loop for half a second."""


def clean(text: object) -> str:
    """Replace characters that could disturb a terminal or forge a line; hubs, servers and models wrote the text."""
    content = str(text)
    if content.isprintable():
        return content
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in content)


def excerpt(text: object, length: int = 200) -> str:
    """Return the first `length` characters of a text, cleaned."""
    content = str(text)
    return clean(content) if len(content) <= length else f"{clean(content[:length])}…"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a remedy for an unknown name: the nearest right one, whatever its case, or else all of them."""
    by_lower = {other.lower(): other for other in names}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else f"use one of {', '.join(sorted(by_lower.values()))}"


def close_to(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests up to three similar names; empty if none is similar, or there are too many."""
    candidates = list(names)
    close = get_close_matches(name, candidates, n=3) if len(candidates) <= MAX_COMPARED else []
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


def shown_url(url: str) -> str:
    """Return a URL without user information, query and fragment, which may be secret; it need not be valid."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    host, path = rest[:end], rest[end:]
    if "@" in host:
        host = host.rpartition("@")[2]
    elif "@" in path and not host.rpartition(":")[2].isdigit() and ":" in host:
        return f"{scheme}{mark}…"  # a password with a slash or the like
    return f"{scheme}{mark}{host}{path.partition('#')[0].partition('?')[0]}"
