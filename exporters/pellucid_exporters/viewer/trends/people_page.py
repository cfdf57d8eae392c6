"""The pages of conversations, users and tenants: who had how many runs, what they cost, and the runs of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.viewer.pages import reader_of, render
from pellucid_exporters.viewer.runs.address import Address
from pellucid_exporters.viewer.runs.figures import figures_of
from pellucid_exporters.viewer.runs.histogram import histogram
from pellucid_exporters.viewer.windows import RANGES, range_of
from pellucid_exporters.viewer.zones import Zone

TITLES: Final = {"conversation": "Conversations", "user": "Users", "tenant": "Tenants"}
MOST: Final = 200
"""Names, and runs of one name, that a page shows."""

ORDERS: Final[dict[str, Callable[[RunGroup], Any]]] = {
    "cost": lambda group: -(group.cost or 0),
    "tokens": lambda group: -(group.tokens or 0),
    "runs": lambda group: -group.runs,
    "failed": lambda group: -group.failed,
    "last": lambda group: -group.last,
    "name": lambda group: group.name.casefold(),
}


def people_page(dimension: str) -> Callable[[Request], Response]:
    """Return the page of conversations, users or tenants; with `id`, that of one of them."""

    def page(request: Request) -> Response:
        name = request.query_params.get("id")
        return _one(request, dimension, name) if name else _all(request, dimension)

    return page


def _all(request: Request, dimension: str) -> Response:
    window, order = range_of(request), request.query_params.get("sort") or "cost"
    if order not in ORDERS:
        raise HTTPException(400, f"The order must be one of {', '.join(ORDERS)}.")
    found = reader_of(request).groups(dimension, window.since, window.until, has_durations=False)
    groups = sorted(found, key=ORDERS[order])
    values = {
        "dimension": dimension,
        "title": TITLES[dimension],
        "base": f"/{dimension}s",
        "groups": groups[:MOST],
        "number": len(groups),
        "cost": sum(group.cost or 0 for group in groups) or None,
        "window": window,
        "ranges": RANGES,
        "order": order,
    }
    return render(request, "people.html", values)


def _one(request: Request, dimension: str, name: str) -> Response:
    zone = Zone(request.query_params.get("zone"))
    wanted: dict[str, Any] = {dimension: name}
    found = reader_of(request).search(RunFilter(**wanted))
    if not found.matches:
        raise HTTPException(404, f"No run in this store has this {dimension}.")
    matches = list(found.matches)
    if dimension == "conversation":
        matches.reverse()
    sort = "start" if dimension == "conversation" else "-start"
    address = Address({dimension: name}, None, None, None, sort, 1, zone)

    def link(since: int, until: int) -> str:
        return address.link(since=since, until=until)

    values = {
        "dimension": dimension,
        "title": TITLES[dimension],
        "base": f"/{dimension}s",
        "name": name,
        "runs": reader_of(request).rows([match.run_id for match in matches[:MOST]]),
        "number": len(matches),
        "most": MOST,
        "found": found,
        "figures": figures_of(found),
        "chart": histogram(((run.start, run.status, 1) for run in matches), None, None, zone, link),
        "address": address,
        "longest": max((match.duration or 0 for match in matches[:MOST]), default=0),
    }
    return render(request, "person.html", values)
