"""Differences of recorded values in words: lines of text, settings by key, tools by name."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_LINES: Final = 2_000
"""Lines of each side that are compared; a longer content is cut."""

_OF_TOOLS: Final = frozenset({"tools", "catalogue", "policy"})
_KINDS: Final = {"-": "less", "+": "more", " ": "same", "@": "skip"}
_AT_START: Final = re.compile(r"@@ -[01](,\d+)? \+[01](,\d+)? @@")
"""Header of lines before which nothing is left out."""
_LONG: Final = 80
"""Characters of a text from which on its lines are compared."""

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two boundaries differ.

    Attributes:
        what: `prompt`, `catalogue`, `arguments`, `answer`, `outcome`, …
        lines: Lines of the difference with their kind: `same`, `less` (only in the first run), `more`, `skip`.
    """

    what: str
    lines: Sequence[Line]


def compared(what: str, one: Any, other: Any) -> list[Line]:
    """Return the lines in which two values differ: tools by name, objects by key, all else as text."""
    if what in _OF_TOOLS and isinstance(one, list) and isinstance(other, list):
        return of_tools(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(by_key(one, other))
    return difference(one, other)


def difference(one: Any, other: Any) -> list[Line]:
    """Return the lines in which two values differ, as JSON or text, with two lines around them, and their kinds."""
    lines = list(difflib.unified_diff(_lines(one), _lines(other), n=2, lineterm=""))[2:]  # without the file names
    if lines and _AT_START.match(lines[0]):
        del lines[0]
    return [(_KINDS[line[0]], "⋯" if line[0] == "@" else line[1:]) for line in lines]


def by_key(one: Any, other: Any, path: str = "") -> Iterator[Line]:
    """Yield what differs in two JSON values, each line with the path of its key."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            inner = f"{path}.{key}" if path else str(key)
            if key not in other:
                yield "less", _entry(inner, one[key])
            elif key not in one:
                yield "more", _entry(inner, other[key])
            else:
                yield from by_key(one[key], other[key], inner)
    elif _are_alike(one, other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from by_key(left, right, f"{path}[{index}]")
    elif one != other:
        if isinstance(one, str) and isinstance(other, str) and max(len(one), len(other)) > _LONG:
            yield "same", f"{path}:"
            yield from difference(one, other)
        else:
            is_plain = isinstance(one, str) and isinstance(other, str)  # else "1" and 1 look alike
            yield "less", _entry(path, one, is_plain=is_plain)
            yield "more", _entry(path, other, is_plain=is_plain)


def of_tools(one: Sequence[Any], other: Sequence[Any]) -> list[Line]:
    """Return which tools were added, removed and changed, with what changed in them."""
    old, new = _by_name(one), _by_name(other)
    lines: list[Line] = [("less", _headline(tool)) for name, tool in old.items() if name not in new]
    lines += [("more", _headline(tool)) for name, tool in new.items() if name not in old]
    for name, tool in old.items():
        changes = list(by_key(tool, new[name])) if name in new else []
        if changes:
            lines += [("same", f"{name}:"), *((kind, f"  {line}") for kind, line in changes)]
    if not lines and list(old) != list(new):
        lines = [("less", f"order: {', '.join(old)}"), ("more", f"order: {', '.join(new)}")]
    return lines


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two values are lists of as many objects, which are compared one by one."""
    return (
        isinstance(one, list)
        and isinstance(other, list)
        and len(one) == len(other)
        and all(isinstance(item, Mapping) for item in (*one, *other))
    )


def _entry(path: str, value: Any, *, is_plain: bool = True) -> str:
    shown = value if is_plain and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{path}: {shown}"


def _by_name(tools: Iterable[Any]) -> dict[str, Any]:
    return {str(tool.get("name")): tool for tool in tools if isinstance(tool, Mapping)}


def _headline(tool: Mapping[str, Any]) -> str:
    description = str(tool.get("description") or "").partition("\n")[0]
    return f"{tool.get('name')}: {description}" if description else str(tool.get("name"))


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text.split("\n")[:MOST_LINES]
