"""Writers of the console: a live screen with colours, or plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from pellucid_exporters.console.tree import Line, fitted, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

PLAIN_WIDTH: Final = 100
"""Columns without a terminal."""

ASCII: Final = str.maketrans("├└│─…→", "|`|-~>")
"""Replacements of the tree's characters for streams that cannot encode them, of the same width."""

STYLES: Final = {
    "tree": "dim",
    "name": "bold",
    "number": "cyan",
    "fact": "",
    "bad": "bold red",
    "content": "dim italic",
    "": "dim",
}


class Writer(Protocol):
    """Output of the console. Calls must not overlap."""

    def show(self, finished: Sequence[Line], *, busy: bool) -> None:
        """Write the lines of an ended run. `busy`: other runs are in progress."""

    def stop(self) -> None:
        """Stop and restore the stream."""

    def renew(self) -> None:
        """Discard the parent's display in a forked child."""


class Page:
    """Plain text, written at once when a run has ended; without a stream, to what is standard output by then."""

    def __init__(self, stream: TextIO | None, *, width: int | None) -> None:
        self._stream = stream
        self._width = width

    def show(self, finished: Sequence[Line], *, busy: bool) -> None:
        """Write the lines of an ended run."""
        stream: TextIO | None = self._stream or sys.stdout
        if finished and stream is not None:  # standard output may be None, which `print` ignores too
            stream.write(_encodable(f"{plain(fitted(finished, self._width or columns(stream)))}\n\n", stream))
            stream.flush()

    def stop(self) -> None:
        """Do nothing: the stream is unchanged."""

    def renew(self) -> None:
        """Do nothing: there is no display."""


class Screen:
    """A terminal, drawn by Rich: ended runs above, runs in progress below, redrawn periodically."""

    def __init__(
        self, stream: TextIO, under_way: Callable[[], list[Line]], *, width: int | None, color: bool, live: bool
    ) -> None:
        self._stream = stream
        self._under_way = under_way
        self._width = width
        self._has_color = color
        self._redraws = live
        self._live: Live | None = None
        self._console = self._make_console()

    def show(self, finished: Sequence[Line], *, busy: bool) -> None:
        """Write the lines of an ended run above runs in progress."""
        if not busy:
            self.stop()
        elif self._redraws and self._live is None:
            self._start()
        if finished:
            self._console.print(self._text(finished).append("\n"), no_wrap=True, overflow="ellipsis")

    def stop(self) -> None:
        """End the live display."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def renew(self) -> None:
        """Leave the display to the parent and replace locks that its threads may hold."""
        if self._live is not None:
            sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
            sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        self._live = None
        self._console = self._make_console()

    def _make_console(self) -> Console:
        from rich.console import Console

        return Console(
            file=self._stream,
            width=self._width or (None if self._stream.isatty() else columns(self._stream)),
            force_terminal=True,
            force_jupyter=False,
            color_system="auto" if self._has_color else None,
            no_color=not self._has_color,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def _start(self) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=self._now,
            console=self._console,
            refresh_per_second=8,
            transient=True,
            # The application's output may appear around the tree, but must stay in its own file.
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        self._live.start()

    def _now(self) -> Text:
        """Return the latest lines of runs in progress that fit the screen."""
        return self._text(self._under_way()[1 - self._console.height :])

    def _text(self, tree: Sequence[Line]) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(fitted(tree, self._console.width)):
            text.append("\n" if number else "")
            for word in line:
                text.append(_encodable(word.text, self._stream), STYLES[word.style] or None)
        return text


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is an interactive terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def has_colors(stream: TextIO | None) -> bool:
    """Return whether to use colours: in a terminal, unless the environment decides.

    `NO_COLOR` (https://no-color.org) turns them off, `FORCE_COLOR` (https://force-color.org) on, also without a
    terminal; if both are set, `NO_COLOR` applies, as in Python itself. A `dumb` terminal has none.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal(stream) and os.environ.get("TERM") != "dumb")


def columns(stream: TextIO) -> int:
    """Return the width of a stream: `COLUMNS`, that of the terminal, or 100."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given[:5]):
        return int(given[:5])
    try:
        return (is_terminal(stream) and os.get_terminal_size(stream.fileno()).columns) or PLAIN_WIDTH
    except OSError:  # a terminal of the application's own
        return PLAIN_WIDTH


def _encodable(text: str, stream: TextIO) -> str:
    """Replace characters that the stream cannot encode: those of the tree by similar ones, any other by `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text
