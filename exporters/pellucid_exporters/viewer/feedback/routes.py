"""Routes of feedback: thumbs with a comment, and cases for a set."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pellucid import semconv
from pellucid.errors import PellucidError
from pellucid.scores import Score, Scored
from pellucid_exporters.stored.rows import RunRow
from pellucid_exporters.viewer.feedback.parts import Feedback, feedback_of
from pellucid_exporters.viewer.forms import given, own_form, signed_in
from pellucid_exporters.viewer.pages import reader_of, run_of

THUMB: Final = "thumb"
"""Name of the score of a thumb: 1 with the label `up`, 0 with `down`."""

MOST_COMMENT: Final = 2_000
"""Characters of a comment."""


def routes() -> list[Route]:
    """Return the routes."""
    return [
        Route("/sign-in", _sign_in),
        Route("/do/score", _score, methods=["POST"]),
        Route("/do/case", _case, methods=["POST"]),
    ]


async def _sign_in(request: Request) -> Response:
    return signed_in(request, _feedback(request).actions, "/runs")


async def _score(request: Request) -> Response:
    """Record a thumb, and show the run again."""
    feedback = _feedback(request)
    form = await own_form(request, feedback.actions)
    label, comment = form.get("label"), form.get("comment", "").strip()
    if label not in {"up", "down"}:
        raise HTTPException(400, "A thumb is up or down.")
    if len(comment) > MOST_COMMENT:
        raise HTTPException(400, f"A comment has at most {MOST_COMMENT:,} characters.")
    score = Score(
        name=THUMB, value=float(label == "up"), label=label, explanation=comment or None, by=feedback.actions.name
    )
    run = await run_in_threadpool(run_of, request, given(form, "run"))
    await run_in_threadpool(lambda: feedback.record(_scored(request, run), score))
    return _back(run, "scores")


async def _case(request: Request) -> Response:
    """Add the case of a run to the set, and show the run again."""
    feedback = _feedback(request)
    form = await own_form(request, feedback.actions)
    if feedback.add is None:
        raise HTTPException(404, "There is no set; name its file with --cases.")
    run = await run_in_threadpool(run_of, request, given(form, "run"))
    try:
        name = await run_in_threadpool(feedback.add, run.run_id)
    except PellucidError as error:
        raise HTTPException(409, f"{error}.") from error
    return _back(run, "scores", name)


def _feedback(request: Request) -> Feedback:
    feedback = feedback_of(request)
    assert feedback is not None  # otherwise there are no such routes
    return feedback


def _scored(request: Request, run: RunRow) -> Scored:
    """Return what the score of a run is about: its span, if it was recorded."""
    spans = reader_of(request).spans(run.run_id)
    root = next((span.span_id for span in spans if span.phase == semconv.RUN), "")
    return Scored(
        trace_id=run.trace_id,
        span_id=root,
        run_id=run.run_id,
        agent=run.agent,
        version=run.version or "",
        model=run.models[0] if len(run.models) == 1 else "",
    )


def _back(run: RunRow, place: str, added: str = "") -> Response:
    query = f"?added={quote(added, safe='')}" if added else ""
    return RedirectResponse(f"/runs/{quote(run.run_id, safe='')}/{query}#{place}", 303)
