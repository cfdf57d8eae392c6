"""The waterfall of a run: a window of its rows, with what is closed left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from markupsafe import Markup, escape

from pellucid import semconv
from pellucid_exporters.stored.durations import took
from pellucid_exporters.stored.rows import RUNNING, SpanRow
from pellucid_exporters.stored.text import cut, duration, short, visible
from pellucid_exporters.viewer.run.gaps import Gap, Path, waited
from pellucid_exporters.viewer.run.scale import Scale
from pellucid_exporters.viewer.run.state import State
from pellucid_exporters.viewer.run.tree import RunTree, is_fault, is_root

MOST_ROWS: Final = 150
"""Rows that a page shows; a run with no more of them starts with all open."""

_PHASES: Final = {semconv.DISCOVERY: "v", semconv.COMPOSE: "c", semconv.INFERENCE: "m", semconv.DISPATCH: "t"}
_DEEPEST: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Spans of one iteration; `None` is the iteration of what belongs to none."""

    iteration: int | None
    spans: Sequence[SpanRow]

    @property
    def key(self) -> str:
        """Its key in an address."""
        return f"i{self.iteration or 0}"


Line: TypeAlias = Group | Gap | SpanRow


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that a page shows.

    Attributes:
        rows: Their HTML.
        first, last: Numbers of the first and last row, from 1.
        total: Number of rows that are not closed away.
        earlier, later: Addresses of the windows before and after this one.
        is_foldable: Whether the run has more rows than fit.
    """

    rows: Markup
    first: int
    last: int
    total: int
    earlier: str
    later: str
    is_foldable: bool


class Waterfall:
    """Rows of a run in one state of its page."""

    def __init__(self, tree: RunTree, state: State, scale: Scale, path: Path | None) -> None:
        self._tree, self._state, self._scale = tree, state, scale
        self._critical = path.spans if path is not None else {}
        self._gaps = (
            {gap.before.span_id: gap for gap in path.gaps if gap.before is not None} if path is not None else {}
        )
        self._last = next((gap for gap in path.gaps if gap.before is None), None) if path is not None else None
        self._is_large = len(tree.order) > MOST_ROWS
        selected = tree.find(state.span)
        self._selected = selected
        self._forced = {span.span_id for span in tree.above(selected)} if selected is not None else set()
        self._iteration = tree.iterations[selected.span_id] if selected is not None else -1

    def window(self) -> Window:
        """Return the rows of the window."""
        lines = list(self._lines())
        row = self._state.row
        if row is None:
            row = lines.index(self._selected) - MOST_ROWS // 3 if self._selected in lines else 0
        first = max(0, min(row, len(lines) - MOST_ROWS))
        last = min(first + MOST_ROWS, len(lines))
        shown = [self._html(line) for line in lines[first:last]]
        if first and not isinstance(lines[first], Group):
            shown.insert(0, next(self._group(line) for line in lines[first::-1] if isinstance(line, Group)))
        return Window(
            rows=Markup("\n".join(shown)),  # noqa: S704  (escaped)
            first=first + 1 if lines else 0,
            last=last,
            total=len(lines),
            earlier=self._state.address(row=max(0, first - MOST_ROWS)) if first else "",
            later=self._state.address(row=last) if last < len(lines) else "",
            is_foldable=self._is_large,
        )

    def _lines(self) -> Iterator[Line]:
        """Yield what is not closed away, and within the range of time."""
        tree = self._tree
        groups: dict[int | None, list[SpanRow]] = {}
        for span in tree.order:
            if span is not tree.root and self._scale.has(span.start, tree.end_of(span)):
                groups.setdefault(tree.iterations[span.span_id], []).append(span)
        for iteration, spans in groups.items():
            group = Group(iteration, spans)
            yield group
            if self._is_group_open(group):
                yield from self._spans(spans)
        if self._last is not None and self._scale.has(self._last.start, self._last.end):
            yield self._last

    def _spans(self, spans: Sequence[SpanRow]) -> Iterator[Line]:
        closed: int | None = None
        for span in spans:
            depth = self._tree.depths[span.span_id]
            if closed is not None and depth > closed:
                continue
            gap = self._gaps.get(span.span_id)
            if gap is not None and self._scale.has(gap.start, gap.end):
                yield gap
            yield span
            closed = None if self._is_open(span) else depth

    def _is_group_open(self, group: Group) -> bool:
        is_open = not self._is_large or any(map(is_fault, group.spans))
        return self._answer(group.key, is_open) or group.iteration == self._iteration

    def _is_open(self, span: SpanRow) -> bool:
        if span.span_id not in self._tree.children:
            return True
        return (
            self._answer(self._tree.key(span), not (self._is_large and is_root(span))) or span.span_id in self._forced
        )

    def _answer(self, key: str, is_open: bool) -> bool:
        if self._state.open:
            is_open = self._state.open == "all"
        return is_open != (key in self._state.folds)

    def _html(self, line: Line) -> str:
        if isinstance(line, Group):
            return self._group(line)
        return self._gap(line) if isinstance(line, Gap) else self._row(line)

    def _group(self, group: Group) -> str:
        """Return the row of an iteration, which opens or closes it."""
        end_of = self._tree.end_of
        start, end = min(span.start for span in group.spans), max(map(end_of, group.spans))
        faults, number = sum(map(is_fault, group.spans)), len(group.spans)
        name = "Outside iterations" if group.iteration is None else f"Iteration {group.iteration}"
        wrong = f', <span class="bad">{faults} went wrong</span>' if faults else ""
        note = f"<em>{number:,} span{'s' if number != 1 else ''}{wrong}</em>"
        is_open = self._is_group_open(group)
        address = escape(self._state.folded(group.key))
        return (
            f'<a href="{address}" id="{group.key}" class="g{" open" if is_open else ""}"><b>{name}{note}</b>'
            f"<i>{duration(end - start)}</i>{self._scale.bar(start, end)}</a>"
        )

    def _gap(self, gap: Gap) -> str:
        bar = self._scale.bar(gap.start, gap.end)
        return f'<div class="r gap"><b>{gap.name}</b><i>{duration(gap.end - gap.start)}</i>{bar}</div>'

    def _row(self, span: SpanRow) -> str:
        """Return the row of a span; its link is relative to the page of the run."""
        tree, depth = self._tree, min(self._tree.depths[span.span_id], _DEEPEST)
        kinds = ["r", _PHASES.get(span.phase or "", "o")]
        if depth > 0:
            kinds.append(f"d{depth}")
        if is_fault(span):
            kinds.append("x")
        elif span.status not in {semconv.COMPLETED, "ok"}:
            kinds.append("w")
        if span.span_id in self._critical:
            kinds.append("k")
        if span is self._selected:
            kinds.append("on")
        reason = span.error or span.error_type or (span.status if "x" in kinds or "w" in kinds else waited(span))
        note = f"<em>{escape(visible(short(reason, 90)))}</em>" if reason else ""
        shown = "running" if span.status == RUNNING else took(span)
        name = span.name
        if is_root(span) and not tree.is_own(span):
            name = f"run of {tree.nested[span.run_id].agent}"
        address = tree.address(span)
        row = (
            f'<a href="{address}" class="{" ".join(kinds)}"><b>{escape(visible(cut(name, 80)))}{note}</b>'
            f"<i>{shown}</i>{self._scale.bar(span.start, tree.end_of(span))}</a>"
        )
        if span.span_id not in tree.children:
            return row
        key = tree.key(span)
        sign, label = ("▾", "close") if self._is_open(span) else ("▸", "open")
        fold = f'<a href="{escape(self._state.folded(key))}" id="{escape(key)}" class="f d{depth}"'
        return f'<div class="l">{row}{fold} aria-label="{label}">{sign}</a></div>'
