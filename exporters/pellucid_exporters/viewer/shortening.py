"""Names and texts that fit into one line."""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.text import visible

BEFORE_HIT: Final = 30
"""Characters before a hit that a line shows."""


def middle(text: str, limit: int) -> str:
    """Return a name of at most `limit` characters, shortened in its middle: beginning and end tell names apart."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[head + 1 - limit :]}"


def marked(text: str, wanted: str | None, limit: int) -> Markup:
    """Return the part of a text around the first hit, in which hits are marked."""
    pattern = re.compile(re.escape(wanted), re.IGNORECASE) if wanted else None
    hit = pattern.search(text) if pattern is not None else None
    start = max(0, hit.start() - BEFORE_HIT) if hit is not None and hit.end() > limit else 0
    shown = text[start : start + limit]
    parts = [Markup("…")] if start else []
    place = 0
    for found in pattern.finditer(shown) if pattern is not None else ():
        parts.append(escape(visible(shown[place : found.start()])))
        parts.append(Markup("<mark>{}</mark>").format(visible(found.group())))
        place = found.end()
    parts.append(escape(visible(shown[place:])))
    return Markup().join([*parts, "…"] if start + limit < len(text) else parts)
