"""The pages of tools and models: who calls them, how slow they are, how often they fail, and examples of each error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid import semconv
from pellucid_exporters.stored.quantiles import percentile
from pellucid_exporters.stored.rows import PART_OF, SUMMED, CallRow
from pellucid_exporters.viewer.pages import reader_of, render
from pellucid_exporters.viewer.trends.lines import largest, lines
from pellucid_exporters.viewer.windows import RANGES, range_of

PHASES: Final = {"tool": semconv.DISPATCH, "model": semconv.INFERENCE}
TITLES: Final = {"tool": "Tools", "model": "Models"}
SHARES: Final = (0.5, 0.95, 0.99)
STEPS: Final = 48
"""Steps of time of a chart."""

Measure = Callable[["Called"], float | None]

CHARTS: Final[Mapping[str, Measure]] = {
    "calls": lambda called: called.calls,
    "failed": lambda called: called.failed / called.calls,
    "p50": lambda called: called.durations[0],
    "p95": lambda called: called.durations[1],
    "tokens": lambda called: called.tokens,
    "cost": lambda called: called.cost,
}
"""Charts of one model; of a tool, the first four."""


@dataclass(frozen=True, slots=True)
class Called:
    """Calls of a tool or a model in a window of time.

    Attributes:
        calls: Number of calls that ended.
        failed: Number of those that ended with an error.
        durations: p50, p95 and p99 in seconds, exact.
        tokens, cost: Sums; of a tool, 0.
        cached: Share of the tokens of input that came from a prompt cache.
        errors: Types of errors with their number and the address of the latest span.
        latest: Address of the latest span.
    """

    name: str
    calls: int
    failed: int
    durations: Sequence[float | None]
    tokens: float
    cost: float
    cached: float | None
    errors: Sequence[tuple[str, int, str | None]]
    latest: str | None


def calls_page(kind: str) -> Callable[[Request], Response]:
    """Return the page of tools or models; with `id`, that of one of them."""

    def page(request: Request) -> Response:
        window, name = range_of(request), request.query_params.get("id")
        reader = reader_of(request)
        step = (window.until - window.since) // STEPS + 1 if name else None
        rows = reader.calls(window.since, window.until, {PHASES[kind]}, step)
        before = reader.calls(window.before, window.since - 1, {PHASES[kind]}, step) if name else []
        values = {
            "kind": kind,
            "title": TITLES[kind],
            "base": f"/{kind}s",
            "window": window,
            "ranges": RANGES,
            "called": _by_name(rows, kind),
        }
        if not name:
            return render(request, "calls.html", values)
        one = next((each for each in _by_name(rows, kind) if each.name == name), None)
        wanted: dict[str, Any] = {kind: name}
        runs = reader.runs(**wanted, before=window.until, limit=10)
        if one is None and not runs:
            raise HTTPException(404, f"No {kind} of this name was called in this window, nor before it.")
        values |= {
            "name": name,
            "one": one or Called(name, 0, 0, (None, None, None), 0, 0, None, (), None),
            "before": next((each for each in _by_name(before, kind) if each.name == name), None),
            "callers": sorted(
                reader.groups("agent", window.since, window.until, within=(kind, name)), key=lambda group: -group.runs
            ),
            "runs": runs,
            "charts": _charts([_named(before, kind, name), _named(rows, kind, name)], 6 if kind == "model" else 4),
        }
        return render(request, "called.html", values)

    return page


def _named(rows: Iterable[CallRow], kind: str, name: str) -> list[CallRow]:
    return [row for row in rows if row.labels.get(PART_OF[PHASES[kind]][1]) == name]


def _charts(periods: Sequence[Sequence[CallRow]], number: int) -> dict[str, tuple[Markup, float]]:
    """Return a line of the window and one of the period before, and the largest value of both, by measure."""
    steps: list[dict[int, Called]] = []
    for rows in periods:
        groups: dict[int, list[CallRow]] = {}
        for row in rows:
            groups.setdefault(row.step, []).append(row)
        steps.append({step: _called("", group) for step, group in groups.items()})
    charts: dict[str, tuple[Markup, float]] = {}
    for measure in list(CHARTS)[:number]:
        nothing = 0.0 if measure in {"calls", "tokens", "cost"} else None
        series = [
            [CHARTS[measure](called[step]) if step in called else nothing for step in range(STEPS)] for called in steps
        ]
        charts[measure] = lines(series[1], series[0], measure), largest(*series)
    return charts


def _by_name(rows: Iterable[CallRow], kind: str) -> list[Called]:
    """Return calls by name, those with the most calls first."""
    attribute = PART_OF[PHASES[kind]][1]
    groups: dict[str, list[CallRow]] = {}
    for row in rows:
        groups.setdefault(row.labels.get(attribute, ""), []).append(row)
    return sorted((_called(name, group) for name, group in groups.items()), key=lambda each: (-each.calls, each.name))


def _called(name: str, rows: Sequence[CallRow]) -> Called:
    ordered = sorted(duration for row in rows for duration in row.durations)
    latest = max(rows, key=lambda row: row.end)
    errors: dict[str, list[CallRow]] = {}
    for row in rows:
        if (error := row.labels.get(semconv.ERROR_TYPE)) is not None:
            errors.setdefault(error, []).append(row)
    counted = [
        (error, sum(row.calls for row in group), _address(max(group, key=lambda row: row.end)))
        for error, group in errors.items()
    ]
    sums = {attribute: sum(row.sums.get(attribute, 0) for row in rows) for attribute in SUMMED}
    sent = sums[semconv.USAGE_INPUT_TOKENS]
    return Called(
        name=name,
        calls=len(ordered),
        failed=sum(number for _, number, _ in counted),
        durations=[percentile(share, ordered) for share in SHARES],
        tokens=sent + sums[semconv.USAGE_OUTPUT_TOKENS],
        cost=sums[semconv.COST_USD],
        cached=sums[semconv.USAGE_CACHE_READ_INPUT_TOKENS] / sent if sent else None,
        errors=sorted(counted, key=lambda error: -error[1]),
        latest=_address(latest),
    )


def _address(row: CallRow) -> str | None:
    return f"/runs/{quote(row.run_id, safe='')}/span/{row.span_id}" if row.run_id else None
