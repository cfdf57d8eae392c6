"""The page that compares two runs."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pellucid_exporters.stored.comparison import compare
from pellucid_exporters.viewer.pages import content_of, reader_of, render, run_of

MOST_PAIRS: Final = 500
"""Boundaries that differ, of one page."""


def compare_page(request: Request) -> Response:
    """Show the first boundary in which two runs differ, then all of them."""
    wanted = request.query_params.getlist("run")
    if len(wanted) != 2:  # noqa: PLR2004
        raise HTTPException(400, "Choose two runs to compare: mark them in the list of runs.")
    runs = [run_of(request, run_id) for run_id in wanted]
    runs.sort(key=lambda run: run.start)
    reader = reader_of(request)
    contents = [content_of(request, reader.spans(run.run_id)) for run in runs]
    comparison = compare(*contents)
    differing = comparison.differing
    values = {"runs": runs, "comparison": comparison, "first": differing[0] if differing else None}
    counts = {"number": len(differing), "equal": len(comparison.pairs) - len(differing)}
    return render(request, "compare.html", {**values, **counts, "differing": differing[:MOST_PAIRS]})
