"""Charts of a hub as SVG: quantiles over time against the objective, and a heatmap that leads to spans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from markupsafe import Markup

from pellucid_exporters.stored.quantiles import Quantile, Sample, quantiles, summed
from pellucid_exporters.stored.rows import HubRow
from pellucid_exporters.stored.text import seconds

MINUTE: Final = 60_000_000_000
"""Nanoseconds."""

COLUMNS: Final = 60
"""Most columns of a chart; a column is a whole number of minutes."""

WIDTH: Final = 720
LEFT: Final = 62
RIGHT: Final = 34
LINE_HEIGHT: Final = 150
CELL_HEIGHT: Final = 14
AXIS_HEIGHT: Final = 18
SHARES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
_LABEL_HEIGHT: Final = 11
_DAY: Final = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class Columns:
    """Histograms of a hub in equal steps of time.

    Attributes:
        since: Start of the first column, in nanoseconds.
        step: Nanoseconds of a column.
        buckets: Counts of each column.
        samples: Durations of each column.
    """

    since: int
    step: int
    buckets: list[list[int]]
    samples: list[list[Sample]]

    def x(self, index: float) -> float:
        """Return the left edge of a column."""
        return LEFT + index * (WIDTH - LEFT - RIGHT) / len(self.buckets)

    def start(self, index: int) -> int:
        """Return the time at which a column starts."""
        return self.since + index * self.step


def columns(hub: HubRow, since: int, until: int) -> Columns:
    """Return the histograms of a hub from `since` to `until`."""
    first = since - since % MINUTE
    minutes = max(1, math.ceil((until - first) / MINUTE))
    step = math.ceil(minutes / COLUMNS) * MINUTE
    length = len(hub.bounds) + 1
    number = math.ceil((until - first) / step) or 1
    groups: list[list[Sequence[int]]] = [[] for _ in range(number)]
    samples: list[list[Sample]] = [[] for _ in range(number)]
    for minute, buckets in hub.by_minute.items():
        index = (minute - first) // step
        if 0 <= index < number:
            groups[index].append(buckets)
            samples[index] += hub.samples[minute]
    return Columns(first, step, [summed(group, length) for group in groups], samples)


def latency_chart(hub: HubRow, data: Columns) -> Markup:
    """Return p50, p95 and p99 over time on a logarithmic scale, with the objective as a line."""
    shares = [share for share, _ in SHARES]
    rows = [[_seconds(value) for value in quantiles(column, shares)] for column in data.samples]
    series = [(name, [row[place] for row in rows]) for place, (_, name) in enumerate(SHARES)]
    values = [value for _, points in series for value in points if value] + ([hub.objective] if hub.objective else [])
    if not values:
        return Markup()
    low, high = math.log10(min(values) / 1.6), math.log10(max(values) * 1.6)

    def y(value: float) -> float:
        return round(6 + (LINE_HEIGHT - 24) * (high - math.log10(max(value, 1e-9))) / (high - low), 1)

    lines, labels = _scale(low, high, y)
    parts = [lines, labels, _times(data, LINE_HEIGHT - 4)]
    if hub.objective:
        at = y(hub.objective)
        parts.append(
            Markup(
                '<line class="objective" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="objective" x="{}" y="{}">'
                "objective {}</text>"
            ).format(LEFT, WIDTH - RIGHT, at, at, LEFT + 4, at - 4, seconds(hub.objective))
        )
    parts += [_line(name, points, data, y) for name, points in series]
    parts.append(_labels(series, data, y))
    return _svg("img", LINE_HEIGHT, f"p50, p95 and p99 of {hub.provider_id} over time", parts, labels)


def _seconds(value: Quantile | None) -> float | None:
    return value.seconds if value is not None else None


def bucket_label(hub: HubRow, index: int) -> str:
    """Return the bound of a bucket."""
    return f"≤ {seconds(hub.bounds[index])}" if index < len(hub.bounds) else f"> {seconds(hub.bounds[-1])}"


def heatmap(
    hub: HubRow,
    data: Columns,
    link: Callable[[str, str], str | None],
    cell_link: Callable[[int, int, int], str] | None = None,
) -> Markup:
    """Return the requests by bucket and time.

    Args:
        hub: The hub.
        data: Its histograms.
        link: Address of a span, if it has one, by run id and span id: a row leads to a span that fell into its bucket.
        cell_link: Address of a span of one cell, by the bucket's index and the start and end of the column.
    """
    totals = summed(data.buckets, len(hub.bounds) + 1)
    used = [index for index, number in enumerate(totals) if number]
    if not used:
        return Markup()
    most = max(number for column in data.buckets for number in column)
    rows = range(max(used[0] - 1, 0), min(used[-1] + 1, len(totals) - 1) + 1)
    parts, labels = [], []
    for index in rows:
        top = (rows[-1] - index) * CELL_HEIGHT
        label = bucket_label(hub, index)
        cells = [
            _cell(data, index, position, top, most, cell_link)
            for position, column in enumerate(data.buckets)
            if column[index]
        ]
        exemplar = hub.exemplars.get(index)
        address = link(*exemplar) if exemplar is not None and totals[index] else None
        parts.append(_lane(hub, index, label, top, cells, address))
        labels.append(_group(hub, index, _axis(top + CELL_HEIGHT - 3, label)))
    height = len(rows) * CELL_HEIGHT + AXIS_HEIGHT
    title = f"Requests to {hub.provider_id} by duration and time"
    return _svg("group", height, title, [*parts, _times(data, height - 4)], Markup().join(labels))


def _lane(hub: HubRow, index: int, label: str, top: int, cells: Sequence[Markup], address: str | None) -> Markup:
    """Return the row of a bucket; its label is a link to a span."""
    text = _axis(top + CELL_HEIGHT - 3, label)
    lane = Markup('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>').format(
        LEFT, top, WIDTH - LEFT - RIGHT, CELL_HEIGHT - 1
    )
    if address is not None:
        name = f"A request {label}"
        lane = Markup('<a href="{}" aria-label="{}"><title>{}</title>{}{}</a>').format(address, name, name, lane, text)
        text = Markup()
    return _group(hub, index, lane + text + Markup().join(cells))


def _group(hub: HubRow, index: int, content: Markup) -> Markup:
    """Return content of a bucket, which is over the objective or under it."""
    is_over = hub.objective is not None and (index >= len(hub.bounds) or hub.bounds[index] > hub.objective * 1.000001)
    return Markup('<g class="{}">{}</g>').format("over" if is_over else "under", content)


def _axis(y: float, label: str) -> Markup:
    return Markup('<text class="axis" x="{}" y="{}">{}</text>').format(LEFT - 6, y, label)


def _cell(
    data: Columns,
    index: int,
    position: int,
    top: int,
    most: int,
    cell_link: Callable[[int, int, int], str] | None,
) -> Markup:
    width = (WIDTH - LEFT - RIGHT) / len(data.buckets)
    width -= width > 3  # noqa: PLR2004  (a gap between cells that are wide enough)
    number, start = data.buckets[position][index], data.start(position)
    cell = Markup(  # noqa: S704  (numbers)
        f'<rect class="h{_shade(number, most)}" x="{data.x(position):.1f}" y="{top}" width="{width:.1f}" '
        f'height="{CELL_HEIGHT - 1}"><title>{number} at {_moment(start, data, is_first=True)}</title></rect>'
    )
    if cell_link is None:
        return cell
    return Markup('<a href="{}" tabindex="-1">{}</a>').format(cell_link(index, start, start + data.step), cell)


def _shade(number: int, most: int) -> int:
    """Return 1 to 5, logarithmically."""
    return 1 + round(4 * math.log1p(number) / math.log1p(most))


def _line(name: str, points: Sequence[float | None], data: Columns, y: Callable[[float], float]) -> Markup:
    """Return a line through the columns that have a value; a point without neighbours is a dot."""
    places = [(data.x(index + 0.5), y(value)) for index, value in enumerate(points) if value is not None]
    path = " ".join(f"{x:.1f},{height}" for x, height in places)
    alone = [
        place
        for place, index in zip(places, (i for i, value in enumerate(points) if value is not None), strict=True)
        if not any(points[near] is not None for near in (index - 1, index + 1) if 0 <= near < len(points))
    ]
    dots = Markup().join(Markup('<circle cx="{:.1f}" cy="{}" r="2.5"/>').format(x, height) for x, height in alone)
    return Markup('<g class="{}"><polyline points="{}"/>{}</g>').format(name, path, dots)


def _labels(series: Sequence[tuple[str, Sequence[float | None]]], data: Columns, y: Callable[[float], float]) -> Markup:
    """Return the names of the lines at their last points, none over another."""
    last = [
        (y(value), index, name)
        for name, points in series
        for index, value in [next(((i, v) for i, v in reversed(list(enumerate(points))) if v is not None), (0, None))]
        if value is not None
    ]
    heights: list[float] = []
    for height, _, _ in sorted(last):
        heights.append(max(height + 3, heights[-1] + _LABEL_HEIGHT if heights else 0))
    rise = max(0.0, heights[-1] - (LINE_HEIGHT - AXIS_HEIGHT)) if heights else 0.0
    return Markup().join(
        Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            name, min(data.x(index + 0.5), WIDTH - RIGHT) + 6, height - rise, name
        )
        for height, (_, index, name) in zip(heights, sorted(last), strict=True)
    )


def _scale(low: float, high: float, y: Callable[[float], float]) -> tuple[Markup, Markup]:
    """Return lines at 1, 2 and 5 times powers of ten, or at powers of ten if there are many, and their labels."""
    factors = (1, 2, 5) if high - low < 1.5 else (1,)  # noqa: PLR2004  (decades)
    marks = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    shown = [mark for mark in marks if low <= math.log10(mark) <= high]
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    lines = Markup().join(line.format(LEFT, WIDTH - RIGHT, y(mark), y(mark)) for mark in shown)
    return lines, Markup().join(_axis(y(mark) + 4, seconds(mark)) for mark in shown)


def _times(data: Columns, y: int) -> Markup:
    """Return five times below a chart."""
    length = len(data.buckets)
    places = sorted({round(length * part / 4) for part in range(5)})
    return Markup().join(
        Markup('<text class="time{}" x="{:.1f}" y="{}">{}</text>').format(
            " first" if place == 0 else " last" if place == length else "",
            data.x(place),
            y,
            _moment(data.start(place), data, is_first=place == 0),
        )
        for place in places
    )


def _moment(nanoseconds: int, data: Columns, *, is_first: bool) -> str:
    """Return a local time of day; the day in a chart of several days, or if it is not today in the first label."""
    moment = datetime.fromtimestamp(nanoseconds / 1e9).astimezone()
    day = f"{moment.day} {moment:%b}"
    if data.step * len(data.buckets) > 2 * _DAY:
        return f"{day} {moment:%H:%M}" if is_first else day
    is_today = moment.date() == datetime.now().astimezone().date()
    return f"{day} {moment:%H:%M}" if is_first and not is_today else f"{moment:%H:%M}"


def _svg(role: str, height: int, title: str, parts: Sequence[Markup], labels: Markup) -> Markup:
    """Return a chart, and its labels once more: on a narrow screen they stay where they are when it is scrolled."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>'
        '<svg class="chart labels" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>'
    ).format(WIDTH, height, role, title, Markup().join(parts), LEFT, height, labels)
