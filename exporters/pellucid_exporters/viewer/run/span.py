"""Contents of a span on pages: recorded input and output, events, and the reason of a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.nested import nested_runs
from pellucid_exporters.stored.offers import tool_offers
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import BODY, RUNNING, EventRow, RunRow, SpanRow
from pellucid_exporters.stored.sent_messages import SentRequest
from pellucid_exporters.stored.text import MOST
from pellucid_exporters.viewer.pages import reader_of
from pellucid_exporters.viewer.run.content import Contents
from pellucid_exporters.viewer.run.log_lines import ShownWindow, shown_window
from pellucid_exporters.viewer.run.request import got, settings_of
from pellucid_exporters.viewer.run.room import Room
from pellucid_exporters.viewer.run.wire import exchange_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lengths of the parts of a span that a page shows.

    Attributes:
        elements, characters: Room of recorded content.
        largest: Elements of one text or value.
        longest: Characters of one text.
        messages, tools, attributes, events, lines: Numbers of these.
    """

    elements: int
    characters: int
    largest: int
    longest: int
    messages: int
    tools: int
    attributes: int
    events: int
    lines: int


PAGE: Final = Bounds(
    elements=200_000,
    characters=20_000_000,
    largest=20_000,
    longest=MOST,
    messages=200,
    tools=200,
    attributes=2_000,
    events=100,
    lines=100,
)
PANEL: Final = Bounds(
    elements=700,
    characters=250_000,
    largest=300,
    longest=4_000,
    messages=10,
    tools=25,
    attributes=60,
    events=20,
    lines=40,
)


def span_values(
    request: Request,
    run: RunRow,
    content: RunContent,
    span: SpanRow,
    trace: Sequence[RunRow],
    bounds: Bounds,
    last: int | None = None,
) -> dict[str, Any]:
    """Return the values of a span's page or panel; `content` is that of its run.

    Args:
        request: The request of the page.
        run: Run of the span.
        content: Content of the run.
        span: The span.
        trace: Runs of its trace.
        bounds: How much is shown.
        last: Number of the last log line that is shown; that of the newest without it.
    """
    reader, spans = reader_of(request), content.spans
    content.load([span], span.attributes)
    calls = [other for other in spans if other.phase == semconv.INFERENCE]
    by_sequence = {other.sequence: other for other in spans}
    sent = content.request(span) if span.phase == semconv.INFERENCE else None
    recorded = {name: content.get(span, name) for name in CONTENT}
    answer = recorded[semconv.OUTPUT_MESSAGES]
    messages = [each.message for each in sent.messages[-2 * bounds.messages :]] if sent is not None else []
    answers = answer.value if answer is not None and isinstance(answer.value, list) else []
    has_offers = span.phase in {semconv.INFERENCE, semconv.COMPOSE}
    happened = reader.events(run.run_id)
    offers = tool_offers(content, happened, span) if has_offers else []
    number = calls.index(span) if span in calls else None
    earlier = calls[number - 1] if number else None
    before = (earlier, content.request(earlier)) if earlier is not None else None
    room = Room(bounds.elements, bounds.characters, bounds.longest, bounds.largest)
    names = tool_names([*messages, *answers])
    attributes = [
        (name, value if not isinstance(value, dict) else "", isinstance(value, dict) and BODY in value)
        for name, value in sorted(span.attributes.items())
        if name not in CONTENT
    ]
    contents = Contents(f"/runs/{run.run_id}/", room, names, has_images=request.app.state.images)
    return {
        "run": run,
        "span": span,
        "bounds": bounds,
        "contents": contents,
        "lines": lambda: _lines(reader, span, contents, bounds.lines, last),
        "events": content.whole(span.events),
        "happened": _of(happened, span, content)[: bounds.events],
        "nested": nested_runs(reader, run, trace).get(span.span_id),
        "parent": content.span(span.parent_span_id),
        "before": by_sequence.get(span.sequence - 1),
        "after": by_sequence.get(span.sequence + 1),
        "number": number + 1 if number is not None else None,
        "got": got(span, sent, before, spans, offers, happened) if sent is not None else None,
        "calls": len(calls),
        "request_sent": sent,
        "settings": settings_of(span),
        "exchange": exchange_of(content, span),
        "definitions": definitions_of(sent),
        "offered": sent.offered.number if sent is not None else sum(offer.is_offered is True for offer in offers),
        "offers": offers,
        "withheld": sum(offer.is_offered is False for offer in offers),
        "recorded": recorded,
        "catalogue": content.tools(span) if span.phase == semconv.DISCOVERY else None,
        "attributes": attributes,
        "raw": [name for name in CONTENT if name in span.attributes],
        "is_live": span.status == RUNNING,
    }


def _lines(reader: Reader, span: SpanRow, contents: Contents, most: int, last: int | None) -> ShownWindow:
    """Return log lines of a span, for which the room is that which content before them has left."""
    window = reader.log_lines(span.run_id, span.span_id, last=last, limit=most)
    return shown_window(window, contents, lambda number: f"/runs/{span.run_id}/{span.sequence}?last={number}", most)


def _of(events: Sequence[EventRow], span: SpanRow, content: RunContent) -> list[tuple[EventRow, Any]]:
    """Return the events of a run that belong to a span, with their payloads."""
    return [(event, content.whole(event.payload)) for event in events if event.span_id == span.span_id]


def tool_names(messages: Sequence[Any]) -> dict[str, str]:
    """Return the names of the tools by the ids of their calls."""
    names: dict[str, str] = {}
    for message in messages:
        parts = message.get("parts") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_call":
                names[str(part.get("id"))] = str(part.get("name"))
    return names


def definitions_of(sent: SentRequest | None) -> dict[str, Any]:
    """Return the definitions of the offered tools by name."""
    items = sent.offered.definitions or () if sent is not None else ()
    return {str(item.get("name")): item for item in items if isinstance(item, dict)}
