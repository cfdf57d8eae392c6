"""The page of hubs: which one is slow, fails or hangs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid import semconv
from pellucid_exporters.stored.quantiles import share_above, summed
from pellucid_exporters.stored.rows import HubRow, SpanRow
from pellucid_exporters.viewer.charts import columns, heatmap, latency_chart
from pellucid_exporters.viewer.pages import reader_of, render

WINDOWS: Final = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
"""Windows of time by their name in the URL, in seconds."""

TOLERANCE: Final = 0.01
"""Share of round trips that may be over the objective."""


@dataclass(frozen=True, slots=True)
class HubView:
    """A hub as the page shows it.

    Attributes:
        state: `hangs`, `slow`, `fails` or `ok`.
        over: Share of round trips over the objective.
        cache: Cache outcomes with their count and share.
        in_flight: Discoveries that have not ended, oldest first.
    """

    row: HubRow
    state: str
    over: float | None
    cache: list[tuple[str, int, float]]
    in_flight: list[SpanRow]
    latency: Markup
    heatmap: Markup


def hubs_page(request: Request) -> Response:
    """Show each hub's quantiles over time, heatmap, cache outcomes and discoveries in flight; the worst first."""
    window = request.query_params.get("window", "1h")
    if window not in WINDOWS:
        raise HTTPException(400, f"The window must be one of {', '.join(WINDOWS)}.")
    until = _until(request.query_params.get("until"))
    moment = until if until is not None else time.time_ns()
    since = moment - WINDOWS[window] * 1_000_000_000
    reader = reader_of(request)
    in_flight = [] if until is not None else [span for span in reader.in_flight() if span.phase == semconv.DISCOVERY]
    views = [_view(hub, since, moment, in_flight) for hub in reader.hubs(since, moment)]
    views.sort(key=lambda view: (_STATES.index(view.state), -(view.over or 0), -(view.row.p95 or 0)))
    values = {"hubs": views, "window": window, "windows": WINDOWS, "until": until, "since": since, "moment": moment}
    return render(request, "hubs.html", values)


_STATES: Final = ("hangs", "slow", "fails", "ok")


def _view(hub: HubRow, since: int, until: int, in_flight: list[SpanRow]) -> HubView:
    data = columns(hub, since, until)
    totals = summed(data.buckets, len(hub.bounds) + 1)
    over = None if hub.objective is None else share_above(hub.objective, hub.bounds, totals)
    open_spans = [span for span in in_flight if span.attributes.get(semconv.PROVIDER_ID) == hub.provider_id]
    discoveries = sum(hub.cache.values()) or 1
    return HubView(
        row=hub,
        state=_state(hub, over, open_spans, until),
        over=over,
        cache=[(name, number, number / discoveries) for name, number in sorted(hub.cache.items())],
        in_flight=sorted(open_spans, key=lambda span: span.start),
        latency=latency_chart(hub, data),
        heatmap=heatmap(hub, data, lambda run_id, span_id: f"/runs/{run_id}/span/{span_id}"),
    )


def _state(hub: HubRow, over: float | None, in_flight: list[SpanRow], now: int) -> str:
    """Return the most important thing about a hub; a discovery hangs beyond ten times the objective, or 10 s."""
    limit = hub.objective * 10 if hub.objective is not None else 10.0
    if any((now - span.start) / 1e9 > limit for span in in_flight):
        return "hangs"
    if over is not None and over > TOLERANCE:
        return "slow"
    return "fails" if hub.failures else "ok"


def _until(value: str | None) -> int | None:
    if not value:
        return None
    if not value.isdecimal():
        raise HTTPException(400, "The end of the window must be a number of nanoseconds since the epoch.")
    return int(value)
