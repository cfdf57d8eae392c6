"""Histogram of runs over time, by their status, as SVG; a bar leads to its runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from markupsafe import Markup

from pellucid_exporters.stored.rows import AWAITING, INTERRUPTED, RUNNING
from pellucid_exporters.viewer.zones import Zone

BARS: Final = 72
"""Most bars of a histogram."""

WIDTH: Final = 1440
HEIGHT: Final = 44
LABELS: Final = 5
_SECOND: Final = 10**9
_STEPS: Final = tuple(
    seconds * _SECOND
    for seconds in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400),
        *(2 * 86_400, 7 * 86_400, 28 * 86_400, 364 * 86_400),
    )
)
GROUPS: Final = ("good", "waits", "open", "ended", "bad")
"""Classes of bars, from the bottom: completed, waiting, under way, cancelled, and what failed."""

_GROUP_OF: Final = {
    "completed": "good",
    **dict.fromkeys(AWAITING, "waits"),
    **dict.fromkeys((RUNNING, ""), "open"),
    "cancelled": "ended",
    **dict.fromkeys(("failed", "timeout", "lost", INTERRUPTED), "bad"),
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram.

    Attributes:
        svg: The chart; empty without runs.
        labels: Times below it, from left to right.
        step: Nanoseconds of a bar.
        most: Number of runs of the highest bar.
    """

    svg: Markup
    labels: Sequence[str]
    step: int
    most: int


def histogram(
    counts: Iterable[tuple[int, str, int]],
    since: int | None,
    until: int | None,
    zone: Zone,
    link: Callable[[int, int], str],
    least_step: int = 0,
) -> Histogram:
    """Return the histogram of runs.

    Args:
        counts: Time, status and number of runs.
        since: Start of the range; by default that of the first run.
        until: Its end; by default that of the last run, or now if `since` is given.
        zone: Zone of the times.
        link: Address of the runs between two times.
        least_step: Nanoseconds that a bar stands for at least.
    """
    rows = list(counts)
    if not rows:
        return Histogram(Markup(), (), 0, 0)
    first = since if since is not None else min(start for start, _, _ in rows)
    last = until if until is not None else time.time_ns() if since is not None else max(row[0] for row in rows) + 1
    step = next((step for step in _STEPS if step >= least_step and (last - first) / step < BARS - 1), _STEPS[-1])
    offset = int((zone.at(first).utcoffset() or timedelta()).total_seconds()) * _SECOND  # days are those of the zone
    first -= (first + offset) % step
    number = min(BARS, max(1, math.ceil((last - first) / step)))
    bars: list[dict[str, int]] = [{} for _ in range(number)]
    for start, status, runs in rows:
        place = (start - first) // step
        if 0 <= place < number:
            group = _GROUP_OF.get(status, "bad")
            bars[place][group] = bars[place].get(group, 0) + runs
    most = max(sum(bar.values()) for bar in bars)
    width = WIDTH / number
    parts = [
        _bar(bar, index, width, most, zone, first + index * step, step, link) for index, bar in enumerate(bars) if bar
    ]
    end = first + number * step
    svg = Markup(
        '<svg class="histogram" viewBox="0 0 {} {}" preserveAspectRatio="none" role="group" '
        'aria-label="Runs over time, by status" data-since="{}" data-until="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, first // 10**6, end // 10**6, Markup().join(parts))
    labels = [zone.short(first + (end - first) * part // (LABELS - 1), end - first) for part in range(LABELS)]
    return Histogram(svg, labels, step, most)


def _bar(
    bar: dict[str, int],
    index: int,
    width: float,
    most: int,
    zone: Zone,
    start: int,
    step: int,
    link: Callable[[int, int], str],
) -> Markup:
    total = sum(bar.values())
    failed = f", {bar['bad']:,} failed" if bar.get("bad") else ""
    name = (
        f"{total:,} run{'s' if total != 1 else ''}{failed}, {zone.stamp(start)[:19]} to {zone.stamp(start + step)[:19]}"
    )
    x, shown = index * width, width - 1.5 if width > 4 else width  # noqa: PLR2004  (a gap between wide bars)
    rects = [Markup('<rect class="lane" x="{:.1f}" width="{:.1f}" height="{}"/>').format(x, width, HEIGHT)]
    y = float(HEIGHT)
    for group in GROUPS:
        if runs := bar.get(group):
            height = max(1.5, (HEIGHT - 2) * runs / most)
            y -= height
            rects.append(
                Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                    group, x, y, shown, height
                )
            )
    return Markup('<a href="{}" tabindex="-1" aria-label="{}"><title>{}</title>{}</a>').format(
        link(start, start + step), name, name, Markup().join(rects)
    )
