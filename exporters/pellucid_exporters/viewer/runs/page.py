"""The page of runs: filters, figures, a histogram and the runs themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import INTERRUPTED, RUNNING, STATUSES
from pellucid_exporters.stored.run_search import FoundRuns, Match
from pellucid_exporters.viewer.feedback.parts import form_token
from pellucid_exporters.viewer.pages import query, reader_of, render
from pellucid_exporters.viewer.runs.address import (
    COLUMNS,
    FLAGS,
    IS_KIND,
    NUMBERS,
    RANGES,
    SCORE,
    TEXTS,
    Address,
    address_of,
)
from pellucid_exporters.viewer.runs.figures import figures_of
from pellucid_exporters.viewer.runs.histogram import Histogram, histogram
from pellucid_exporters.viewer.runs.saved import filters_of, own_query
from pellucid_exporters.viewer.zones import ZONES

PAGE: Final = 100
"""Runs of one page."""

MOST_NAMES: Final = 100
"""Names that a filter suggests."""

MOST_SCORES: Final = 4
"""Columns of scores: those that the address names, then the first in alphabetical order."""

MOST_FURTHER: Final = 20
"""Names of scores that are no columns, and to which the page links."""

_HOUR: Final = 3600 * 10**9
_COUNTED: Final = frozenset({"agent", "outcome"})
"""Filters by which the store counts the runs of each hour."""


def runs_page(request: Request) -> Response:
    """Show the runs that match the parameters of the URL, which the form sends with empty ones: these are left out."""
    given = request.query_params.multi_items()
    filled = [(name, value) for name, value in given if value]
    if filled != given:
        return RedirectResponse(f"{request.url.path}?{urlencode(filled)}", 303)
    address, reader = address_of(request), reader_of(request)
    found = reader.search(address.filter())
    ordered = _ordered(reader, found.matches, address.sort)
    first = (address.page - 1) * PAGE
    shown = ordered[first : first + PAGE]
    rows = reader.rows([match.run_id for match in shown])
    chart, is_whole = _histogram(reader, address, found)
    values = {
        "runs": rows,
        "address": address,
        "columns": COLUMNS,
        **_columns(address, {score.name for row in rows for score in row.scores}),
        "found": found,
        "figures": figures_of(found),
        "chart": chart,
        "is_whole": is_whole,
        "outcomes": STATUSES,
        "ranges": RANGES,
        "zones": ZONES,
        "fields": (*TEXTS, *NUMBERS),
        "flags": FLAGS,
        "known": {**reader.names(MOST_NAMES), "kind": IS_KIND},
        "next": _next(address, found, first),
        **_saved(request, address),
        "longest": max((match.duration or 0 for match in shown), default=0),
    }
    return render(request, "runs.html", values)


def _saved(request: Request, address: Address) -> dict[str, Any]:
    """Return the filters that were saved, and what forms send that save one; None if the reader may not."""
    filters = filters_of(request)
    return {
        "saved": filters.all() if filters is not None else {},
        "csrf": form_token(request) if filters is not None else None,
        "current": own_query(query(**address.parameters())),
    }


def _columns(address: Address, names: set[str]) -> dict[str, Any]:
    """Return which of the names of scores are columns, and which are not."""
    first = sorted(names, key=lambda name: (name not in address.scores(), name))
    further = sorted(first[MOST_SCORES:])
    return {"scored": sorted(first[:MOST_SCORES]), "further": further[:MOST_FURTHER], "number_further": len(further)}


def _ordered(reader: Reader, matches: Iterable[Match], sort: str) -> list[Match]:
    """Return runs in an order; those that lack what they are sorted by come last."""
    column, is_reverse = sort.removeprefix("-"), sort.startswith("-")
    runs = list(matches)
    keys = _scores(reader, runs, column.removeprefix(SCORE)) if column.startswith(SCORE) else _keys(runs, column)
    known = [run for run in runs if keys[run.run_id] is not None]
    known.sort(key=lambda run: keys[run.run_id], reverse=is_reverse)
    return known + [run for run in runs if keys[run.run_id] is None]


def _keys(runs: Iterable[Match], column: str) -> dict[str, Any]:
    """Return what runs are sorted by, by their ids."""
    keys = {run.run_id: getattr(run, column) for run in runs}
    if column == "status":
        places = {status: place for place, status in enumerate(STATUSES)}
        return {run_id: places.get(status, len(places)) for run_id, status in keys.items()}
    return {run_id: key.casefold() if isinstance(key, str) else key for run_id, key in keys.items()}


def _scores(reader: Reader, runs: Sequence[Match], name: str) -> dict[str, Any]:
    """Return the newest value of a score, by the ids of runs."""
    found = reader.score_values(name, [run.run_id for run in runs])
    return {run.run_id: found.get(run.run_id, (0, None))[1] for run in runs}


def _next(address: Address, found: FoundRuns, first: int) -> str | None:
    """Return the address of the runs after those of a page; behind the last, of those that were not examined."""
    if first + PAGE < len(found.matches):
        return address.link(page=address.page + 1)
    return address.link(range=None, since=address.since, until=found.older) if found.older is not None else None


def _histogram(reader: Reader, address: Address, found: FoundRuns) -> tuple[Histogram, bool]:
    """Return the histogram, and whether it counts all runs: also those that the search did not examine."""

    def link(since: int, until: int) -> str:
        return address.link(range=None, since=since, until=until)

    since, until = address.since, address.until
    if found.older is not None and _COUNTED.issuperset(address.given) and not found.hidden:
        hours = reader.hours(since or 0, until if until is not None else 2**62, address.given.get("agent"))
        wanted = address.given.get("outcome")
        whole = [each for each in hours if wanted in {None, each.outcome, *_open(each.outcome)}]
        if whole and max(each.start for each in whole) - min(each.start for each in whole) >= 2 * _HOUR:
            return histogram(whole, since, until, address.zone, link, _HOUR), True
    since = since if found.older is None else found.older - 1
    counts = ((match.start, match.status, 1) for match in found.matches)
    return histogram(counts, since, until, address.zone, link), found.older is None


def _open(outcome: str) -> frozenset[str]:
    """Return the statuses of runs without an outcome."""
    return frozenset({RUNNING, INTERRUPTED}) if not outcome else frozenset()
