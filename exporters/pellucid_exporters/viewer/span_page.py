"""The page of a span: what was recorded in and out of a boundary, and the raw text of it."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.rows import RunRow, SpanRow
from pellucid_exporters.stored.sent_messages import SentRequest
from pellucid_exporters.stored.text import cut
from pellucid_exporters.viewer.pages import content_of, reader_of, render, run_of
from pellucid_exporters.viewer.run.formats import LINES, answer, format_of, span_json, span_markdown
from pellucid_exporters.viewer.run.media import AUDIO, IMAGES, media_in
from pellucid_exporters.viewer.run.request import settings_of
from pellucid_exporters.viewer.run.span import PAGE, span_values
from pellucid_exporters.viewer.run.state import State


def span_page(request: Request) -> Response:
    """Show a span."""
    run, spans, span = _found(request)
    name, content = format_of(request), content_of(request, spans)
    if name:
        log = reader_of(request).log_lines(run.run_id, span.span_id, limit=LINES)
        shown = span_json(span, content, log) if name == "json" else span_markdown(run, span, content, log)
        return answer(name, shown)
    last = State.of(request.query_params).last
    values = span_values(request, run, content, span, reader_of(request).trace(run.trace_id), PAGE, last)
    return render(request, "span.html", {"panel": values})


def request_text(request: Request) -> Response:
    """Return the whole request of a model call as JSON, although the run has recorded each part of it once."""
    _, spans, span = _found(request)
    if span.phase != semconv.INFERENCE:
        raise HTTPException(404, "Only a model call has a request.")
    sent = content_of(request, spans).request(span)
    whole = {
        "model": span.attributes.get(semconv.REQUEST_MODEL),
        "settings": settings_of(span),
        "instructions": sent.instructions and sent.instructions.value,
        "messages": [
            message.message if message.message is not None else {"not_recorded": message.missing}
            for message in sent.messages
        ],
        "tools": _with_gap(sent),
    }
    return PlainTextResponse(json.dumps(whole, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))


def raw_text(request: Request) -> Response:
    """Return the text of an attribute as plain text."""
    _, spans, span = _found(request)
    text = content_of(request, spans).text(span, request.path_params["attribute"])
    if text is None:
        raise HTTPException(404, "This span has no such attribute, or the store no longer has its text.")
    return PlainTextResponse(text.encode(errors="backslashreplace"))


def media(request: Request) -> Response:
    """Return an image or audio of an attribute, by the digest of its content."""
    _, spans, span = _found(request)
    recorded = content_of(request, spans).get(span, request.path_params["attribute"])
    for found in media_in(recorded.value) if recorded is not None else ():
        if found.digest == request.path_params["digest"] and found.type in IMAGES | AUDIO:
            data = found.data()
            if data is not None:
                return Response(data, media_type=found.type)
    raise HTTPException(404, "This attribute has no such image or audio, or the store no longer has it.")


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
        if str(span.sequence) == sequence:
            return run, spans, span
    raise HTTPException(404, f"The run has no span {cut(sequence, 20)!r}; it has {len(spans)} spans.")


def _with_gap(sent: SentRequest) -> list[Any] | None:
    """Return the definitions of the offered tools; a last item counts those that are unknown."""
    definitions, missing = sent.offered.definitions, sent.offered.missing
    return None if definitions is None else [*definitions, *([{"not_recorded": missing}] if missing else [])]
