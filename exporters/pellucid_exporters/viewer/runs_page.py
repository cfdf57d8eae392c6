"""The page of runs: search, filters, pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pellucid_exporters.stored.rows import STATUSES, RunRow
from pellucid_exporters.viewer.pages import number, query, reader_of, render, whole

PAGE: Final = 100
"""Runs of one page."""

MOST_KNOWN: Final = 50
"""Names that a filter suggests."""

TEXTS: Final = ("text", "agent", "outcome", "hub", "tool", "model")
NUMBERS: Final = ("min_duration", "min_cost")


def runs_page(request: Request) -> Response:
    """Show the runs that match the parameters of the URL, newest first."""
    given = request.query_params
    filters: dict[str, Any] = {name: given.get(name, "").strip() or None for name in TEXTS}
    filters |= {name: number(name, given.get(name)) for name in NUMBERS}
    before = whole(given.get("before"))
    runs = reader_of(request).runs(**filters, before=before, limit=PAGE + 1)
    shown = runs[:PAGE]
    older = f"/runs?{query(**filters, before=shown[-1].start)}" if len(runs) > PAGE else None
    longest = max(((run.end or run.start) - run.start for run in shown), default=0)
    values = {
        "runs": shown,
        "filters": filters,
        "outcomes": STATUSES,
        "known": _known(runs),
        "older": older,
        "before": before,
        "longest": longest,
        "is_filtered": any(filters.values()),
    }
    return render(request, "runs.html", values)


def _known(runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """Return what the filters may be filled with."""
    names = {
        "agent": {run.agent for run in runs},
        "hub": {hub for run in runs for hub in run.hubs},
        "tool": {tool for run in runs for tool in run.tools},
        "model": {model for run in runs for model in run.models},
    }
    return {name: sorted(values)[:MOST_KNOWN] for name, values in names.items()}
