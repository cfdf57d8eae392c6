"""The page of a span: what was recorded in and out of a boundary, and the raw text of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent, SentRequest
from pellucid_exporters.stored.nested import nested_runs
from pellucid_exporters.stored.offers import tool_offers
from pellucid_exporters.stored.rows import BODY, RUNNING, RunRow, SpanRow
from pellucid_exporters.stored.text import cut
from pellucid_exporters.viewer.pages import reader_of, render, run_of

CONTENT: Final = (
    semconv.INPUT,
    semconv.OUTPUT,
    semconv.AGENT_CONFIGURATION,
    semconv.SYSTEM_INSTRUCTIONS,
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.TOOL_DEFINITIONS,
    semconv.TOOL_CALL_ARGUMENTS,
    semconv.TOOL_CALL_RESULT,
)
"""Attributes that the page shows for what they are, above the table of the others."""

SETTINGS: Final = "gen_ai.request."
"""Prefix of the attributes that are settings of a model call."""


def span_page(request: Request) -> Response:
    """Show a span."""
    run, spans, span = _found(request)
    reader = reader_of(request)
    content = RunContent(reader, spans)
    content.load([span], span.attributes)
    calls = [other for other in spans if other.phase == semconv.INFERENCE]
    by_sequence = {other.sequence: other for other in spans}
    sent = content.request(span) if span.phase == semconv.INFERENCE else None
    recorded = {name: content.get(span, name) for name in CONTENT}
    answer = recorded[semconv.OUTPUT_MESSAGES]
    messages = [message.message for message in sent.messages] if sent is not None else []
    has_offers = span.phase in {semconv.INFERENCE, semconv.COMPOSE}
    offers = tool_offers(content, reader.events(run.run_id), span) if has_offers else []
    values: dict[str, Any] = {
        "run": run,
        "span": span,
        "events": content.whole(span.events),
        "nested": nested_runs(reader, run, reader.trace(run.trace_id)).get(span.span_id),
        "parent": content.span(span.parent_span_id),
        "before": by_sequence.get(span.sequence - 1),
        "after": by_sequence.get(span.sequence + 1),
        "number": calls.index(span) + 1 if span in calls else None,
        "calls": len(calls),
        "request_sent": sent,
        "settings": _settings(span),
        "names": tool_names(
            [*messages, *(answer.value if answer is not None and isinstance(answer.value, list) else [])]
        ),
        "definitions": _definitions(sent),
        "offered": sent.offered.number if sent is not None else sum(offer.is_offered is True for offer in offers),
        "offers": offers,
        "withheld": sum(offer.is_offered is False for offer in offers),
        "recorded": recorded,
        "catalogue": content.tools(span) if span.phase == semconv.DISCOVERY else None,
        "attributes": [
            (name, value if not isinstance(value, dict) else "", isinstance(value, dict) and BODY in value)
            for name, value in sorted(span.attributes.items())
            if name not in CONTENT
        ],
        "raw": [name for name in CONTENT if name in span.attributes],
        "is_live": span.status == RUNNING,
    }
    return render(request, "span.html", values)


def request_text(request: Request) -> Response:
    """Return the whole request of a model call as JSON, although the run has recorded each part of it once."""
    _, spans, span = _found(request)
    if span.phase != semconv.INFERENCE:
        raise HTTPException(404, "Only a model call has a request.")
    sent = RunContent(reader_of(request), spans).request(span)
    whole = {
        "model": span.attributes.get(semconv.REQUEST_MODEL),
        "settings": _settings(span),
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
        if str(span.sequence) == sequence:
            return run, spans, span
    raise HTTPException(404, f"The run has no span {cut(sequence, 20)!r}; it has {len(spans)} spans.")


def _settings(span: SpanRow) -> dict[str, Any]:
    """Return the settings of a model call by their names, without the model."""
    return {
        name.removeprefix(SETTINGS): value
        for name, value in sorted(span.attributes.items())
        if name.startswith(SETTINGS) and name != semconv.REQUEST_MODEL and not isinstance(value, dict)
    }


def tool_names(messages: Sequence[Any]) -> dict[str, str]:
    """Return the names of the tools by the ids of their calls."""
    names: dict[str, str] = {}
    for message in messages:
        parts = message.get("parts") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_call":
                names[str(part.get("id"))] = str(part.get("name"))
    return names


def _with_gap(sent: SentRequest) -> list[Any] | None:
    """Return the definitions of the offered tools; a last item counts those that are unknown."""
    definitions, missing = sent.offered.definitions, sent.offered.missing
    return None if definitions is None else [*definitions, *([{"not_recorded": missing}] if missing else [])]


def _definitions(sent: SentRequest | None) -> dict[str, Any]:
    """Return the definitions of the offered tools by name."""
    items = sent.offered.definitions or () if sent is not None else ()
    return {str(item.get("name")): item for item in items if isinstance(item, dict)}
