"""Log lines of a run, or of one of its spans, on pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from pellucid_exporters.stored.log_lines import STACK, LogLineRow, LogLineWindow
from pellucid_exporters.stored.text import short
from pellucid_exporters.viewer.run.content import Contents

_LONGEST_SUMMARY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """A log line on a page.

    Attributes:
        kind: Word for its severity that colours it; empty if the severity is not known.
        text: Its text; `None` if it was not recorded.
        error: Message, or else type, of its exception.
        stack: Stack trace of its exception.
        summary: Beginning of its attributes.
        attributes: Its attributes, without those that are shown otherwise.
    """

    row: LogLineRow
    kind: str
    text: Markup | None
    error: str
    stack: Markup | None
    summary: str
    attributes: Markup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWindow:
    """Some of the log lines, with the addresses of those before and after.

    Attributes:
        first, last: Numbers of the first and the last of them.
        total: Number of all.
    """

    items: Sequence[ShownLine]
    first: int
    last: int
    total: int
    before: str
    after: str


def shown_window(window: LogLineWindow, contents: Contents, address: Callable[[int], str], most: int) -> ShownWindow:
    """Return log lines as a page shows them.

    Args:
        window: The lines.
        contents: Renders values.
        address: Returns the address of the lines up to a number.
        most: Maximum number of lines of a window.
    """
    first = window.last - len(window.rows)
    return ShownWindow(
        items=[_shown(row, contents) for row in window.rows],
        first=first + 1,
        last=window.last,
        total=window.total,
        before=address(first) if first else "",
        after=address(min(window.last + most, window.total)) if window.last < window.total else "",
    )


def _shown(row: LogLineRow, contents: Contents) -> ShownLine:
    facts, stack = row.facts, row.attributes.get(STACK)
    summary = ", ".join(f"{name}={_flat(value)}" for name, value in facts.items())
    return ShownLine(
        row=row,
        kind=row.word if row.severity else "",
        text=contents.text(row.body, "", "plain") if row.body is not None else None,
        error=short(_flat(row.error), 300),
        stack=contents.text(stack, "", "plain code") if isinstance(stack, str) else None,
        summary=short(summary, _LONGEST_SUMMARY),
        attributes=contents.value(facts) if facts else None,
    )


def _flat(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text[:300].split())
