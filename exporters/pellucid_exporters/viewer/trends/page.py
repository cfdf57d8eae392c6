"""The page of trends: what changed since the period before, for whom, and how it went over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid_exporters.stored.quantiles import percentile
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import AGENT, ALL
from pellucid_exporters.stored.run_groups import DIMENSIONS, RunGroup
from pellucid_exporters.viewer.pages import reader_of, render
from pellucid_exporters.viewer.runs.address import check_kind
from pellucid_exporters.viewer.trends.lines import largest, lines
from pellucid_exporters.viewer.trends.scores import score_values
from pellucid_exporters.viewer.trends.versions import comparison_of, first_of, parts_of, versions_before
from pellucid_exporters.viewer.windows import RANGES, Range, range_of
from pellucid_exporters.viewer.zones import Zone

STEPS: Final = 48
"""Steps of time of a chart."""

MOST: Final = 100
"""Names that the page shows."""

Measure = Callable[[RunGroup], float | None]


def _share(group: RunGroup) -> float | None:
    return group.failed / group.runs if group.runs else None


def _cached(group: RunGroup) -> float | None:
    return (group.cached or 0) / group.sent if group.sent else None


MEASURES: Final[Mapping[str, Measure]] = {
    "runs": lambda group: group.runs,
    "failed": _share,
    "p50": lambda group: percentile(0.5, group.durations),
    "p95": lambda group: percentile(0.95, group.durations),
    "tokens": lambda group: group.tokens,
    "cost": lambda group: group.cost,
    "cached": _cached,
}

RATES: Final = frozenset({"failed", "p50", "p95", "cached"})
"""Measures that do not grow with the number of runs."""


@dataclass(frozen=True, slots=True)
class Mover:
    """One name in a window and in the period before it.

    Attributes:
        now, before: Values of `MEASURES`.
        cache: Shares of discoveries of a hub that were answered by the cache, in both periods.
        than: The version with which a new one is compared, in place of the period before.
    """

    name: str
    now: Mapping[str, float | None]
    before: Mapping[str, float | None]
    cache: tuple[float | None, float | None] = (None, None)
    than: str | None = None

    def change(self, measure: str) -> float:
        """Return by how much it changed; a name that is new has changed by all of it."""
        return (self.now[measure] or 0) - (self.before[measure] or 0)


def trends_page(request: Request) -> Response:
    """Show runs, failures, durations, tokens and cost by a dimension, against the period before."""
    parameters = request.query_params
    by, order = parameters.get("by") or "agent", parameters.get("sort") or "cost"
    if by not in DIMENSIONS or order not in MEASURES:
        raise HTTPException(400, f"Trends are by {', '.join(DIMENSIONS)}, in the order of {', '.join(MEASURES)}.")
    asked = parameters.get("kind") or ""
    check_kind(asked)
    kind = asked or (ALL if by == "conversation" else AGENT)
    window, name, zone = range_of(request, "7d"), parameters.get("name") or None, Zone(parameters.get("zone"))
    reader, within = reader_of(request), (by, name) if name is not None else None
    step = (window.until - window.since) // STEPS + 1
    over_time = [
        reader.groups(None, since, since + STEPS * step, step=step, within=within, kind=kind)
        for since in (window.before, window.since)
    ]
    whole = [reader.groups(None, *period, within=within, kind=kind) for period in _periods(window)]
    named = [reader.groups(by, *period, kind=kind) for period in _periods(window)]
    movers = _movers(named, _cache(request, window) if by == "hub" else {})
    known = first_of(named)
    found = reader.groups("agent", window.before, window.until) if by == "version" else []
    agents = sorted((group.name for group in found), key=len, reverse=True)
    earlier = versions_before(known.values(), agents)
    movers = [_against(mover, known.get(earlier.get(mover.name, ""))) for mover in movers]
    movers.sort(key=lambda mover: (-abs(mover.change(order)), mover.name))
    values = {
        "by": by,
        "order": order,
        "name": name,
        "kind": asked or None,
        "is_of_agents": kind == AGENT,
        "hidden": _hidden(reader, window, within, whole[1]) if kind != ALL else 0,
        "window": window,
        "zone": zone,
        "dimensions": DIMENSIONS,
        "measures": tuple(MEASURES),
        "ranges": RANGES,
        "movers": movers[:MOST],
        "number": len(movers),
        "than": earlier.get(name or ""),
        "comparison": _comparison(reader, agents, name, earlier),
        "all": Mover("", _values(whole[1]), _values(whole[0])),
        **score_values(reader, window, by, name),
        "charts": {measure: _chart(over_time, measure) for measure in MEASURES},
    }
    return render(request, "trends.html", values)


def _hidden(reader: Reader, window: Range, within: tuple[str, str] | None, counted: Sequence[RunGroup]) -> int:
    """Return how many runs of the window are of other kinds than those that are counted."""
    everything = reader.groups(None, window.since, window.until, within=within, has_durations=False)
    return sum(group.runs for group in everything) - sum(group.runs for group in counted)


def _periods(window: Range) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the period before, and the window."""
    return (window.before, window.since), (window.since, window.until)


def _values(groups: Sequence[RunGroup]) -> dict[str, float | None]:
    """Return the measures of the only group, if there is one."""
    return {measure: compute(groups[0]) if groups else None for measure, compute in MEASURES.items()}


def _movers(named: Sequence[Iterable[RunGroup]], cache: Mapping[str, Any]) -> list[Mover]:
    before, now = ({group.name: group for group in groups} for groups in named)
    return [
        Mover(
            name,
            _values([now[name]] if name in now else []),
            _values([before[name]] if name in before else []),
            cache.get(name, (None, None)),
        )
        for name in {**before, **now}
    ]


def _against(mover: Mover, earlier: RunGroup | None) -> Mover:
    """Return a new version against the one before it, as far as that does not depend on how many runs they had."""
    if earlier is None or any(value is not None for value in mover.before.values()):
        return mover
    before = {measure: value if measure in RATES else None for measure, value in _values([earlier]).items()}
    return replace(mover, before=before, than=earlier.name)


def _comparison(reader: Reader, agents: Sequence[str], name: str | None, earlier: Mapping[str, str]) -> str | None:
    """Return the address that compares a version with the one before it."""
    if name is None or name not in earlier:
        return None
    return comparison_of(reader, parts_of(earlier[name], agents), parts_of(name, agents))


def _cache(request: Request, window: Range) -> dict[str, tuple[float | None, float | None]]:
    """Return the shares of discoveries that the cache answered by hub: now, and in the period before."""
    shares: list[dict[str, float]] = []
    for since, until in _periods(window):
        hubs = reader_of(request).hubs(since, until - 1)
        shares.append(
            {
                hub.provider_id: hub.cache.get("hit", 0) / sum(hub.cache.values())
                for hub in hubs
                if any(hub.cache.values())
            }
        )
    before, now = shares
    return {name: (now.get(name), before.get(name)) for name in {**before, **now}}


def _chart(over_time: Sequence[Sequence[RunGroup]], measure: str) -> tuple[Markup, float]:
    """Return a line of the window and one of the period before, and the largest value of both."""
    series: list[list[float | None]] = []
    for groups in over_time:
        by_step = {group.step: group for group in groups}
        counts = 0.0 if measure in {"runs", "tokens", "cost"} else None
        series.append([MEASURES[measure](by_step[step]) if step in by_step else counts for step in range(STEPS)])
    return lines(series[1], series[0], measure), largest(*series)
