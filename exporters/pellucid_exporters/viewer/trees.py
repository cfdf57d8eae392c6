"""JSON values as nested, collapsible HTML of bounded size."""

from __future__ import annotations

import json
from typing import Any, Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.text import MOST, cut, size, visible

MOST_NODES: Final = 2_000
"""Values of one tree that a page shows."""

DEEPEST: Final = 40
"""Levels of one tree that a page shows."""

_OPEN_ITEMS: Final = 24
_OPEN_LEVELS: Final = 3


def tree(value: Any) -> Markup:
    """Return a JSON value as HTML; a container is collapsible."""
    return _Tree().render(value, 0)


class _Tree:
    """One tree, which counts its nodes."""

    def __init__(self) -> None:
        self._remaining = MOST_NODES

    def render(self, value: Any, level: int) -> Markup:
        self._remaining -= 1
        if not isinstance(value, dict | list):
            return _scalar(value)
        kind = "{}" if isinstance(value, dict) else "[]"
        if not value:
            return Markup('<span class="j-k">{}</span>').format(kind)
        if level >= DEEPEST:
            return Markup('<span class="cut">… deeper values</span>')
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        rows = [self._row(key, item, level) for key, item in pairs[: max(0, self._remaining)]]
        if len(rows) < len(pairs):
            rows.append(Markup('<li class="cut">… {} more</li>').format(len(pairs) - len(rows)))
        unit = "key" if isinstance(value, dict) else "item"
        is_open = level < _OPEN_LEVELS and len(pairs) <= _OPEN_ITEMS
        return Markup('<details class="j"{}><summary>{} {} {}{}</summary><ul>{}</ul></details>').format(
            Markup(" open") if is_open else "",
            kind,
            len(pairs),
            unit,
            "" if len(pairs) == 1 else "s",
            Markup().join(rows),
        )

    def _row(self, key: Any, item: Any, level: int) -> Markup:
        if self._remaining <= 0:
            return Markup('<li class="cut">…</li>')
        return Markup('<li><span class="j-k">{}</span> {}</li>').format(
            visible(cut(str(key), 200)), self.render(item, level + 1)
        )


def _scalar(value: Any) -> Markup:
    if not isinstance(value, str):
        return Markup('<span class="j-n">{}</span>').format(json.dumps(value))
    rest = Markup(' <span class="cut">… {}</span>').format(size(len(value))) if len(value) > MOST else ""
    return Markup('<span class="j-s">{}</span>{}').format(escape(visible(cut(value))), rest)
