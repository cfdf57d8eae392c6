"""The list of durable runs."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid.durable.store.overviews import STATUSES
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid_exporters.viewer.durable.parts import durable_of, shown, unavailable
from pellucid_exporters.viewer.pages import number, query

PAGE: Final = 100
"""Runs of one page."""

TEXTS: Final = ("text", "agent", "worker", "key")


async def list_page(request: Request) -> Response:
    """Show the durable runs that match the parameters of the URL, newest first, and how many are open."""
    pages, given = durable_of(request), request.query_params
    filters: dict[str, Any] = {name: given.get(name, "").strip() or None for name in TEXTS}
    status = given.get("status") or None
    if status is not None and status not in STATUSES:
        raise HTTPException(400, f"The status must be one of {', '.join(STATUSES)}.")
    minutes = number("older_than", given.get("older_than"))
    older_than = minutes * 60.0 if minutes is not None else None
    cursor = given.get("cursor") or None
    try:
        page = await pages.runs.list(**filters, status=status, older_than=older_than, cursor=cursor, limit=PAGE)
        statistics = await pages.store.statistics(is_open_only=True)
        now = await pages.runs.now()
    except ConfigError as error:
        raise HTTPException(400, f"{error}.") from error
    except StoreUnavailable as error:
        raise unavailable(error) from error
    chosen = {**filters, "status": status, "older_than": given.get("older_than") or None}
    values = {
        "runs": page.runs,
        "now": now,
        "filters": chosen,
        "statuses": STATUSES,
        "numbers": statistics.runs,
        "older": f"/durable?{query(**chosen, cursor=page.cursor)}" if page.cursor is not None else None,
        "is_first": cursor is None,
        "is_filtered": any(chosen.values()),
    }
    return await shown(request, "durable.html", values)
