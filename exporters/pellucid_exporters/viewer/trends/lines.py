"""Small charts of two lines: a window of time, and the period before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from markupsafe import Markup

WIDTH: Final = 480
HEIGHT: Final = 70
_PADDING: Final = 3


def lines(now: Sequence[float | None], before: Sequence[float | None], title: str) -> Markup:
    """Return a chart from 0 to the largest value; where a value is unknown, a line has a gap."""
    most = largest(now, before)
    if not most:
        return Markup()
    parts = [*_line(before, most, "before"), *_line(now, most, "now")]
    return Markup(
        '<svg class="small-chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{} over time, and in the period before">{}</svg>'
    ).format(WIDTH, HEIGHT, title, Markup().join(parts))


def largest(*values: Sequence[float | None]) -> float:
    """Return the largest value of some lines; 0 if there is none."""
    return max((value for line in values for value in line if value), default=0.0)


def _line(values: Sequence[float | None], most: float, name: str) -> Iterator[Markup]:
    """Yield a line for each part without gaps; a point alone is a short line."""
    step, bottom = WIDTH / max(1, len(values) - 1), HEIGHT - _PADDING
    for is_known, points in groupby(enumerate(values), key=lambda point: point[1] is not None):
        if is_known:
            places = [(place * step, bottom - (value or 0) / most * (bottom - _PADDING)) for place, value in points]
            if len(places) == 1:
                places.append((places[0][0] + 2, places[0][1]))
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield Markup('<polyline class="{}" points="{}"/>').format(name, path)
