"""Text of the demos on standard output: titles, rows and paragraphs."""

from __future__ import annotations

import io
import logging
import sys
import textwrap
import warnings
from typing import Final

from pellucid.text import clean
from pellucid_exporters.console.terminal import has_colors

WIDTH: Final = 98
COLLECTOR: Final = "http://localhost:4318"
"""Address of a collector, to be suggested."""


def prepare_output() -> None:
    """Silence logs and warnings of libraries, so that the terminal shows only the demo."""
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # trees and commit messages in a terminal without Unicode


def use_color(*, no_color: bool) -> bool:
    """Return whether to use colours: as the terminal and the environment say, unless disabled."""
    return not no_color and has_colors(sys.stdout)


def title(text: str, *, color: bool) -> None:
    """Print a heading: bold, or underlined without colours."""
    say(f"\033[1m{text}\033[0m" if color else f"{text}\n{'-' * len(text)}")


def row(name: str, text: str) -> None:
    """Print a name and its text, which is wrapped."""
    say(filled(text, f"  {name:<15}", hanging=" " * 17))


def paragraph(text: str) -> None:
    """Print lines, wrapped and indented, and an empty line."""
    for line in text.splitlines():
        say(filled(line, "  ", hanging="  "))
    say()


def filled(line: str, indent: str, *, hanging: str) -> str:
    """Wrap a line at spaces, and escape terminal control characters in texts of hubs and commits."""
    text = clean(line)
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


def say(text: str = "") -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)
