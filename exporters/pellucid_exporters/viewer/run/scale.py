"""The horizontal scale of the bars: a range of the run's time."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from pellucid_exporters.stored.text import duration
from pellucid_exporters.viewer.run.state import State
from pellucid_exporters.viewer.run.tree import RunTree

MILLISECOND: Final = 1_000_000
_THINNEST: Final = 0.3
_MOST_TICKS: Final = 5
_LAST: Final = 0.93
_STEPS: Final = (1, 2, 5)


class Scale:
    """Range of time that the bars cover. Attributes: start, end: Nanoseconds since the epoch."""

    def __init__(self, tree: RunTree, state: State) -> None:
        self.origin = tree.start
        self.start, self.end = tree.start, tree.end
        if state.since is not None:
            self.start = min(tree.start + int(state.since * MILLISECOND), tree.end - 1)
        if state.until is not None:
            self.end = min(tree.end, max(self.start + 1, tree.start + int(state.until * MILLISECOND)))

    def has(self, start: int, end: int) -> bool:
        """Return whether a time is within the range, at least in part."""
        return start <= self.end and end >= self.start

    def bar(self, start: int, end: int) -> str:
        """Return a bar as SVG."""
        start, end, total = max(start, self.start), min(end, self.end), self.end - self.start
        left = min(100 * (start - self.start) / total, 100 - _THINNEST)
        width = max(100 * (end - start) / total, _THINNEST)
        return f'<svg><rect x="{left:.1f}%" width="{width:.1f}%"/></svg>'

    def ticks(self) -> Markup:
        """Return round times of the scale as SVG, at most `_MOST_TICKS`, since the start of the run."""
        total, step = self.end - self.start, 1
        while total // step > _MOST_TICKS:
            power = 10 ** (len(str(step)) - 1)
            step = next((power * factor for factor in _STEPS if power * factor > step), power * 10)
        first = -(-(self.start - self.origin) // step) * step
        texts = "".join(
            f'<text x="{100 * (self.origin + at - self.start) / total:.2f}%" y="11">{duration(at) if at else 0}</text>'
            for at in range(first, self.end - self.origin, step)
            if self.origin + at - self.start < _LAST * total  # a text further right would be cut
        )
        return Markup(f"<svg>{texts}</svg>")  # noqa: S704  (numbers)
