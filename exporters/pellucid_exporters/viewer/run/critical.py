"""The critical path of a run: which span the run waited for at each moment.

From the end of a span backwards, the child that ended last is what the span waited for; before that child started, it
is the child that had ended last by then, and so on. What no child explains is the span's own time. The segments
cover the span from its start to its end without gaps or overlaps, so their sum is its duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pellucid_exporters.stored.rows import SpanRow


@dataclass(frozen=True, slots=True)
class Segment:
    """Time for which a run waited for a span itself, and not for one below it."""

    span: SpanRow
    start: int
    end: int

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


@dataclass(slots=True)
class _Frame:
    """A span whose time before `moment` is not yet explained, with its remaining children, the last one first."""

    span: SpanRow
    start: int
    end: int
    moment: int
    children: Iterator[SpanRow]


def critical_path(
    root: SpanRow, children: Mapping[str, Sequence[SpanRow]], end_of: Callable[[SpanRow], int]
) -> list[Segment]:
    """Return the segments of the critical path of a span, in the order of time.

    A child that starts before its parent or ends after it counts for the time that is its parent's. A child that was
    still under way when the next one on the path started is not on the path: nothing waited for it.

    Args:
        root: The span.
        children: Spans below a span, by its id.
        end_of: Returns the end of a span, or the time until which it has lasted.
    """
    segments: list[Segment] = []

    def frame(span: SpanRow, start: int, end: int) -> _Frame:
        below = sorted(children.get(span.span_id, ()), key=lambda child: (min(end_of(child), end), -child.start))
        return _Frame(span, start, end, end, reversed(below))

    def explain(at: _Frame, start: int) -> None:
        if start < at.moment:
            segments.append(Segment(at.span, start, at.moment))

    stack = [frame(root, root.start, end_of(root))]
    while stack:
        at = stack[-1]
        child = next(at.children, None)
        if child is None:
            explain(at, at.start)
            stack.pop()
            continue
        start, end = max(child.start, at.start), min(end_of(child), at.end)
        if start < end <= at.moment:
            explain(at, end)
            at.moment = start
            stack.append(frame(child, start, end))
    return segments[::-1]
