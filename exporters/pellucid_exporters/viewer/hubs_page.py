"""The pages of hubs: which one is slow, fails or hangs, and one hub with the changes of its catalogue."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.catalogues import catalogue_changes, hidden_texts, latest_catalogue
from pellucid_exporters.stored.hub_states import is_delayed, over, severity_of, state_of
from pellucid_exporters.stored.rows import HubRow, SpanRow
from pellucid_exporters.viewer.charts import bucket_label, columns, heatmap, latency_chart
from pellucid_exporters.viewer.pages import query, reader_of, render, whole

WINDOWS: Final = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
"""Windows of time by their name in the URL, in seconds."""

MOST_CHARTS: Final = 12
"""Hubs whose charts the page of all hubs shows, the worst first."""

RUNS: Final = 10
"""Latest runs on the page of one hub."""

SLOWEST: Final = 3
"""Slowest buckets on the page of one hub with a span of each."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time, as the URL names it.

    Attributes:
        name: Key of `WINDOWS`.
        until: End in the URL; `None` for a window that ends now.
        since, end: Times.
    """

    name: str
    until: int | None
    since: int
    end: int

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a URL that has the same window."""
        return {"window": self.name, "until": self.until}


@dataclass(frozen=True, slots=True)
class HubView:
    """A hub as the pages show it.

    Attributes:
        state: `hangs`, `slow`, `fails` or `ok`.
        over: Share of requests over the objective.
        is_delayed: Whether the process was too busy to measure the hub.
        cache: Cache outcomes with their count and share.
        in_flight: Discoveries that have not ended, oldest first.
        latency, heatmap: Charts; empty if the page does not show them.
    """

    row: HubRow
    state: str
    over: float | None
    is_delayed: bool
    cache: list[tuple[str, int, float]]
    in_flight: list[SpanRow]
    latency: Markup
    heatmap: Markup


def hubs_page(request: Request) -> Response:
    """Show each hub's quantiles over time, heatmap, cache outcomes and discoveries in flight; the worst first."""
    window = _window(request)
    reader = reader_of(request)
    in_flight = _in_flight(request, window)
    rows = reader.hubs(window.since, window.end)
    ranked = sorted((_rank(row, in_flight, window), row) for row in rows)
    views = [_view(row, in_flight, window, is_charted=number < MOST_CHARTS) for number, (_, row) in enumerate(ranked)]
    return render(request, "hubs.html", {"hubs": views, "windows": WINDOWS, "window": window})


def hub_page(request: Request) -> Response:
    """Show one hub: charts whose cells lead to spans, its catalogue and the changes of it, and its latest runs."""
    provider_id = request.query_params.get("id", "")
    window, reader = _window(request), reader_of(request)
    row = next((row for row in reader.hubs(window.since, window.end) if row.provider_id == provider_id), None)
    runs = reader.runs(hub=provider_id, before=window.end, limit=RUNS)
    if row is None and not runs:
        raise HTTPException(404, f"No hub {provider_id[:80]!r} was asked for its tools in this window, nor before it.")
    hub = row or HubRow(provider_id=provider_id)
    values = {
        "hub": _view(hub, _in_flight(request, window), window, cells=True),
        "windows": WINDOWS,
        "window": window,
        "slowest": [
            (bucket_label(hub, index), address)
            for index in sorted(hub.exemplars)[: -SLOWEST - 1 : -1]
            if (address := _span_address(*hub.exemplars[index])) is not None
        ],
        "changes": catalogue_changes(reader, provider_id, window.since, window.end),
        "hidden": hidden_texts(reader, provider_id, window.since, window.end),
        "catalogue": latest_catalogue(reader, provider_id, window.end),
        "runs": runs,
    }
    return render(request, "hub.html", values)


def bucket_exemplar(request: Request) -> Response:
    """Redirect to a span of one cell of a heatmap: a bucket between two times."""
    parameters = request.query_params
    numbers = [whole(parameters.get(name)) for name in ("since", "until", "bucket")]
    since, until, bucket = (number if number is not None else -1 for number in numbers)
    for row in reader_of(request).hubs(since, until - 1):
        address = _span_address(*row.exemplars[bucket]) if bucket in row.exemplars else None
        if row.provider_id == parameters.get("id") and address is not None:
            return RedirectResponse(address)
    raise HTTPException(404, "The store has no span of a run for this bucket and time.")


def _window(request: Request) -> Window:
    name = request.query_params.get("window", "1h")
    if name not in WINDOWS:
        raise HTTPException(400, f"The window must be one of {', '.join(WINDOWS)}.")
    until = whole(request.query_params.get("until"))
    end = until if until is not None else time.time_ns()
    return Window(name, until, max(0, end - WINDOWS[name] * 1_000_000_000), end)


def _in_flight(request: Request, window: Window) -> list[SpanRow]:
    if window.until is not None:
        return []
    return [span for span in reader_of(request).in_flight() if span.phase == semconv.DISCOVERY]


def _rank(hub: HubRow, in_flight: list[SpanRow], window: Window) -> tuple[int, float, float, str]:
    return severity_of(hub, _state(hub, in_flight, window))


def _view(
    hub: HubRow, in_flight: list[SpanRow], window: Window, *, is_charted: bool = True, cells: bool = False
) -> HubView:
    def cell(bucket: int, since: int, until: int) -> str:
        return f"/hub/span?{query(id=hub.provider_id, bucket=bucket, since=since, until=until)}"

    discoveries = sum(hub.cache.values()) or 1
    data = columns(hub, window.since, window.end)
    return HubView(
        row=hub,
        state=_state(hub, in_flight, window),
        over=over(hub),
        is_delayed=is_delayed(hub),
        cache=[(name, number, number / discoveries) for name, number in sorted(hub.cache.items())],
        in_flight=_of(hub, in_flight),
        latency=latency_chart(hub, data) if is_charted else Markup(),
        heatmap=heatmap(hub, data, _span_address, cell if cells else None) if is_charted else Markup(),
    )


def _of(hub: HubRow, in_flight: list[SpanRow]) -> list[SpanRow]:
    own = [span for span in in_flight if span.attributes.get(semconv.PROVIDER_ID) == hub.provider_id]
    return sorted(own, key=lambda span: span.start)


def _state(hub: HubRow, in_flight: list[SpanRow], window: Window) -> str:
    own = _of(hub, in_flight)
    return state_of(hub, own[0].start if own else None, window.end)


def _span_address(run_id: str, span_id: str) -> str | None:
    """Return the address of a span; `None` for one that belongs to no run, such as that of a warm-up."""
    return f"/runs/{quote(run_id, safe='')}/span/{span_id}" if run_id else None
