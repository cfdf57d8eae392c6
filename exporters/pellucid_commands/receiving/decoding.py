"""Spans, scores and log lines of OTLP requests."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]  # comes without types
from google.protobuf.json_format import ParseError as JsonError
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pellucid.semconv.names import AGENT_NAME, AGENT_VERSION, ERROR_TYPE, REQUEST_MODEL, RESPONSE_ID, RUN_ID
from pellucid.semconv.scores import (
    EVALUATION_BY,
    EVALUATION_EXPLANATION,
    EVALUATION_NAME,
    EVALUATION_RESULT,
    EVALUATION_SCORE_LABEL,
    EVALUATION_SCORE_VALUE,
)
from pellucid_exporters.local.records import EventRecord, light_json
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.local.score_schema import SCORE
from pellucid_exporters.plain_json import plain_json
from pellucid_exporters.stored.log_lines import LogLineRow

if TYPE_CHECKING:
    from google.protobuf.message import Message

_TRACE, _SPAN = 16, 8
"""Bytes of ids."""

_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_KINDS: Final = (
    *(SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.SERVER),
    *(SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER),
)
_CODES: Final = (StatusCode.UNSET, StatusCode.OK, StatusCode.ERROR)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "score": (EVALUATION_NAME,),
    "label": (EVALUATION_SCORE_LABEL,),
    "explanation": (EVALUATION_EXPLANATION,),
    "by": (EVALUATION_BY,),
    "error_type": (ERROR_TYPE,),
    "response_id": (RESPONSE_ID,),
    "agent": (AGENT_NAME, "agent"),
    "version": (AGENT_VERSION,),
    "model": (REQUEST_MODEL,),
    "run_id": (RUN_ID, "run_id"),
}
"""Attributes of a score by their names in an event of the store; of Pellucid's log lines, some have other names."""


class Undecodable(ValueError):
    """A body is no request of OTLP."""


def decoded(body: bytes, request: Message, *, is_json: bool) -> Message:
    """Fill a request from a body.

    Raises:
        Undecodable: it is none.
    """
    try:
        if is_json:
            return from_json(json.loads(body), request)
        request.ParseFromString(body)
    except (DecodeError, ValueError, RecursionError) as error:
        raise Undecodable(f"this is no {request.DESCRIPTOR.name}: {error}") from error
    return request


def from_json(document: Any, request: Message) -> Message:
    """Fill a request from JSON.

    Raises:
        Undecodable: it is none.
    """
    if not isinstance(document, dict):
        raise Undecodable("this is no object of JSON")
    try:
        return ParseDict(_with_binary_ids(document), request, ignore_unknown_fields=True)
    except (JsonError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Undecodable(str(error)) from error


def _with_binary_ids(value: Any) -> Any:
    """Return JSON with ids as protobuf's mapping has them; OTLP has hexadecimal ones."""
    if isinstance(value, list):
        return [_with_binary_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode()
        if key in _IDS and isinstance(item, str)
        else _with_binary_ids(item)
        for key, item in value.items()
    }


def spans_of(request: Any) -> Iterator[ReadableSpan | None]:
    """Yield the spans of a request, and None for each without valid ids and times."""
    for group in request.resource_spans:
        resource = Resource(_attributes(group.resource))
        for scoped in group.scope_spans:
            scope = InstrumentationScope(scoped.scope.name, scoped.scope.version or None)
            for span in scoped.spans:
                yield _span(span, resource, scope) if _is_valid(span) else None


def _is_valid(span: Any) -> bool:
    has_ids = len(span.trace_id) == _TRACE and len(span.span_id) == _SPAN and any(span.trace_id) and any(span.span_id)
    has_parent = not span.parent_span_id or len(span.parent_span_id) == _SPAN
    return has_ids and has_parent and max(span.start_time_unix_nano, span.end_time_unix_nano) <= LARGEST


def _span(span: Any, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    context = _context(span.trace_id, span.span_id)
    parent = _context(span.trace_id, span.parent_span_id) if any(span.parent_span_id) else None
    code = _CODES[span.status.code] if span.status.code < len(_CODES) else StatusCode.UNSET
    message = (span.status.message or None) if code is StatusCode.ERROR else None
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=_attributes(span),
        events=[Event(event.name, _attributes(event), min(event.time_unix_nano, LARGEST)) for event in span.events],
        links=[Link(_context(link.trace_id, link.span_id), _attributes(link)) for link in span.links],
        kind=_KINDS[span.kind] if span.kind < len(_KINDS) else SpanKind.INTERNAL,
        instrumentation_scope=scope,
        status=Status(code, message),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
    )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    return SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), True, _SAMPLED)


def scores_of(request: Any) -> Iterator[tuple[str, EventRecord] | None]:
    """Yield the scores of a request, each with the name of its service, and None for each other log record."""
    for service, _, record in log_records_of(request):
        score = score_of(record)
        yield (service, score) if score is not None else None


def log_records_of(request: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the log records of a request, each with the names of its service and logger."""
    for group in request.resource_logs:
        service = str(_attributes(group.resource).get("service.name", ""))
        for scoped in group.scope_logs:
            for record in scoped.log_records:
                yield service, scoped.scope.name, record


def log_line_of(record: Any, logger: str, run_id: str) -> LogLineRow | None:
    """Return the line of a log record of a run; None if its ids or its time are not valid."""
    time = record.time_unix_nano or record.observed_time_unix_nano
    if len(record.trace_id) != _TRACE or len(record.span_id) != _SPAN or time > LARGEST:
        return None
    body = _value(record.body)
    named = {"event.name": record.event_name} if record.event_name else {}
    return LogLineRow(
        run_id=run_id,
        span_id=record.span_id.hex(),
        time=time,
        severity=record.severity_number,
        level=record.severity_text,
        logger=logger,
        body=body if body is None or isinstance(body, str) else plain_json(body).decode(),
        attributes={**_attributes(record), **named},
    )


def score_of(record: Any) -> EventRecord | None:
    """Return the event of a score; None of another log record, or of a score without a name or what it judges."""
    facts = _attributes(record)
    if EVALUATION_RESULT not in {record.event_name, record.body.string_value, facts.get("event.name")}:
        return None
    payload: dict[str, Any] = {}
    for name, attributes in _TEXTS.items():
        if text := next((facts[key] for key in attributes if isinstance(facts.get(key), str) and facts[key]), ""):
            payload[name] = text
    value = facts.get(EVALUATION_SCORE_VALUE)
    if isinstance(value, int | float) and math.isfinite(value):
        payload["value"] = value
    if len(record.trace_id) == _TRACE and any(record.trace_id):
        payload["trace_id"] = record.trace_id.hex()
    if "score" not in payload or payload.keys().isdisjoint({"trace_id", "run_id", "response_id"}):
        return None
    bodies: dict[bytes, bytes] = {}
    return EventRecord(
        run_id=payload.get("run_id", ""),
        time=min(record.time_unix_nano or record.observed_time_unix_nano, LARGEST),
        name=SCORE,
        span_id=record.span_id if len(record.span_id) == _SPAN else bytes(_SPAN),
        payload=light_json(SCORE, payload, bodies),
        bodies=bodies,
    )


def _attributes(holder: Any) -> dict[str, Any]:
    """Return attributes; the JSON of objects, which attributes of spans cannot be."""
    found = {pair.key: _value(pair.value) for pair in holder.attributes}
    return {
        name: plain_json(value).decode() if isinstance(value, dict) else value
        for name, value in found.items()
        if value is not None
    }


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind) if kind is not None else None
