"""Boundary records: one phase of a run as a flat record, for files, stores and tests.

A record is built from the ended span, so that the two cannot disagree.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import format_span_id, format_trace_id

from pellucid import semconv
from pellucid.telemetry.phases import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

_FACTS: Final[Mapping[str, str]] = {
    "run_id": semconv.RUN_ID,
    "iteration": semconv.ITERATION,
    "phase": semconv.PHASE,
    "agent": semconv.AGENT_NAME,
    "provider_id": semconv.PROVIDER_ID,
    "model": semconv.REQUEST_MODEL,
    "tool_name": semconv.TOOL_NAME,
    "tool_call_id": semconv.TOOL_CALL_ID,
    "outcome": semconv.OUTCOME,
    "error_type": semconv.ERROR_TYPE,
    "input_digest": semconv.INPUT_DIGEST,
    "input_bytes": semconv.INPUT_BYTES,
    "output_digest": semconv.OUTPUT_DIGEST,
    "output_bytes": semconv.OUTPUT_BYTES,
    "omitted": semconv.CONTENT_OMITTED,
    "repeated": semconv.CONTENT_REPEATED,
    "recorded_on": semconv.CONTENT_RECORDED_ON,
}


def boundary_of(span: ReadableSpan) -> dict[str, Any] | None:
    """Return the record of one phase, or None if the span is not one of Pellucid's.

    The record has `trace_id`, `span_id` and `parent_span_id` (hexadecimal), `name` of the span, `start` (nanoseconds
    since the epoch), `duration_ms`, `error` (text), `input` and `output` (as recorded, parsed), and, if known,
    `run_id`, `iteration`, `phase`, `agent`, `provider_id`, `model`, `tool_name`, `tool_call_id`, `outcome`,
    `error_type`, digests and sizes. Unknown values are omitted.
    """
    attributes = span.attributes or {}
    phase = PHASES.get(str(attributes.get(semconv.PHASE)))
    scope, context = span.instrumentation_scope, span.context
    if phase is None or context is None or scope is None or scope.name != semconv.SCOPE:
        return None
    start, end = span.start_time or 0, span.end_time or 0
    record: dict[str, Any] = {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
        "parent_span_id": format_span_id(span.parent.span_id) if span.parent is not None else None,
        "name": span.name,
        "start": start,
        "duration_ms": (end - start) / 1e6,
        "error": span.status.description,
        **{name: attributes.get(attribute) for name, attribute in _FACTS.items()},
        "input": _parsed(attributes.get(phase.input)),
        "output": _parsed(attributes.get(phase.output)),
    }
    return {name: value for name, value in record.items() if value is not None}


def _parsed(content: object) -> Any:
    if not isinstance(content, str):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # a limit on attributes that only the application's provider knows has cut it
        return content
