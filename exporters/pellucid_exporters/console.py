"""Runs as trees in the terminal: live while they happen, plain once they are over where there is no terminal."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from pellucid import semconv
from pellucid_exporters.tree import Line, Node, Word, lines, plain

MOST_RUNS: Final = 256
MOST_SPANS: Final = 2_000
PLAIN_WIDTH: Final = 100
"""Columns where there is no terminal to ask."""

STYLES: Final = {
    "tree": "dim",
    "name": "bold",
    "number": "cyan",
    "fact": "",
    "bad": "bold red",
    "content": "dim italic",
    "": "dim",
}
_LOGGER: Final = logging.getLogger("pellucid_exporters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """How runs are shown.

    Attributes:
        content: Show what was recorded of input and output.
        live: Show runs while they happen; found out from the stream unless given. Needs the extra `console`.
        color: Use colours; found out from the stream and `NO_COLOR` unless given.
        width: Columns; those of the terminal unless given, or 100.
        stream: Where to write; standard output unless given.
    """

    content: bool = False
    live: bool | None = None
    color: bool | None = None
    width: int | None = None
    stream: TextIO | None = None


@dataclass(slots=True)
class _Run:
    """The spans of one run. Attributes: omitted: spans over the bound, which are counted and not shown."""

    root: int
    spans: dict[int, ReadableSpan] = field(default_factory=dict)
    omitted: int = 0

    def tree(self) -> Node:
        """Return the spans as a tree, in the order in which they began."""
        nodes = {span_id: Node(span) for span_id, span in self.spans.items()}
        for span_id, node in nodes.items():
            if span_id != self.root and node.span.parent is not None:
                nodes[node.span.parent.span_id].children.append(node)
        for node in nodes.values():
            node.children.sort(key=lambda child: child.span.start_time or 0)
        return nodes[self.root]


class ConsoleProcessor(SpanProcessor):
    """Shows each run as a tree. What goes wrong here is logged once and reaches nobody else."""

    def __init__(self, options: Console) -> None:
        self._options = options
        self._stream = options.stream or sys.stdout
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        self._owners: dict[int, _Run] = {}
        self._failed = False
        terminal = self._stream.isatty()
        color = options.color if options.color is not None else terminal and not os.environ.get("NO_COLOR")
        wanted = options.live if options.live is not None else terminal
        rich = importlib.util.find_spec("rich") is not None
        self._screen = _Screen(self._stream, options, color=color, live=wanted) if rich and (color or wanted) else None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Take note of a span that begins."""
        context = span.get_span_context()
        with self._lock:
            run = self._owners.get(span.parent.span_id) if span.parent is not None else None
            if run is None:
                if not _is_run(span):
                    return
                run = _Run(context.span_id)
                self._runs[context.span_id] = run
                if len(self._runs) > MOST_RUNS:
                    self._forget(self._runs.popitem(last=False)[1])
            if len(run.spans) >= MOST_SPANS:
                run.omitted += 1
                return
            run.spans[context.span_id] = span
            self._owners[context.span_id] = run
        self._show()

    def on_end(self, span: ReadableSpan) -> None:
        """Take note of a span that ended; at the end of a run, write its tree."""
        context = span.get_span_context()
        assert context is not None
        with self._lock:
            run = self._owners.get(context.span_id)
            if run is None:
                return
            run.spans[context.span_id] = span
            over = run.root == context.span_id
            if over:
                self._runs.pop(run.root, None)
                self._forget(run)
        if over:
            self._show([*self._lines(run), *_omitted(run)])

    def shutdown(self) -> None:
        """Leave the terminal as it was."""
        if self._screen is not None:
            self._screen.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True

    def _forget(self, run: _Run) -> None:
        for span_id in run.spans:
            self._owners.pop(span_id, None)

    def _lines(self, run: _Run) -> list[Line]:
        return lines(run.tree(), content=self._options.content)

    def _under_way(self) -> list[Line]:
        with self._lock:
            runs = list(self._runs.values())[-8:]
            return [line for run in runs for line in lines(run.tree())]

    def _show(self, finished: Sequence[Line] = ()) -> None:
        try:
            if self._screen is not None:
                self._screen.show(finished, self._under_way if self._runs else None)
            elif finished:
                self._stream.write(f"{plain(finished, self._options.width or PLAIN_WIDTH)}\n\n")
                self._stream.flush()
        except Exception:
            if not self._failed:
                self._failed = True
                _LOGGER.warning("the console exporter cannot write; runs are not affected", exc_info=True)


class _Screen:
    """A terminal, through Rich."""

    def __init__(self, stream: TextIO, options: Console, *, color: bool, live: bool) -> None:
        from rich.console import Console as RichConsole

        self._live_wanted = live
        self._live: Any = None
        self._console = RichConsole(
            file=stream,
            width=options.width,
            force_terminal=True if color or live else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def show(self, finished: Sequence[Line], under_way: Any) -> None:
        """Write what is finished above what is under way."""
        if under_way is None:
            self.stop()
        elif self._live_wanted and self._live is None:
            from rich.live import Live

            self._live = Live(
                get_renderable=lambda: self._text(under_way()),
                console=self._console,
                refresh_per_second=8,
                transient=True,
            )
            self._live.start()
        if finished:
            self._console.print(self._text(finished), soft_wrap=not self._live_wanted)
            self._console.print()

    def stop(self) -> None:
        """End the live display."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _text(self, tree: Sequence[Line]) -> Any:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(tree):
            text.append("\n" if number else "")
            for word in line:
                text.append(word.text, STYLES[word.style] or None)
        return text


def _is_run(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == semconv.SCOPE and span.name.startswith(semconv.INVOKE_AGENT)


def _omitted(run: _Run) -> list[Line]:
    return [[Word(f"… and {run.omitted:,} more spans", "tree")]] if run.omitted else []
