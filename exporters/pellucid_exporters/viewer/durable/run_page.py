"""One durable run: where it is, what it waits for, and what has happened."""

from __future__ import annotations

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid.durable import RunEvent
from pellucid.durable.states.descriptions import description_of
from pellucid.errors import StoreUnavailable, UnknownRun
from pellucid_exporters.stored import text
from pellucid_exporters.viewer.durable.parts import durable_of, shown, unavailable
from pellucid_exporters.viewer.durable.timeline import timeline
from pellucid_exporters.viewer.pages import reader_of

MOST: Final = 2000
"""Events that the page shows, the latest ones."""

MOST_TRACED: Final = 50
"""Passes, and runs of sub-agents, that the local store has and the page links to."""


async def run_page(request: Request) -> Response:
    """Show a durable run."""
    pages, run_id = durable_of(request), request.path_params["run_id"]
    try:
        found = await pages.store.details(run_id)
        events: list[RunEvent] = []
        of_the_run: list[RunEvent] = []
        has_more = True
        while has_more:
            page = await pages.runs.event_page(run_id, events[-1].seq if events else 0)
            events, has_more = [*events, *page.events][-MOST:], page.has_more
            of_the_run += [event for event in page.events if event.type.startswith("run.")]
        steps = await pages.store.steps(run_id, answers=True)
    except UnknownRun:
        raise HTTPException(404, f"There is no durable run {text.cut(run_id, 80)!r} in this store.") from None
    except StoreUnavailable as error:
        raise unavailable(error) from error
    description = description_of(found)
    trace_id = description.trace_id
    traced = await run_in_threadpool(reader_of(request).trace, trace_id) if trace_id else []
    values = {
        "described": description,
        "run": description.run,
        "now": description.now,
        "bars": timeline(found, steps, of_the_run),
        "events": events,
        "traced": traced[:MOST_TRACED],
        "most": MOST,
    }
    return await shown(request, "durable_run.html", values)
