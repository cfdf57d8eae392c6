"""The page of a span: what was recorded in and out of a boundary, and the raw text of it."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import BODY, RunRow, SpanRow
from pellucid_exporters.viewer.pages import reader_of, render, run_of

CONTENT = (
    semconv.INPUT,
    semconv.OUTPUT,
    semconv.SYSTEM_INSTRUCTIONS,
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.TOOL_DEFINITIONS,
    semconv.TOOL_CALL_ARGUMENTS,
    semconv.TOOL_CALL_RESULT,
)
"""Attributes that the page shows for what they are, above the table of the others."""


def span_page(request: Request) -> Response:
    """Show a span."""
    run, spans, span = _found(request)
    content = RunContent(reader_of(request), spans)
    content.load([span], span.attributes)
    calls = [other for other in spans if other.phase == semconv.INFERENCE]
    by_sequence = {other.sequence: other for other in spans}
    values: dict[str, Any] = {
        "run": run,
        "span": span,
        "parent": content.span(span.parent_span_id),
        "before": by_sequence.get(span.sequence - 1),
        "after": by_sequence.get(span.sequence + 1),
        "number": calls.index(span) + 1 if span in calls else None,
        "calls": len(calls),
        "request_sent": content.request(span) if span.phase == semconv.INFERENCE else None,
        "recorded": {name: content.get(span, name) for name in CONTENT},
        "attributes": [
            (name, value if not isinstance(value, dict) else "", isinstance(value, dict) and BODY in value)
            for name, value in sorted(span.attributes.items())
            if name not in CONTENT
        ],
        "raw": [name for name in CONTENT if name in span.attributes],
    }
    return render(request, "span.html", values)


def raw_text(request: Request) -> Response:
    """Return the text of an attribute as plain text."""
    _, spans, span = _found(request)
    text = RunContent(reader_of(request), spans).text(span, request.path_params["attribute"])
    if text is None:
        raise HTTPException(404, "This span has no such attribute, or the store no longer has its text.")
    return PlainTextResponse(text.encode(errors="backslashreplace"))


def span_of_id(request: Request) -> Response:
    """Redirect to a span by its id."""
    run = run_of(request, request.path_params["run_id"])
    span_id = request.path_params["span_id"]
    for span in reader_of(request).spans(run.run_id):
        if span.span_id == span_id:
            return RedirectResponse(f"/runs/{run.run_id}/{span.sequence}")
    raise HTTPException(404, "This run has no such span in this store.")


def _found(request: Request) -> tuple[RunRow, list[SpanRow], SpanRow]:
    run = run_of(request, request.path_params["run_id"])
    spans = reader_of(request).spans(run.run_id)
    sequence = request.path_params["sequence"]
    for span in spans:
        if span.sequence == sequence:
            return run, spans, span
    raise HTTPException(404, f"The run has no span {sequence}; it has {len(spans)} spans.")
