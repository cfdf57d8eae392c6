"""Charts of a hub as SVG: quantiles over time against the objective, and a heatmap whose rows lead to spans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from pellucid_exporters.stored.quantiles import quantile, summed
from pellucid_exporters.stored.rows import HubRow
from pellucid_exporters.stored.text import clock, seconds

MINUTE: Final = 60_000_000_000
"""Nanoseconds."""

COLUMNS: Final = 60
"""Most columns of a chart; a column is a whole number of minutes."""

WIDTH: Final = 720
LEFT: Final = 64
RIGHT: Final = 12
LINE_HEIGHT: Final = 150
CELL_HEIGHT: Final = 13
SHARES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


@dataclass(frozen=True, slots=True)
class Columns:
    """Histograms of a hub in equal steps of time.

    Attributes:
        since: Start of the first column, in nanoseconds.
        step: Nanoseconds of a column.
        buckets: Counts of each column.
    """

    since: int
    step: int
    buckets: list[list[int]]

    def x(self, index: float) -> float:
        """Return the left edge of a column."""
        return LEFT + index * (WIDTH - LEFT - RIGHT) / len(self.buckets)


def columns(hub: HubRow, since: int, until: int) -> Columns:
    """Return the histograms of a hub from `since` to `until`."""
    first = since - since % MINUTE
    minutes = max(1, math.ceil((until - first) / MINUTE))
    step = math.ceil(minutes / COLUMNS) * MINUTE
    length = len(hub.bounds) + 1
    groups: list[list[Sequence[int]]] = [[] for _ in range(math.ceil((until - first) / step) or 1)]
    for minute, buckets in hub.by_minute.items():
        index = (minute - first) // step
        if 0 <= index < len(groups):
            groups[index].append(buckets)
    return Columns(first, step, [summed(group, length) for group in groups])


def latency_chart(hub: HubRow, data: Columns) -> Markup:
    """Return p50, p95 and p99 over time on a logarithmic scale, with the objective as a line."""
    series = [(name, [quantile(share, hub.bounds, column) for column in data.buckets]) for share, name in SHARES]
    values = [value for _, points in series for value in points if value] + ([hub.objective] if hub.objective else [])
    if not values:
        return Markup()
    low, high = math.log10(min(values) / 1.6), math.log10(max(values) * 1.6)

    def y(value: float) -> float:
        return round(6 + (LINE_HEIGHT - 24) * (high - math.log10(max(value, 1e-9))) / (high - low), 1)

    parts = [_scale(low, high, y), _times(data, LINE_HEIGHT - 4)]
    if hub.objective:
        at = y(hub.objective)
        parts.append(
            Markup(
                '<line class="objective" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="objective" x="{}" y="{}">'
                "objective {}</text>"
            ).format(LEFT, WIDTH - RIGHT, at, at, LEFT + 4, at - 4, seconds(hub.objective))
        )
    parts += [_line(name, points, data, y) for name, points in series]
    return _svg(LINE_HEIGHT, f"p50, p95 and p99 of {hub.provider_id} over time", parts)


def heatmap(hub: HubRow, data: Columns, link: Callable[[str, str], str]) -> Markup:
    """Return the round trips by bucket and time; the row of a bucket is a link to a span that fell into it."""
    totals = summed(data.buckets, len(hub.bounds) + 1)
    used = [index for index, number in enumerate(totals) if number]
    if not used:
        return Markup()
    most = max(number for column in data.buckets for number in column)
    rows = range(max(used[0] - 1, 0), min(used[-1] + 1, len(totals) - 1) + 1)
    parts = [_heat_row(hub, data, index, (rows[-1] - index) * CELL_HEIGHT, most, link, totals[index]) for index in rows]
    height = len(rows) * CELL_HEIGHT + 18
    return _svg(height, f"Round trips of {hub.provider_id} by duration and time", [*parts, _times(data, height - 4)])


def _heat_row(
    hub: HubRow, data: Columns, index: int, top: int, most: int, link: Callable[[str, str], str], total: int
) -> Markup:
    label = f"≤ {seconds(hub.bounds[index])}" if index < len(hub.bounds) else f"> {seconds(hub.bounds[-1])}"
    is_over = hub.objective is not None and (index >= len(hub.bounds) or hub.bounds[index] > hub.objective * 1.000001)
    width = (WIDTH - LEFT - RIGHT) / len(data.buckets)
    cells = [
        Markup('<rect class="h{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>').format(
            _shade(column[index], most),
            data.x(position),
            top,
            width - 1 if width > 3 else width,  # noqa: PLR2004  (a gap between cells that are wide enough)
            CELL_HEIGHT - 1,
            f"{column[index]} round trips {label}, {clock(data.since + position * data.step)}",
        )
        for position, column in enumerate(data.buckets)
        if column[index]
    ]
    row = Markup(
        '<rect class="lane" x="{}" y="{}" width="{}" height="{}"/><text class="axis" x="{}" y="{}">{}</text>{}'
    )
    drawn = row.format(
        LEFT, top, WIDTH - LEFT - RIGHT, CELL_HEIGHT - 1, LEFT - 6, top + CELL_HEIGHT - 3, label, Markup().join(cells)
    )
    group = Markup('<g class="{}">{}</g>').format("over" if is_over else "under", drawn)
    exemplar = hub.exemplars.get(index)
    if exemplar is None:
        return group
    title = Markup("<title>{}</title>").format(f"{total} round trips {label}: open one")
    return Markup('<a href="{}">{}{}</a>').format(link(*exemplar), title, group)


def _shade(number: int, most: int) -> int:
    """Return 1 to 5, logarithmically."""
    return 1 + round(4 * math.log1p(number) / math.log1p(most))


def _line(name: str, points: Sequence[float | None], data: Columns, y: Callable[[float], float]) -> Markup:
    """Return a line through the columns that have a value; a point without neighbours is a dot."""
    places = [(data.x(index + 0.5), y(value)) for index, value in enumerate(points) if value is not None]
    path = " ".join(f"{x:.1f},{height}" for x, height in places)
    dots = Markup().join(Markup('<circle cx="{:.1f}" cy="{}" r="2"/>').format(x, height) for x, height in places)
    return Markup('<g class="{}"><polyline points="{}"/>{}</g>').format(name, path, dots)


def _scale(low: float, high: float, y: Callable[[float], float]) -> Markup:
    """Return horizontal lines at 1, 2 and 5 times powers of ten, or at powers of ten if there are many."""
    factors = (1, 2, 5) if high - low < 2 else (1,)  # noqa: PLR2004  (decades)
    marks = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    lines = [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="axis" x="{}" y="{}">{}</text>').format(
            LEFT, WIDTH - RIGHT, y(mark), y(mark), LEFT - 6, y(mark) + 4, seconds(mark)
        )
        for mark in marks
        if low <= math.log10(mark) <= high
    ]
    return Markup().join(lines)


def _times(data: Columns, y: int) -> Markup:
    """Return five times below a chart."""
    length = len(data.buckets)
    places = sorted({round(length * part / 4) for part in range(5)})
    return Markup().join(
        Markup('<text class="time {}" x="{:.1f}" y="{}">{}</text>').format(
            "first" if place == 0 else "last" if place == length else "",
            data.x(place),
            y,
            clock(data.since + place * data.step)[:-3],
        )
        for place in places
    )


def _svg(height: int, title: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, title, Markup().join(parts)
    )
