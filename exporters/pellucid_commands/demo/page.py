"""Text of the demos on standard output: titles, rows and paragraphs."""

from __future__ import annotations

import io
import logging
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Final

from pellucid.text import clean
from pellucid_commands.demo.store import view_command
from pellucid_exporters.console.terminal import has_colors

if TYPE_CHECKING:
    from pathlib import Path

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


def next_steps(
    command: str,
    trace_id: str,
    otlp: str | None,
    store: Path | None,
    *more: tuple[str, str],
    delivered: bool = True,
    color: bool,
) -> None:
    """Print the id of the trace, where it is, and what shows it; last the line that opens the page.

    Args:
        command: The command that was run.
        trace_id: Id of the trace.
        otlp: URL of the collector, if there is one.
        store: Local store, if it is to be named.
        *more: Further rows.
        delivered: Whether the collector has the trace.
        color: Whether to use colours.
    """
    title("Next", color=color)
    row("trace", trace_id)
    if otlp is None:
        row("", f"{command} --otlp {COLLECTOR} sends such traces to a collector")
    elif delivered:
        row("", f"was sent to {otlp}; paste the id into the search of Jaeger or Grafana")
    else:
        row("", f"not all could be sent to {otlp}; pellucid doctor --otlp {otlp} says why")
    for name, text in more:
        row(name, text)
    if store is not None:
        row("terminal", f"pellucid runs, pellucid show RUN and pellucid top read {store}")
        row("page", view_command(store))


def filled(line: str, indent: str, *, hanging: str) -> str:
    """Wrap a line at spaces, and escape terminal control characters in texts of hubs and commits."""
    text = clean(line)
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


def cut(line: str) -> str:
    """Return a line of at most `WIDTH` columns."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def say(text: str = "") -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)
