"""Writers of the console: a live screen with colours, or plain text."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from pellucid_exporters.console.program_output import ProgramOutput
from pellucid_exporters.console.tree import Line, fitted, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.control import Control
    from rich.text import Text

PLAIN_WIDTH: Final = 100
"""Columns without a terminal."""

REDRAW: Final = 1 / 8
"""Seconds between two updates of runs in progress."""

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
    """Output of the console."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Lock to hold during calls. What the program writes to the stream holds it too."""

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
        self._program = ProgramOutput(_shared_with(stream or sys.stdout))

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Lock to hold during calls."""
        return self._program.lock

    def show(self, finished: Sequence[Line], *, busy: bool) -> None:
        """Write the lines of an ended run."""
        stream: TextIO | None = self._stream or sys.stdout
        if not finished or stream is None:  # standard output may be None, which `print` ignores too
            return
        tree = plain(fitted(finished, self._width or columns(stream)))
        with self._program.paused():
            stream.write(_encodable(f"{self._program.line_end(stream)}{tree}\n\n", stream))
            stream.flush()

    def stop(self) -> None:
        """Restore the stream."""
        self._program.release()

    def renew(self) -> None:
        """Replace locks that the parent's threads may hold."""
        self._program.renew()


class Screen:
    """A terminal, drawn by Rich: ended runs above, runs in progress below, redrawn periodically.

    Runs in progress are erased before the program writes, and drawn again when its line has ended.
    """

    def __init__(
        self, stream: TextIO, under_way: Callable[[], list[Line]], *, width: int | None, color: bool, live: bool
    ) -> None:
        self._stream = stream
        self._under_way = under_way
        self._width = width
        self._has_color = color
        self._redraws = live
        self._redrawing: threading.Event | None = None
        self._drawn = 0  # lines
        self._console = self._make_console()
        self._program = ProgramOutput(_shared_with(stream), before=self._erase)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Lock to hold during calls."""
        return self._program.lock

    def show(self, finished: Sequence[Line], *, busy: bool) -> None:
        """Write the lines of an ended run above runs in progress."""
        if not busy:
            self._end()
        elif self._redraws and self._redrawing is None:
            self._redrawing = over = threading.Event()
            threading.Thread(target=self._redraw, args=(over,), name="pellucid-console", daemon=True).start()
        if finished:
            tree = self._text(finished).append("\n")
            with self._program.paused():
                self._erase()
                line_end = self._program.line_end(self._stream)
                self._console.print(line_end, tree, sep="", no_wrap=True, overflow="ellipsis")

    def stop(self) -> None:
        """End the live display and restore the stream."""
        self._end()
        self._program.release()

    def renew(self) -> None:
        """Leave the display to the parent and replace locks that its threads may hold."""
        self._redrawing = None
        self._drawn = 0
        self._program.renew()
        self._console = self._make_console()

    def _end(self) -> None:
        over, self._redrawing = self._redrawing, None
        if over is not None:
            over.set()
        self._erase()

    def _redraw(self, over: threading.Event) -> None:
        while not over.wait(REDRAW):
            tree = self._text(self._under_way()[1 - self._console.height :])
            try:
                with self._program.paused():
                    if tree and not self._program.is_mid_line and not over.is_set():
                        self._draw(tree)
            except (OSError, ValueError):  # the terminal has gone, or is closed; the end of the run fails likewise
                return

    def _draw(self, tree: Text) -> None:
        """Draw lines in place of the drawn ones, in one write; the cursor is hidden at the end of the last one."""
        with self._console:
            self._console.show_cursor(show=False)
            self._console.control(*self._erasure())
            self._console.print(tree, end="", no_wrap=True, overflow="ellipsis")
            self._drawn = tree.plain.count("\n") + 1

    def _erase(self) -> None:
        """Erase the drawn lines. It never fails, as the program calls it when it writes."""
        with self._program.paused(), suppress(OSError, ValueError):  # the terminal has gone, or is closed
            if self._drawn:
                with self._console:
                    self._console.show_cursor(show=True)
                    self._console.control(*self._erasure())

    def _erasure(self) -> list[Control]:
        """Return the codes that erase the drawn lines, which count as erased then."""
        from rich.control import Control
        from rich.segment import ControlType

        drawn, self._drawn = self._drawn, 0
        erase = (ControlType.ERASE_IN_LINE, 2)
        above = ((ControlType.CURSOR_UP, 1), erase) * (drawn - 1)
        return [Control(ControlType.CARRIAGE_RETURN, erase, *above)] if drawn else []

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


def _shared_with(stream: TextIO | None) -> list[TextIO]:
    """Return the streams whose text appears in the same place: a stream, and in a terminal the standard ones."""
    if stream is None:
        return []
    standard = (sys.stdout, sys.stderr) if is_terminal(stream) else ()
    return [stream, *filter(is_terminal, standard)]


def _encodable(text: str, stream: TextIO) -> str:
    """Replace characters that the stream cannot encode: those of the tree by similar ones, any other by `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text
