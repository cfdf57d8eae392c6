"""Choice of where and how runs are shown."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pellucid_exporters.console.notebook import Notebook, is_notebook
from pellucid_exporters.console.options import Console
from pellucid_exporters.console.terminal import Page, Screen, Writer, has_colors, is_terminal
from pellucid_exporters.console.tree import Line, Tree


class Display(Protocol):
    """Display of runs."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Lock to hold during calls."""

    def show(self, ended: Tree | None, *, busy: bool) -> None:
        """Show that a run has ended, or that one has started. `busy`: other runs are in progress."""

    def stop(self) -> None:
        """Stop and restore the stream."""

    def renew(self) -> None:
        """Discard the parent's display in a forked child."""


def make_display(options: Console, under_way: Callable[[Callable[[Tree], Any]], list[Any]]) -> Display:
    """Return the display that the options ask for: a notebook if the code runs in one, or text.

    Args:
        options: Options of the console.
        under_way: Function that applies a function to the newest runs in progress.
    """
    if options.stream is None and is_notebook():
        return Notebook(under_way, content=options.content is not False, live=options.live is not False)
    return _Text(options, under_way)


class _Text:
    """Runs as lines of text."""

    def __init__(self, options: Console, under_way: Callable[[Callable[[Tree], Any]], list[Any]]) -> None:
        self._content = bool(options.content)
        self._under_way = under_way
        self._writer = make_writer(options, self._lines_under_way)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Lock to hold during calls."""
        return self._writer.lock

    def show(self, ended: Tree | None, *, busy: bool) -> None:
        """Write the lines of an ended run."""
        self._writer.show(ended.lines(content=self._content) if ended is not None else [], busy=busy)

    def stop(self) -> None:
        """Restore the stream."""
        self._writer.stop()

    def renew(self) -> None:
        """Discard the parent's display."""
        self._writer.renew()

    def _lines_under_way(self) -> list[Line]:
        return [line for lines in self._under_way(Tree.lines) for line in lines]


def make_writer(options: Console, under_way: Callable[[], list[Line]] = list) -> Writer:
    """Return a writer to the stream of the options: a screen if there are colours, and Rich is installed."""
    stream = options.stream or sys.stdout
    color = options.color if options.color is not None else has_colors(stream)
    live = is_terminal(stream) and (options.live if options.live is not None else color)
    if (color or live) and importlib.util.find_spec("rich") is not None:
        return Screen(stream, under_way, width=options.width, color=color, live=live)
    return Page(options.stream, width=options.width)
