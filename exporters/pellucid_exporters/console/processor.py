"""Runs as trees: live in a terminal; elsewhere, on request, as plain text when they end."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TextIO, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid_exporters.console.terminal import Page, Screen, Writer, is_terminal
from pellucid_exporters.console.tree import Line, Node, Word, counted, lines

MOST_RUNS: Final = 256
MOST_SPANS: Final = 2_000
MOST_LIVE: Final = 8
"""Maximum number of runs on the screen at once."""

_LOGGER: Final = logging.getLogger("pellucid_exporters")

_Key: TypeAlias = tuple[int, int]
"""Trace id and span id; a span id alone is not unique, because callers can choose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Options of the console. Without a terminal, runs are shown only if `live` or `stream` is given.

    Attributes:
        content: Show recorded input and output.
        live: Show runs while they are in progress; by default in a terminal with colours. Needs the extra `console`.
        color: Use colours; by default depends on the stream and `NO_COLOR`. Needs the extra `console`.
        width: Columns; by default those of the terminal, or 100 without one.
        stream: Output stream; by default standard output.
    """

    content: bool = False
    live: bool | None = None
    color: bool | None = None
    width: int | None = None
    stream: TextIO | None = None


def is_shown(options: Console, *, force: bool = False) -> bool:
    """Return whether runs can be shown. `force`: show them even without a terminal."""
    if force or options.live is not None or options.stream is not None or is_terminal(sys.stdout):
        return True
    _LOGGER.info(
        "console= shows nothing because standard output is not a terminal; "
        "Console(live=False) shows each run there when it is over"
    )
    return False


@dataclass(slots=True)
class _Run:
    """The spans of one run.

    Attributes:
        omitted: Number of spans over the limit, which are not shown.
    """

    root: _Key
    spans: dict[_Key, ReadableSpan] = field(default_factory=dict)
    omitted: int = 0

    def tree(self) -> Node:
        """Return the spans as a tree, in start order."""
        nodes = {key: Node(span) for key, span in self.spans.items()}
        for key, node in nodes.items():
            if key != self.root and node.span.parent is not None:
                nodes.get(_key(node.span.parent), nodes[self.root]).children.append(node)
        for node in nodes.values():
            node.children.sort(key=lambda child: child.span.start_time or 0)
        return nodes[self.root]


class ConsoleProcessor(SpanProcessor):
    """Span processor that shows each run as a tree. Errors are logged once and never raised."""

    def __init__(self, options: Console) -> None:
        self._content = options.content
        self._failed = False
        self._clear()
        self._writer = make_writer(options, self._under_way)

    def _clear(self) -> None:
        # Reentrant: the garbage collector may end an abandoned span while this thread holds the lock.
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._runs: OrderedDict[_Key, _Run] = OrderedDict()
        self._owners: dict[_Key, _Run] = {}
        self._left_out = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Add a started span to its run."""
        with self._lock:
            run = self._owner(span)
            if run is None:
                return
            key = _key(span.get_span_context())
            if len(run.spans) >= MOST_SPANS:
                run.omitted += 1
                return
            run.spans[key] = span
            self._owners[key] = run
        if key == run.root:
            self._show()

    def on_end(self, span: ReadableSpan) -> None:
        """Record the end of a span; at the end of a run, write its tree."""
        context = span.get_span_context()
        if context is None:
            return
        with self._lock:
            run = self._owners.get(_key(context))
            if run is None:
                return
            run.spans[_key(context)] = span
            if run.root != _key(context):
                return
            self._drop(run)
        self._show(run)

    def shutdown(self) -> None:
        """Stop the display and restore the terminal."""
        with self._writing:
            self._writer.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return at once: nothing is queued."""
        return True

    def renew(self) -> None:
        """Reset in a forked child: runs in progress and their display belong to the parent."""
        self._clear()
        self._writer.renew()

    def _owner(self, span: Span) -> _Run | None:
        """Return the run that a span belongs to; create it for the first span."""
        is_run = _is_run(span)
        if span.parent is not None and not (is_run and span.parent.is_remote):
            owner = self._owners.get(_key(span.parent))
            if owner is not None:
                return owner
        if not is_run:
            return self._waiting(span)
        if len(self._runs) >= MOST_RUNS:
            self._drop(next(iter(self._runs.values())))
            self._left_out += 1
        run = self._runs[_key(span.get_span_context())] = _Run(_key(span.get_span_context()))
        return run

    def _waiting(self, span: Span) -> _Run | None:
        """Return the run that waited for a result; the call was made by an earlier run, whose tree is written."""
        attributes = span.attributes or {}
        if attributes.get(semconv.PHASE) != semconv.AWAIT:
            return None
        run_id = attributes.get(semconv.RUN_ID)
        runs = self._runs.values()
        return next((run for run in runs if (run.spans[run.root].attributes or {}).get(semconv.RUN_ID) == run_id), None)

    def _drop(self, run: _Run) -> None:
        self._runs.pop(run.root, None)
        for key in run.spans:
            self._owners.pop(key, None)

    def _under_way(self) -> list[Line]:
        """Return the lines of runs in progress; called from the thread that redraws the screen."""
        with self._lock:
            runs = [replace(run, spans=dict(run.spans)) for run in list(self._runs.values())[-MOST_LIVE:]]
        try:
            return [line for run in runs for line in lines(run.tree())]
        except Exception as error:  # noqa: BLE001  (never fails the run)
            self._complain(error)
            return []

    def _show(self, run: _Run | None = None) -> None:
        try:
            finished = [*lines(run.tree(), content=self._content), *self._omissions(run)] if run is not None else []
            with self._writing:
                self._writer.show(finished, busy=bool(self._runs))
        except Exception as error:  # noqa: BLE001  (never fails the run)
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _LOGGER.warning("the console exporter cannot write; runs are not affected", exc_info=error)

    def _omissions(self, run: _Run) -> list[Line]:
        """Return a summary of omitted spans of this run and of runs evicted before it."""
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        omissions = []
        if run.omitted:
            omissions.append(f"… and {counted(run.omitted, 'more span')}, with all below them")
        if left_out:
            omissions.append(f"… and {counted(left_out, 'run')} left out: over {MOST_RUNS} were under way at once")
        return [[Word(omission, "tree")] for omission in omissions]


def make_writer(options: Console, under_way: Callable[[], list[Line]] = list) -> Writer:
    """Return a writer to the stream of the options: a screen if there are colours, and Rich is installed."""
    stream = options.stream or sys.stdout
    terminal = stream.isatty()
    color = options.color if options.color is not None else terminal and not os.environ.get("NO_COLOR")
    live = options.live if options.live is not None else terminal and color
    if (color or live) and importlib.util.find_spec("rich") is not None:
        return Screen(stream, under_way, width=options.width, color=color, live=live)
    return Page(stream, width=options.width)


def _key(context: SpanContext) -> _Key:
    return context.trace_id, context.span_id


def _is_run(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == semconv.SCOPE and span.name.startswith(semconv.INVOKE_AGENT)
