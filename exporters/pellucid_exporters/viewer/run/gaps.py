"""Time of a run: the critical path by phase, and its gaps by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pellucid import semconv
from pellucid_exporters.stored import text
from pellucid_exporters.stored.rows import SpanRow
from pellucid_exporters.viewer.run.critical import Segment, critical_path
from pellucid_exporters.viewer.run.tree import RunTree, is_root

QUEUEING: Final = "queueing"
APPROVAL: Final = "waiting for approval"
OUTSIDE: Final = "waiting outside"
UNNAMED: Final = "between spans"

NAMES: Final = {
    semconv.DISCOVERY: "discovery",
    semconv.COMPOSE: "compose",
    semconv.INFERENCE: "model",
    semconv.DISPATCH: "tools",
    semconv.AWAIT: OUTSIDE,
    semconv.RUN: UNNAMED,
}
"""Names of time by the phase of the span that a run waited for."""

KINDS: Final = {"discovery": "v", "compose": "c", "model": "m", "tools": "t"}
"""Classes of the colours; everything else is grey."""

_SHARE: Final = 0.01
_LEAST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """Time for which a run waited for none of its spans. Attributes: before: The span that followed, if any."""

    name: str
    start: int
    end: int
    before: SpanRow | None


@dataclass(frozen=True, slots=True)
class Path:
    """The critical path of a run.

    Attributes:
        duration: Nanoseconds of the run, which is the sum of all of `times`.
        times: Nanoseconds by name.
        spans: Nanoseconds on the path by the id of the span.
        gaps: Gaps of at least 1 % of the run, and 1 ms, in the order of time.
    """

    segments: Sequence[Segment]
    duration: int
    times: dict[str, int]
    spans: dict[str, int]
    gaps: Sequence[Gap]


def path_of(tree: RunTree) -> Path | None:
    """Return the critical path of a run; `None` if its own span is not recorded."""
    if tree.root is None:
        return None
    segments = critical_path(tree.root, tree.children, tree.end_of)
    times: dict[str, int] = {}
    spans: dict[str, int] = {}
    gaps: list[Gap] = []
    duration = tree.end_of(tree.root) - tree.root.start
    least = max(_LEAST, duration * _SHARE)
    for index, segment in enumerate(segments):
        following = _call(tree, segments[index + 1].span) if index + 1 < len(segments) else None
        name = _name(tree, segment, following)
        times[name] = times.get(name, 0) + segment.duration
        spans[segment.span.span_id] = spans.get(segment.span.span_id, 0) + segment.duration
        if segment.span is tree.root and segment.duration >= least:
            gaps.append(Gap(name, segment.start, segment.end, following))
    ranked = dict(sorted(times.items(), key=lambda item: -item[1]))
    return Path(segments, duration, ranked, spans, gaps)


def _call(tree: RunTree, span: SpanRow) -> SpanRow:
    """Return the span directly below the run's own that a span belongs to."""
    for parent in tree.above(span):
        if parent is tree.root:
            break
        span = parent
    return span


def _name(tree: RunTree, segment: Segment, following: SpanRow | None) -> str:
    """Return what a run waited for; before a tool call, what the call waited for."""
    span = segment.span
    if is_root(span) and following is not None and following.phase == semconv.DISPATCH:
        approval, queued = waits(following)
        if approval >= segment.duration / 2:
            return APPROVAL
        if queued >= segment.duration / 2:
            return QUEUEING
    while span.phase not in NAMES:
        parent = next(tree.above(span), None)
        if parent is None:
            return UNNAMED
        span = parent
    return NAMES[span.phase or ""]


def waits(span: SpanRow) -> tuple[float, float]:
    """Return the nanoseconds for which a tool call waited for approval, and for its turn."""
    found = (span.attributes.get(semconv.APPROVAL_WAITED), span.attributes.get(semconv.TOOL_QUEUED))
    numbers = [value if isinstance(value, int | float) and not isinstance(value, bool) else 0 for value in found]
    return numbers[0] * 1e9, numbers[1] * 1e6


def waited(span: SpanRow) -> str:
    """Return what a tool call waited for before its span began, if it is worth a word."""
    approval, queued = waits(span)
    words = [f"approved after {text.duration(approval)}"] if approval else []
    return ", ".join([*words, f"queued {text.duration(queued)}"] if queued >= _LEAST else words)
