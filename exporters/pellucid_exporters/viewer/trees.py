"""JSON values as nested, collapsible HTML of bounded size."""

from __future__ import annotations

import json
from typing import Any, Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.text import MOST, cut, lines_cut, size, visible

MOST_NODES: Final = 2_000
"""Values of one tree that a page shows."""

DEEPEST: Final = 40
"""Levels of one tree that a page shows."""

SHORT: Final = 90
"""Characters of a container that is shown on one line."""

_OPEN_ITEMS: Final = 24
_OPEN_LEVELS: Final = 3


def tree(value: Any, most: int = MOST_NODES, longest: int = MOST) -> Markup:
    """Return a JSON value as HTML; a container is collapsible, a short one a line.

    Args:
        value: The value.
        most: Number of its values that are shown.
        longest: Characters of a text that are shown.
    """
    return Markup('<div class="j">{}</div>').format(_Tree(most, longest).render(Markup(), value, 0))


class _Tree:
    """One tree, which counts its nodes."""

    def __init__(self, most: int, longest: int) -> None:
        self._remaining, self._longest = most, longest

    def render(self, key: Markup, value: Any, level: int) -> Markup:
        self._remaining -= 1
        if not isinstance(value, dict | list):
            return Markup("{}{}").format(key, _scalar(value, self._longest))
        if _is_short(value):
            return Markup("{}{}").format(key, _line(value))
        if level >= DEEPEST:
            return Markup('{}<span class="cut">… deeper values</span>').format(key)
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        rows = [self._row(name, item, level) for name, item in pairs[: max(0, self._remaining)]]
        if len(rows) < len(pairs):
            rows.append(Markup('<li class="cut">… {} more</li>').format(len(pairs) - len(rows)))
        is_open = level < _OPEN_LEVELS and len(pairs) <= _OPEN_ITEMS
        return Markup('<details{}><summary>{}<span class="j-k">{}</span></summary><ul>{}</ul></details>').format(
            Markup(" open") if is_open else "",
            key,
            f"{{{len(pairs)}}}" if isinstance(value, dict) else f"[{len(pairs)}]",
            Markup().join(rows),
        )

    def _row(self, key: Any, item: Any, level: int) -> Markup:
        if self._remaining <= 0:
            return Markup('<li class="cut">…</li>')
        return Markup("<li>{}</li>").format(self.render(_key(key), item, level + 1))


def _is_short(value: dict[str, Any] | list[Any]) -> bool:
    """Return whether a container of scalars fits on a line."""
    items = list(value.values()) if isinstance(value, dict) else value
    if len(items) > SHORT or any(isinstance(item, dict | list) and item for item in items):
        return False
    if any(isinstance(item, str) and (len(item) > SHORT or "\n" in item) for item in items):
        return False
    return len(json.dumps(value, ensure_ascii=False)) <= SHORT


def _line(value: dict[str, Any] | list[Any]) -> Markup:
    comma = Markup(", ")
    if isinstance(value, list):
        return Markup("[{}]").format(comma.join(map(_scalar, value)))
    pairs = comma.join(Markup("{}{}").format(_key(key), _scalar(item)) for key, item in value.items())
    return Markup("{{{}}}").format(pairs)


def _key(key: Any) -> Markup:
    return Markup('<span class="j-k">{}:</span> ').format(visible(cut(str(key), 200)))


def _scalar(value: Any, longest: int = MOST) -> Markup:
    if not isinstance(value, str):
        return Markup('<span class="j-n">{}</span>').format(json.dumps(value))
    rest = (
        Markup(' <span class="cut">… {}{}</span>').format(size(len(value)), lines_cut(value, longest))
        if len(value) > longest
        else ""
    )
    return Markup('<span class="j-s">{}</span>{}').format(escape(visible(cut(value, longest))), rest)
