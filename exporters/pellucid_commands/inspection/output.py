"""Text of the commands: one line for each row, in which hostile content is visible and does nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from pellucid_exporters.stored.text import visible

_NARROWEST: Final = 20
_LEAST: Final = 10
"""Columns that a name or text has at least, if there are so many."""
_GAP: Final = 2


def say(*lines: str) -> None:
    """Print lines; characters that the terminal cannot show or would obey are replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(visible(line).replace("\n", "␊").encode(encoding, "replace").decode(encoding))


def say_json(document: Any) -> None:
    """Print a JSON object in ASCII."""
    print(json.dumps(document, indent=2))


def flat(text: str | None) -> str:
    """Return text as a part of a line."""
    return " ".join((text or "").split())


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    names: Sequence[str] = (),
    texts: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table. In a terminal it fits the width: names and texts give way, then columns.

    Args:
        titles: Titles of the columns.
        rows: Cells.
        right: Titles of the columns that are aligned to the right.
        names: Titles of the columns that are cut in the middle.
        texts: Titles of the columns that are cut at their end.
        spare: Titles of the columns that are left out if names and texts would have too little room, in this order.
    """
    columns: list[Sequence[str]] = list(
        zip(titles, *([visible(flat(cell)) for cell in row] for row in rows), strict=True)
    )
    width, elastic = terminal_width(), {*names, *texts}
    if width is not None:
        for title in spare:
            if _needed(columns, elastic) <= width:
                break
            columns = [column for column in columns if column[0] != title]
        excess = sum(max(map(len, column)) for column in columns) + _GAP * (len(columns) - 1) - width
        columns = _narrowed(columns, excess, names, elastic)
    widths = [max(map(len, column)) for column in columns]
    shown = [column[0] in right for column in columns]
    return [cut(_line(row, widths, shown)) for row in zip(*columns, strict=True)]


def _needed(columns: Sequence[Sequence[str]], elastic: Collection[str]) -> int:
    """Return the width of a table whose names and texts have the least room."""
    widths = [(max(map(len, column)), column[0] in elastic) for column in columns]
    return sum(min(width, _LEAST) if gives else width for width, gives in widths) + _GAP * (len(columns) - 1)


def _narrowed(
    columns: Sequence[Sequence[str]], excess: int, names: Collection[str], elastic: Collection[str]
) -> list[Sequence[str]]:
    """Return columns of which the widest elastic ones are cut until the table fits."""
    widths = {column[0]: max(map(len, column)) for column in columns if column[0] in elastic}
    for _ in range(max(0, excess)):
        widest = max(widths, key=lambda title: widths[title], default="")
        if widths.get(widest, 0) <= _LEAST:
            break
        widths[widest] -= 1
    return [
        [(middle if column[0] in names else short)(cell, widths[column[0]]) for cell in column]
        if column[0] in widths
        else column
        for column in columns
    ]


def middle(text: str, width: int) -> str:
    """Return text of at most some columns, without its middle: names differ at both ends."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def short(text: str, width: int) -> str:
    """Return text of at most some columns, without its end."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def terminal_width() -> int | None:
    """Return the columns of the terminal; None if the output is read by a program."""
    return max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = zip(row, widths, right, strict=True)
    return "  ".join(f"{cell:>{width}}" if is_right else f"{cell:<{width}}" for cell, width, is_right in cells).rstrip()


def cut(line: str) -> str:
    """Return a line that fits the terminal; all of it if it is read by a program."""
    width = terminal_width()
    return line if width is None else short(line, width)
