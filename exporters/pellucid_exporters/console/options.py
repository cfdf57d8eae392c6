"""Options of the console."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Options of the console.

    Attributes:
        content: Show recorded input and output; by default only in a notebook, folded.
        live: Show runs while they are in progress; by default in a notebook, and in a terminal with colours, which
            needs the extra `console`. Elsewhere each run is written when it ends.
        color: Use colours; by default as the stream, `NO_COLOR`, `FORCE_COLOR` and `TERM` say. Needs the extra
            `console`.
        width: Columns; by default those of the terminal, or without one `COLUMNS` or 100.
        stream: Output stream; by default the notebook, or standard output.
    """

    content: bool | None = None
    live: bool | None = None
    color: bool | None = None
    width: int | None = None
    stream: TextIO | None = None
