"""Runs as trees: the spans of each run, and when to show them."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from pellucid import semconv
from pellucid_exporters.console.displays import make_display
from pellucid_exporters.console.options import Console
from pellucid_exporters.console.tree import Key, Node, Tree, counted, key_of

MOST_RUNS: Final = 256
MOST_SPANS: Final = 2_000
MOST_LIVE: Final = 8
"""Maximum number of runs on the screen at once."""

_LOGGER: Final = logging.getLogger("pellucid_exporters")

_Shown = TypeVar("_Shown")


@dataclass(slots=True)
class _Run:
    """The spans of one run.

    Attributes:
        omitted: Number of spans over the limit, which are not shown.
    """

    root: Key
    spans: dict[Key, ReadableSpan] = field(default_factory=dict)
    omitted: int = 0

    def tree(self, omissions: Sequence[str] = ()) -> Tree:
        """Return the spans as a tree, in start order."""
        nodes = {key: Node(span) for key, span in self.spans.items()}
        for key, node in nodes.items():
            if key != self.root and node.span.parent is not None:
                nodes.get(key_of(node.span.parent), nodes[self.root]).children.append(node)
        for node in nodes.values():
            node.children.sort(key=lambda child: child.span.start_time or 0)
        return Tree(nodes[self.root], omissions)


class ConsoleProcessor(SpanProcessor):
    """Span processor that shows each run as a tree. Errors are logged once and never raised."""

    def __init__(self, options: Console) -> None:
        self._failed = False
        self._clear()
        self._display = make_display(options, self._under_way)

    def _clear(self) -> None:
        # Reentrant: the garbage collector may end an abandoned span while this thread holds the lock.
        self._lock = threading.RLock()
        self._runs: OrderedDict[Key, _Run] = OrderedDict()
        self._owners: dict[Key, _Run] = {}
        self._left_out = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Add a started span to its run."""
        with self._lock:
            run = self._owner(span)
            if run is None:
                return
            key = key_of(span.get_span_context())
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
            run = self._owners.get(key_of(context))
            if run is None:
                return
            run.spans[key_of(context)] = span
            if run.root != key_of(context):
                return
            self._drop(run)
        self._show(run)

    def shutdown(self) -> None:
        """Stop the display and restore the terminal."""
        with self._display.lock:
            self._display.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return at once: nothing is queued."""
        return True

    def renew(self) -> None:
        """Reset in a forked child: runs in progress and their display belong to the parent."""
        self._clear()
        self._display.renew()

    def _owner(self, span: Span) -> _Run | None:
        """Return the run that a span belongs to; create it for the first span."""
        is_run = _is_run(span)
        if span.parent is not None and not (is_run and span.parent.is_remote):
            owner = self._owners.get(key_of(span.parent))
            if owner is not None:
                return owner
        if not is_run:
            return self._waiting(span)
        if len(self._runs) >= MOST_RUNS:
            self._drop(next(iter(self._runs.values())))
            self._left_out += 1
        run = self._runs[key_of(span.get_span_context())] = _Run(key_of(span.get_span_context()))
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

    def _under_way(self, show: Callable[[Tree], _Shown]) -> list[_Shown]:
        """Apply a function to the newest runs in progress; called from the thread that redraws them."""
        with self._lock:
            runs = [replace(run, spans=dict(run.spans)) for run in list(self._runs.values())[-MOST_LIVE:]]
        try:
            return [show(run.tree()) for run in runs]
        except Exception as error:  # noqa: BLE001  (never fails the run)
            self._complain(error)
            return []

    def _show(self, run: _Run | None = None) -> None:
        try:
            ended = run.tree(self._omissions(run)) if run is not None else None
            with self._display.lock:
                self._display.show(ended, busy=bool(self._runs))
        except Exception as error:  # noqa: BLE001  (never fails the run)
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            trace = None if isinstance(error, OSError) else error
            _LOGGER.warning("the console exporter cannot write; runs are not affected: %s", error, exc_info=trace)

    def _omissions(self, run: _Run) -> list[str]:
        """Return a summary of omitted spans of this run and of runs evicted before it."""
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        omissions = []
        if run.omitted:
            omissions.append(f"… and {counted(run.omitted, 'more span')}, with all below them")
        if left_out:
            omissions.append(f"… and {counted(left_out, 'run')} left out: over {MOST_RUNS} were under way at once")
        return omissions


def _is_run(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == semconv.SCOPE and span.name.startswith(semconv.INVOKE_AGENT)
