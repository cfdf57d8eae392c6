"""Spans of a run and of the runs nested in it, as one tree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from pellucid import semconv
from pellucid_exporters.stored.durations import end_of
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.rows import FAULTS, RunRow, SpanRow

MOST_NESTED: Final = 50
"""Nested runs whose spans a page shows."""


class RunTree:
    """Spans of a run and of the runs nested in it.

    Attributes:
        run: The run.
        spans: Its own spans.
        root: Its own `invoke_agent` span, if it is recorded.
        nested: Runs nested in it, by id.
        order: All spans, each before those below it, siblings in the order of their start.
        by_id: Spans by their ids.
        children: Spans below a span, by its id.
        depths: Levels of the spans below the run's own, by id.
        iterations: Iteration of the run to which a span belongs, by the span's id.
    """

    def __init__(
        self, run: RunRow, spans: Sequence[SpanRow], nested: Sequence[tuple[RunRow, Sequence[SpanRow]]]
    ) -> None:
        self.run = run
        self.spans = spans
        self.nested = {row.run_id: row for row, _ in nested}
        self.root = next((span for span in spans if is_root(span)), None)
        self.now = time.time_ns()
        self.children: dict[str, list[SpanRow]] = {}
        self.order: list[SpanRow] = []
        self.depths: dict[str, int] = {}
        self.iterations: dict[str, int | None] = {}
        everything = [*spans, *(span for _, rows in nested for span in rows)]
        self.by_id = {span.span_id: span for span in everything}
        self.tops: list[SpanRow] = []
        for span in everything:
            parent = span.parent_span_id
            if parent in self.by_id and parent != span.span_id:
                self.children.setdefault(parent, []).append(span)
            else:
                self.tops.append(span)
        self._walk()
        self.start = min([run.start, *(span.start for span in self.order)])
        self.end = max(self.start + 1, end_of(run, self.now), *map(self.end_of, self.order))

    def key(self, span: SpanRow) -> str:
        """Return what stands for a span in an address: its number, of a nested run with the id of the run."""
        return str(span.sequence) if self.is_own(span) else f"{span.run_id}/{span.sequence}"

    def find(self, key: str) -> SpanRow | None:
        """Return the span that an address means."""
        return next((span for span in self.order if self.key(span) == key), None) if key else None

    def address(self, span: SpanRow) -> str:
        """Return the address of the page of a span, relative to the page of the run."""
        return str(span.sequence) if self.is_own(span) else f"/runs/{quote(span.run_id, safe='')}/{span.sequence}"

    def is_own(self, span: SpanRow) -> bool:
        """Return whether a span is of the run itself."""
        return span.run_id == self.run.run_id

    def end_of(self, row: RunRow | SpanRow) -> int:
        """Return the end of a row, or the time until which it is known to have lasted."""
        return end_of(row, self.now)

    def above(self, span: SpanRow) -> Iterator[SpanRow]:
        """Yield the spans above a span, the nearest first."""
        while (parent := self.by_id.get(span.parent_span_id or "")) is not None and parent is not span:
            yield parent
            span = parent

    def _walk(self) -> None:
        """Put the spans in order, with their depths and iterations."""
        rest: list[tuple[SpanRow, int, int | None]] = []
        rest += [(span, -1 if span is self.root else 0, None) for span in reversed(self.tops)]
        while rest:
            span, depth, inherited = rest.pop()
            iteration = span.iteration if self.is_own(span) and span.iteration is not None else inherited
            self.order.append(span)
            self.depths[span.span_id], self.iterations[span.span_id] = depth, iteration
            below = self.children.get(span.span_id, ())
            rest += [(child, depth + 1, iteration) for child in reversed(below)]


def is_root(span: SpanRow) -> bool:
    """Return whether a span is that of a whole run."""
    return span.phase == semconv.RUN and span.name.startswith(semconv.INVOKE_AGENT)


def is_fault(span: SpanRow) -> bool:
    """Return whether a span went wrong."""
    return span.status in FAULTS


def run_tree(reader: Recording, run: RunRow, spans: Sequence[SpanRow], trace: Sequence[RunRow]) -> RunTree:
    """Return the tree of a run; `trace` has the runs of its trace, which may be nested in it."""
    by_parent: dict[str, list[RunRow]] = {}
    for row in trace:
        if row.parent_run_id is not None and row.run_id != row.parent_run_id:
            by_parent.setdefault(row.parent_run_id, []).append(row)
    found: list[tuple[RunRow, Sequence[SpanRow]]] = []
    waiting = by_parent.pop(run.run_id, [])
    while waiting and len(found) < MOST_NESTED:
        row = waiting.pop(0)
        found.append((row, reader.spans(row.run_id)))
        waiting += by_parent.pop(row.run_id, [])
    return RunTree(run, spans, found)
