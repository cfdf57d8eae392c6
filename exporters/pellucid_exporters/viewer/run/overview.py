"""The overview of a run: when it was in which phase, its critical path, and links that zoom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from pellucid import semconv
from pellucid_exporters.viewer.run.gaps import KINDS, NAMES, Path
from pellucid_exporters.viewer.run.scale import MILLISECOND, Scale
from pellucid_exporters.viewer.run.state import State
from pellucid_exporters.viewer.run.tree import RunTree, is_fault

_WIDTH: Final = 1_000
_HEIGHT: Final = 7
_LANES: Final = (semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH, semconv.AWAIT)
_MOST_LINKS: Final = 60
"""Iterations, or groups of them, to which the overview has links."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview. Attributes: svg: The picture. lanes: Names of its lanes, and their classes."""

    svg: Markup
    lanes: Sequence[tuple[str, str]]


def overview(tree: RunTree, state: State, scale: Scale, path: Path | None) -> Overview:
    """Return the overview of a run: a lane for each phase, one for failures, and the critical path."""
    lanes: list[tuple[str, str, list[tuple[int, int]]]] = []
    for phase in _LANES:
        times = [(span.start, tree.end_of(span)) for span in tree.order if span.phase == phase]
        if times:
            lanes.append((NAMES[phase], KINDS.get(NAMES[phase], "o"), times))
    faults = [(span.start, tree.end_of(span)) for span in tree.order if is_fault(span) and span is not tree.root]
    if faults:
        lanes.append(("went wrong", "x", faults))
    if path is not None:
        own = [(each.start, each.end) for each in path.segments if each.span is not tree.root]
        lanes.append(("critical path", "k", own))
    height = _HEIGHT * max(1, len(lanes))
    drawn = "".join(
        f'<path class="{kind}" d="{_lane(tree, times, place * _HEIGHT + 1)}"/>'
        for place, (_, kind, times) in enumerate(lanes)
    )
    shade = ""
    if state.since is not None or state.until is not None:
        left, right = _x(tree, scale.start), _x(tree, scale.end)
        shade = f'<rect class="range" x="{left:g}" width="{max(right - left, 1):g}" height="{height}"/>'
    total = (tree.end - tree.start) / MILLISECOND
    links = "".join(_links(tree, state, height))
    svg = Markup(  # noqa: S704  (numbers, and addresses that are escaped)
        f'<svg class="map" viewBox="0 0 {_WIDTH} {height}" height="{2 * height}" preserveAspectRatio="none"'
        f' data-total="{total:.6f}"'
        f' role="group" aria-label="Zoom">{drawn}{shade}{links}</svg>'
    )
    return Overview(svg, [(name, kind) for name, kind, _ in lanes])


def _x(tree: RunTree, time: int) -> float:
    return round(_WIDTH * (time - tree.start) / (tree.end - tree.start), 1)


def _lane(tree: RunTree, times: Iterable[tuple[int, int]], y: int) -> str:
    """Return the path of a lane: at most one mark for each of `_WIDTH` columns."""
    least = max(1, (tree.end - tree.start) // _WIDTH)
    merged: list[list[int]] = []
    for start, end in sorted(times):
        end = max(end, start + least)  # noqa: PLW2901  (as wide as a column)
        if merged and start <= merged[-1][1] + least:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    height = _HEIGHT - 2
    marks: list[str] = []
    for start, end in merged:
        left, right = _x(tree, start), _x(tree, end)
        marks.append(f"M{left:g} {y}H{right:g}v{height}H{left:g}z")
    return "".join(marks)


def _links(tree: RunTree, state: State, height: int) -> Iterable[str]:
    """Yield links that zoom to an iteration, or to several of a run that has many."""
    bounds: dict[int, list[int]] = {}
    for span in tree.spans:
        iteration = tree.iterations.get(span.span_id)
        if iteration is not None:
            known = bounds.setdefault(iteration, [span.start, tree.end_of(span)])
            known[0], known[1] = min(known[0], span.start), max(known[1], tree.end_of(span))
    numbers = sorted(bounds)
    step = -(-len(numbers) // _MOST_LINKS) or 1
    for place in range(0, len(numbers), step):
        some = numbers[place : place + step]
        start, end = min(bounds[each][0] for each in some), max(bounds[each][1] for each in some)
        name = f"iteration {some[0]}" if len(some) == 1 else f"iterations {some[0]} to {some[-1]}"
        since, until = ((time - tree.start) / MILLISECOND for time in (start, end))
        address = escape(state.address(since=since, until=until, row=None))
        left, right = _x(tree, start), _x(tree, end)
        yield (
            f'<a href="{address}" aria-label="zoom to {name}"><rect x="{left:g}" width="{max(right - left, 0.5):g}"'
            f' height="{height}"><title>{name}</title></rect></a>'
        )
