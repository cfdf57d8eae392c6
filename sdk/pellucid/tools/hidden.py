"""Characters of tool definitions that people do not see: found once per tool, removed towards models, and reported."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pellucid.tools.tool import Tool

MOST_SHOWN: Final = 300
"""Maximum characters of a reported text."""

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
_TAGS: Final = re.compile("[\U000e0020-\U000e007e]+")
_JOINERS: Final = "\u200c\u200d"

_PLACES: Final = {
    "listed_name": "name",
    "description": "description",
    "input_schema": "input_schema",
    "output_schema": "output_schema",
}
"""Attributes of tools with text of a hub, each with its name in reports; only a `RenamedTool` has the first."""

_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the hub, each with a schema."""

_DATA: Final = frozenset({"enum", "const", "default", "examples", "required", "pattern", "$ref"})
"""Keywords whose texts are part of calls, which would fail with other texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenText:
    """Text of a tool with hidden characters.

    Attributes:
        tool_name: Name of the tool.
        place: Where the text is: `name` (as the server lists it), `description`, or a place in a schema.
        text: The text around the first hidden character, with the hidden ones escaped.
        removed: Whether the model gets the text without them; False for names and values that calls repeat.
    """

    tool_name: str
    place: str
    text: str
    removed: bool


def visible(text: str) -> str:
    """Return a text without its hidden characters; joiners stay between letters or emoji, line breaks and tabs too."""
    return _HIDDEN.sub(lambda found: found[0] if _joins(found) else "", text)


def escaped(text: str) -> str:
    r"""Return a text with hidden characters as `\u202e`, and texts of tag characters readable as `\tags{...}`."""
    text = _TAGS.sub(lambda found: f"\\tags{{{''.join(chr(ord(tag) - 0xE0000) for tag in found[0])}}}", text)
    return _HIDDEN.sub(lambda found: found[0] if _joins(found) else ascii(found[0])[1:-1], text)


def without_hidden(tool: Tool) -> tuple[Tool, tuple[HiddenText, ...]]:
    """Return a tool as models may see it, and what was hidden in it."""
    found: list[HiddenText] = []

    def clean(text: str, place: str, *, is_data: bool = False) -> str:
        if (first := _first(text)) is None:
            return text
        excerpt = text[max(0, first - 40) : first + MOST_SHOWN]
        found.append(
            HiddenText(tool_name=tool.name, place=place, text=escaped(excerpt)[:MOST_SHOWN], removed=not is_data)
        )
        return text if is_data else visible(text)

    def schema(value: Any, place: str, *, is_data: bool = False, named: bool = False) -> Any:
        if isinstance(value, str):
            return clean(value, place, is_data=is_data)
        if isinstance(value, list | tuple):
            return [schema(item, place, is_data=is_data) for item in value]
        if not isinstance(value, dict):
            return value
        for key in value:
            clean(str(key), f"{place}, a name", is_data=True)
        return {
            key: schema(
                item,
                f"{place}.{escaped(str(key))}",
                is_data=is_data or (not named and key in _DATA),
                named=not named and key in _SCHEMAS,
            )
            for key, item in value.items()
        }

    changes: dict[str, Any] = {}
    for name, place in _PLACES.items():
        if (given := getattr(tool, name, None)) is not None:
            changes[name] = schema(given, place)
    return (replace(tool, **changes) if any(item.removed for item in found) else tool), tuple(found)


def _first(text: str) -> int | None:
    return next((found.start() for found in _hidden(text)), None)


def _hidden(text: str) -> Iterator[re.Match[str]]:
    return (found for found in _HIDDEN.finditer(text) if not _joins(found))


def _joins(found: re.Match[str]) -> bool:
    """Return whether it is a joiner between two letters of a script that has joiners, or between emoji."""
    if found[0] not in _JOINERS:
        return False
    text, start, end = found.string, found.start(), found.end()
    return start > 0 and end < len(text) and _is_joined(text[start - 1]) and _is_joined(text[end])


def _is_joined(character: str) -> bool:
    return character > "\u02ff" and unicodedata.category(character) in {"Lo", "Mn", "Mc", "So", "Sk"}
