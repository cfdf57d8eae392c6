"""JSON of runs and spans, for commands and pages. Fields are added, but not renamed or removed."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.log_lines import LogLineWindow
from pellucid_exporters.stored.rows import RunRow, SpanRow
from pellucid_exporters.stored.sent_messages import Recorded

INPUTS: Final = (semconv.INPUT_MESSAGES, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT)
"""Attributes with what went into a boundary; a span has one of them."""

OUTPUTS: Final = (semconv.OUTPUT_MESSAGES, semconv.TOOL_CALL_RESULT, semconv.OUTPUT)
"""Attributes with the output of a boundary; a span has one of them."""


def run_document(run: RunRow) -> dict[str, Any]:
    """Return the JSON of a run: its row, and its duration in seconds."""
    return {**dataclasses.asdict(run), "duration": seconds_of(run)}


def span_document(span: SpanRow) -> dict[str, Any]:
    """Return the JSON of a span: its row, and its duration in seconds."""
    plain = dataclasses.replace(span, attributes=dict(span.attributes))
    return {**dataclasses.asdict(plain), "duration": seconds_of(span)}


def log_document(window: LogLineWindow) -> dict[str, Any]:
    """Return the JSON of log lines: the last of them, and how many there are."""
    return {"total": window.total, "last": window.last, "lines": [dataclasses.asdict(row) for row in window.rows]}


def content_document(content: RunContent, span: SpanRow) -> dict[str, Any]:
    """Return what went in and out of a boundary as JSON; of a model call the whole request."""
    found: dict[str, Any] = {"input": recorded_in(content, span, INPUTS), "output": recorded_in(content, span, OUTPUTS)}
    document = {name: recorded.value if recorded is not None else None for name, recorded in found.items()}
    if span.phase == semconv.INFERENCE and (request := content.request(span)).is_recorded:
        document["request"] = {
            "instructions": request.instructions.value if request.instructions is not None else None,
            "messages": [message.message for message in request.messages if message.message is not None],
            "missing": request.missing,
            "tools": request.offered.definitions,
            "tools_offered": request.offered.number,
            "tools_recorded": request.offered.recorded,
        }
    return document


def recorded_in(content: RunContent, span: SpanRow, attributes: tuple[str, ...]) -> Recorded | None:
    """Return the content of the first of some attributes that a span has."""
    found = (content.get(span, attribute) for attribute in attributes if attribute in span.attributes)
    return next(found, None)


def seconds_of(row: RunRow | SpanRow) -> float | None:
    """Return how long a run or span took, in seconds; None if it has not ended."""
    return (row.end - row.start) / 1e9 if row.end is not None else None
