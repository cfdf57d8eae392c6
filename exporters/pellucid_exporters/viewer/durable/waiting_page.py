"""The page of pending calls: external ones and approvals, the oldest first."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pellucid.durable import CallRecord
from pellucid.errors import StoreUnavailable
from pellucid_exporters.viewer.durable.parts import durable_of, shown, unavailable

MOST: Final = 100
"""Calls of each kind that the page shows."""


async def waiting_page(request: Request) -> Response:
    """Show the calls that wait."""
    pages = durable_of(request)
    try:
        approvals = await pages.runs.waiting_calls(kind="approval", limit=MOST + 1)
        external = await pages.runs.waiting_calls(kind="external", limit=MOST + 1)
        now = await pages.runs.now()
    except StoreUnavailable as error:
        raise unavailable(error) from error
    values = {"approvals": _shown(approvals), "external": _shown(external), "now": now, "most": MOST}
    return await shown(request, "durable_waiting.html", values)


def _shown(calls: tuple[CallRecord, ...]) -> tuple[tuple[CallRecord, ...], bool]:
    """Return the calls of the page, and whether there are more."""
    return calls[:MOST], len(calls) > MOST
