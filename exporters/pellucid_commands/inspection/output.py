"""Text of the commands: one line for each row, in which hostile content is visible and does nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pellucid_exporters.stored.text import visible

_NARROWEST: Final = 20


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


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table; in a terminal, the last column is cut to its width.

    Args:
        titles: Titles of the columns.
        rows: Cells.
        right: Titles of the columns that are aligned to the right.
    """
    cells = [list(titles), *([visible(flat(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [cut(_line(row, titles, widths, right)) for row in cells]


def _line(row: Sequence[str], titles: Sequence[str], widths: Sequence[int], right: Sequence[str]) -> str:
    pairs = zip(row, titles, widths, strict=True)
    return "  ".join(
        f"{cell:>{width}}" if title in right else f"{cell:<{width}}" for cell, title, width in pairs
    ).rstrip()


def cut(line: str) -> str:
    """Return a line that fits the terminal; all of it if it is read by a program."""
    if not sys.stdout.isatty():
        return line
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    return line if len(line) <= width else f"{line[: width - 1]}…"
