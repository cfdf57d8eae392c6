"""Lines of the file: spans, events and boundaries as flat objects, each encoded as one line of valid JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import format_span_id, format_trace_id

from pellucid.events import Event, InferenceDelta
from pellucid.tools.catalog_records import catalog_json
from pellucid_exporters.boundary_records import boundary_of
from pellucid_exporters.plain_json import plain_json

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from pellucid.tools.catalog_records import CatalogListing
    from pellucid_exporters.file.options import LineType

NEVER_WRITTEN: Final = frozenset({InferenceDelta.name})
"""Events that are not written: a secret split across two pieces of a stream cannot be masked."""


def lines_of(item: ReadableSpan | Event, types: tuple[LineType, ...], resource: Resource) -> Iterator[bytes]:
    """Yield the lines of a span or an event, each with its newline."""
    service = resource.attributes.get("service.name")
    if isinstance(item, Event):
        yield _line({"type": "event", **_event(item, service)})
        return
    if "span" in types:
        yield _line({"type": "span", **_span(item, service)})
    boundary = boundary_of(item) if "boundary" in types else None
    if boundary is not None:
        start = boundary.pop("start")
        yield _line({"type": "boundary", "time": _time(start), "service": service, **boundary})


def catalog_line(listing: CatalogListing, resource: Resource) -> bytes | None:
    """Return the line of a catalogue, or None if it is too large."""
    text = catalog_json(listing)
    if text is None:
        return None
    head = {
        "type": "catalog",
        "time": _time(time.time_ns()),
        "service": resource.attributes.get("service.name"),
        "digest": listing.digest,
    }
    return plain_json(head)[:-1] + b"," + text[1:].encode("utf-8", "replace") + b"\n"


def _span(span: ReadableSpan, service: Any) -> dict[str, Any]:
    start, end = span.start_time or 0, span.end_time or 0
    scope = span.instrumentation_scope
    record = {
        "time": _time(start),
        "service": service,
        **_ids(span.get_span_context()),
        "parent_span_id": format_span_id(span.parent.span_id) if span.parent is not None else None,
        "name": span.name,
        "kind": span.kind.name.lower(),
        "duration_ms": (end - start) / 1e6,
        "status": span.status.status_code.name.lower(),
        "status_text": span.status.description,
        "scope": scope.name if scope is not None else None,
        "scope_version": scope.version if scope is not None else None,
        "attributes": dict(span.attributes or {}),
        "events": [
            {"time": _time(event.timestamp), "name": event.name, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
        "links": [{**_ids(link.context), "attributes": dict(link.attributes or {})} for link in span.links],
        "resource": dict(span.resource.attributes),
    }
    return {name: value for name, value in record.items() if value is not None}


def _event(event: Event, service: Any) -> dict[str, Any]:
    """Return envelope and payload in one object. Of the identity, only the conversation id is not content."""
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    del fields["identity"]
    record = {
        "time": _time(round(fields.pop("time") * 1e6) * 1000),
        "service": service,
        "name": event.name,
        **fields,
        "conversation_id": event.identity.conversation_id if event.identity is not None else None,
    }
    return {name: value for name, value in record.items() if value is not None}


def _ids(context: SpanContext | None) -> dict[str, str]:
    if context is None:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}


def _time(nanoseconds: int) -> str:
    """Format a time as ISO 8601 in UTC, with a fixed length so that lines sort by it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _line(record: Mapping[str, Any]) -> bytes:
    return plain_json(record) + b"\n"
