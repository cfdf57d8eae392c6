"""Spans, events and log lines from the rows of a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pellucid import semconv
from pellucid.telemetry.phases import PHASES
from pellucid_exporters.local.log_lines import LogLine, log_line
from pellucid_exporters.local.records import EventRecord, light_json
from pellucid_exporters.stored.bodies import filled
from pellucid_exporters.stored.rows import FAULTS, EventRow, SpanRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pellucid_exporters.stored.log_lines import LogLineRow

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}
_NOWHERE: Final = Resource({})


def span_of(row: SpanRow, texts: Mapping[str, str]) -> ReadableSpan:
    """Return the span of a row, with its large texts in place."""
    context = SpanContext(int(row.trace_id, 16), int(row.span_id, 16), True, _SAMPLED)
    parent = row.parent_span_id
    is_own = row.phase in PHASES and semconv.RUN_ID in row.attributes
    code = StatusCode.ERROR if row.status in FAULTS or row.error else StatusCode.UNSET
    return ReadableSpan(
        name=row.name,
        context=context,
        parent=SpanContext(context.trace_id, int(parent, 16), True, _SAMPLED) if parent else None,
        resource=_NOWHERE,
        attributes=filled(row.attributes, texts),
        events=[Event(item["name"], item.get("attributes"), item["time"]) for item in filled(row.events, texts)],
        links=[
            Link(SpanContext(int(link["trace_id"], 16), int(link["span_id"], 16), True, _SAMPLED)) for link in row.links
        ],
        kind=_KINDS.get(row.kind, SpanKind.INTERNAL),
        instrumentation_scope=InstrumentationScope(row.scope or (semconv.SCOPE if is_own else "")),
        status=Status(code, row.error) if code is StatusCode.ERROR else Status(code),
        start_time=row.start,
        end_time=row.end,
    )


def event_of(row: EventRow, payload: Mapping[str, Any]) -> EventRecord:
    """Return the record of an event with a payload."""
    bodies: dict[bytes, bytes] = {}
    return EventRecord(
        run_id=row.run_id,
        time=row.time,
        name=row.name,
        span_id=bytes.fromhex(row.span_id or ""),
        payload=light_json(row.name, payload, bodies),
        bodies=bodies,
    )


def record_of_line(row: LogLineRow, trace_id: str) -> LogLine:
    """Return the record of a log line."""
    return log_line(
        (bytes.fromhex(trace_id), bytes.fromhex(row.span_id)),
        row.time,
        row.severity,
        level=row.level,
        logger=row.logger,
        body=row.body,
        attributes=row.attributes,
        run_id=row.run_id,
    )
