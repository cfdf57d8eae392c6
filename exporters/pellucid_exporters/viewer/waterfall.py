"""Spans of a run as rows with bars, grouped by iteration; short rows, because a run may have thousands."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from markupsafe import Markup, escape

from pellucid import semconv
from pellucid_exporters.stored.durations import end_of, took
from pellucid_exporters.stored.rows import FAULTS, RUNNING, RunRow, SpanRow
from pellucid_exporters.stored.text import cut, short, visible

MOST_OPEN: Final = 400
"""Rows up to which all groups of a run are open."""

TICKS: Final = 4
"""Parts of the scale."""

_PHASES: Final = {semconv.DISCOVERY: "v", semconv.COMPOSE: "c", semconv.INFERENCE: "m", semconv.DISPATCH: "t"}
_DEEPEST: Final = 8
_THINNEST: Final = 0.3


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one iteration.

    Attributes:
        iteration: Number of the iteration; `None` for what belongs to none.
        rows: HTML of the rows.
        bar: SVG of the time from the first start to the last end.
    """

    iteration: int | None
    number: int
    duration: int
    faults: int
    is_open: bool
    bar: Markup
    rows: Markup


def is_fault(span: SpanRow) -> bool:
    """Return whether a span went wrong."""
    return span.status in FAULTS


def ticks(run: RunRow, spans: Sequence[SpanRow]) -> list[int]:
    """Return nanoseconds after the start at the quarters of the time that the bars cover."""
    total = _Scale(run, spans).total
    return [total * part // TICKS for part in range(1, TICKS)]


def waterfall(run: RunRow, spans: Sequence[SpanRow], nested: Mapping[str, RunRow], *, is_open: bool) -> list[Group]:
    """Return the spans below the run's own, grouped by iteration in the order of their start.

    Args:
        run: The run.
        spans: Its spans.
        nested: Runs nested in it, by the id of the span below which a row leads to them.
        is_open: Whether groups without faults are open, too.
    """
    scale = _Scale(run, spans)
    depths = _depths(spans)
    groups: dict[int | None, list[SpanRow]] = {}
    iterations: dict[str, int | None] = {}
    for span in _tree_order(spans):
        if span.phase == semconv.RUN and span.name.startswith(semconv.INVOKE_AGENT):
            continue
        inherited = iterations.get(span.parent_span_id or "")
        iteration = iterations[span.span_id] = span.iteration if span.iteration is not None else inherited
        groups.setdefault(iteration, []).append(span)
    return [
        _group(iteration, rows, scale, _rows(rows, scale, depths, nested), is_open=is_open)
        for iteration, rows in groups.items()
    ]


def _group(iteration: int | None, spans: Sequence[SpanRow], scale: _Scale, rows: Markup, *, is_open: bool) -> Group:
    start, end = min(span.start for span in spans), max(scale.end_of(span) for span in spans)
    faults = sum(map(is_fault, spans))
    return Group(
        iteration=iteration,
        number=len(spans),
        duration=end - start,
        faults=faults,
        is_open=is_open or faults > 0,
        bar=scale.bar(start, end),
        rows=rows,
    )


def _rows(spans: Sequence[SpanRow], scale: _Scale, depths: Mapping[str, int], nested: Mapping[str, RunRow]) -> Markup:
    """Return the rows of spans, each with that of the run nested in it."""
    rows: list[str] = []
    for span in spans:
        depth = depths[span.span_id]
        rows.append(_row(span, scale, depth))
        if span.span_id in nested:
            rows.append(_nested_row(nested[span.span_id], scale, min(depth + 1, _DEEPEST)))
    return Markup("\n".join(rows))  # noqa: S704  (escaped)


def _nested_row(run: RunRow, scale: _Scale, depth: int) -> str:
    name = escape(visible(f"run of {cut(run.agent, 80)}"))
    address = f"/runs/{quote(run.run_id, safe='')}/"
    bar = scale.bar(run.start, scale.end_of(run))
    return f'<a href="{address}" class="r o d{depth}"><b>{name}</b><i>{took(run)}</i>{bar}</a>'


def _row(span: SpanRow, scale: _Scale, depth: int) -> str:
    """Return HTML; the link is relative to the page of the run."""
    kinds = ["r", _PHASES.get(span.phase or "", "o")]
    if depth:
        kinds.append(f"d{depth}")
    if is_fault(span):
        kinds.append("x")
    elif span.status not in {semconv.COMPLETED, "ok"}:
        kinds.append("w")
    reason = span.error or span.error_type or (span.status if "x" in kinds or "w" in kinds else "")
    note = f"<em>{escape(visible(short(reason, 90)))}</em>" if reason else ""
    shown = "running" if span.status == RUNNING else took(span)
    name = escape(visible(cut(span.name, 80)))
    bar = scale.bar(span.start, scale.end_of(span))
    return f'<a href={span.sequence} class="{" ".join(kinds)}"><b>{name}{note}</b><i>{shown}</i>{bar}</a>'


class _Scale:
    """Horizontal scale: percent of the run's time."""

    def __init__(self, run: RunRow, spans: Sequence[SpanRow]) -> None:
        self._now = time.time_ns()
        self._end = max(run.start + 1, end_of(run, self._now), *map(self.end_of, spans))
        self._start = min([run.start, *(span.start for span in spans)])

    @property
    def total(self) -> int:
        """Nanoseconds of the whole scale."""
        return self._end - self._start

    def end_of(self, row: RunRow | SpanRow) -> int:
        """Return the end of a row, or the time until which it is known to have lasted."""
        return end_of(row, self._now)

    def bar(self, start: int, end: int) -> Markup:
        """Return a bar as SVG."""
        left = min(100 * (start - self._start) / self.total, 100 - _THINNEST)
        width = max(100 * (end - start) / self.total, _THINNEST)
        return Markup(f'<svg><rect x="{left:.1f}%" width="{width:.1f}%"/></svg>')  # noqa: S704  (numbers)


def _tree_order(spans: Sequence[SpanRow]) -> Iterator[SpanRow]:
    """Yield each span before those below it, siblings in the order of their start."""
    known = {span.span_id for span in spans}
    children: dict[str, list[SpanRow]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in known else None
        children.setdefault(parent or "", []).append(span)
    waiting = children.pop("", [])[::-1]
    while waiting:
        span = waiting.pop()
        yield span
        waiting += children.pop(span.span_id, [])[::-1]


def _depths(spans: Sequence[SpanRow]) -> dict[str, int]:
    """Return how deep each span lies below the run's own span."""
    depths: dict[str, int] = {}
    for span in _tree_order(spans):
        parent = depths.get(span.parent_span_id or "", -1)
        is_root = span.phase == semconv.RUN and span.name.startswith(semconv.INVOKE_AGENT)
        depths[span.span_id] = -1 if is_root else min(parent + 1, _DEEPEST)
    return depths
