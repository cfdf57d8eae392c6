"""Spans and log records as OTLP requests, written without message objects, which take most of the time of encoding.

Source: opentelemetry-proto 1.x, `trace.proto`, `logs.proto` and `common.proto`; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, Status

MAX_KEPT: Final = 2_000
"""Attributes of which the bytes are kept; then all are forgotten, as ids of runs and calls never come again."""

MAX_KEPT_BYTES: Final = 128
"""Bytes of an attribute that are kept: longer ones are content, which seldom comes again."""

ItemT = TypeVar("ItemT")

_Scopes: TypeAlias = "dict[InstrumentationScope | None, list[bytes]]"

_fixed32: Callable[[int], bytes] = Struct("<I").pack
_fixed64: Callable[[int], bytes] = Struct("<Q").pack
_double: Callable[[float], bytes] = Struct("<d").pack

_INT64: Final = range(-(1 << 63), 1 << 63)
_LOW: Final = 0x7F
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x300


def _varint(number: int) -> bytes:
    """Return a number as a varint; a negative one as 64 bits in two's complement."""
    number &= (1 << 64) - 1
    content = bytearray()
    while number > _LOW:
        content.append(number & _LOW | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


_VARINTS: Final = [_varint(number) for number in range(4096)]


def _sized(tag: bytes, content: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    size = len(content)
    return tag + (_VARINTS[size] if size < len(_VARINTS) else _varint(size)) + content


def _text(tag: bytes, text: str) -> bytes:
    try:
        return _sized(tag, text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return _sized(tag, text.encode("utf-8", "replace"))


def _optional_text(tag: bytes, text: str | None) -> bytes:
    return _text(tag, text) if text else b""


def _count(tag: bytes, number: int) -> bytes:
    return tag + _varint(number) if number else b""


def _any_value(value: Any) -> bytes:  # noqa: PLR0911  (a case for each field)
    """Return the content of an `AnyValue`; text for what no field can hold."""
    if isinstance(value, str):
        return _text(b"\x0a", value)
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value) if value in _INT64 else _text(b"\x0a", str(value))
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if isinstance(value, bytes):
        return _sized(b"\x3a", value)
    if isinstance(value, Mapping):
        return _sized(b"\x32", b"".join(_sized(b"\x0a", _pair(str(key), item)) for key, item in value.items()))
    if isinstance(value, Sequence):
        return _sized(b"\x2a", b"".join(_sized(b"\x0a", _any_value(item)) for item in value))
    return b"" if value is None else _text(b"\x0a", str(value))


def _pair(key: str, value: Any) -> bytes:
    """Return the content of a `KeyValue`."""
    return _text(b"\x0a", key) + _sized(b"\x12", _any_value(value))


class Encoder:
    """Encoder of requests, which encodes short attributes that come again once. Use it in one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str, Any, type], bytes] = {}

    def spans(self, spans: Iterable[ReadableSpan]) -> bytes:
        """Return an `ExportTraceServiceRequest`."""
        return self._request(spans, self._span)

    def logs(self, records: Iterable[ReadableLogRecord]) -> bytes:
        """Return an `ExportLogsServiceRequest`."""
        return self._request(records, self._record)

    def _request(self, items: Iterable[ItemT], encode: Callable[[ItemT], bytes]) -> bytes:
        """Return a request with items by their resource and scope."""
        resources: dict[Resource, _Scopes] = defaultdict(lambda: defaultdict(list))
        for item in items:
            source: Any = item
            resources[source.resource][source.instrumentation_scope].append(_sized(b"\x12", encode(item)))
        return b"".join(
            _sized(
                b"\x0a",  # resource_spans, resource_logs
                _sized(b"\x0a", self._attributes(b"\x0a", resource.attributes))
                + b"".join(_sized(b"\x12", self._scope(scope, encoded)) for scope, encoded in scopes.items())
                + _optional_text(b"\x1a", resource.schema_url),
            )
            for resource, scopes in resources.items()
        )

    def _scope(self, scope: InstrumentationScope | None, encoded: list[bytes]) -> bytes:
        if scope is None:
            return b"\x0a\x00" + b"".join(encoded)
        described = _optional_text(b"\x0a", scope.name) + _optional_text(b"\x12", scope.version)
        described += self._attributes(b"\x1a", scope.attributes)
        return _sized(b"\x0a", described) + b"".join(encoded) + _optional_text(b"\x1a", scope.schema_url)

    def _span(self, span: ReadableSpan) -> bytes:
        context, parent = span.context, span.parent
        assert context is not None
        parts = [
            _ids(context),
            _trace_state(context),
            b"\x22\x08" + parent.span_id.to_bytes(8, "big") if parent is not None else b"",
            _text(b"\x2a", span.name),
            b"\x30" + _VARINTS[span.kind.value + 1],
            b"\x39" + _fixed64(span.start_time or 0),
            b"\x41" + _fixed64(span.end_time or 0),
            self._attributes(b"\x4a", span.attributes),
            _count(b"\x50", span.dropped_attributes),
            *[_sized(b"\x5a", self._event(event)) for event in span.events],
            _count(b"\x60", span.dropped_events),
            *[_sized(b"\x6a", self._link(link)) for link in span.links],
            _count(b"\x70", span.dropped_links),
            _sized(b"\x7a", _status(span.status)),
            b"\x85\x01" + _flags(parent),
        ]
        return b"".join(parts)

    def _event(self, event: Event) -> bytes:
        return (
            b"\x09"
            + _fixed64(event.timestamp)
            + _text(b"\x12", event.name)
            + self._attributes(b"\x1a", event.attributes)
            + _count(b"\x20", event.dropped_attributes)
        )

    def _link(self, link: Link) -> bytes:
        return (
            _ids(link.context)
            + self._attributes(b"\x22", link.attributes)
            + _count(b"\x28", link.dropped_attributes)
            + b"\x35"
            + _flags(link.context)
        )

    def _record(self, item: ReadableLogRecord) -> bytes:
        record = item.log_record
        severity = record.severity_number
        parts = [
            b"\x09" + _fixed64(record.timestamp) if record.timestamp else b"",
            b"\x10" + _VARINTS[severity.value] if severity is not None else b"",
            _optional_text(b"\x1a", record.severity_text),
            _sized(b"\x2a", _any_value(record.body)),
            self._attributes(b"\x32", record.attributes),
            _count(b"\x38", item.dropped_attributes),
            b"\x45" + _fixed32(int(record.trace_flags or 0)),
            b"\x4a\x10" + record.trace_id.to_bytes(16, "big") if record.trace_id else b"",
            b"\x52\x08" + record.span_id.to_bytes(8, "big") if record.span_id else b"",
            b"\x59" + _fixed64(record.observed_timestamp) if record.observed_timestamp else b"",
            _optional_text(b"\x62", record.event_name),
        ]
        return b"".join(parts)

    def _attributes(self, tag: bytes, attributes: Mapping[str, Any] | None) -> bytes:
        """Return fields of `KeyValue`."""
        if not attributes:
            return b""
        parts, kept = [], self._kept
        for key, value in attributes.items():
            kind = value.__class__
            if kind is not str and kind is not int and kind is not bool:
                parts.append(_sized(tag, _pair(key, value)))
                continue
            name = tag, key, value, kind  # 1 and True are equal
            content = kept.get(name)
            if content is None:
                content = _sized(tag, _pair(key, value))
                if len(content) <= MAX_KEPT_BYTES:
                    if len(kept) >= MAX_KEPT:
                        kept.clear()
                    kept[name] = content
            parts.append(content)
        return b"".join(parts)


def _ids(context: SpanContext) -> bytes:
    """Return the ids of trace and span, the first fields of a span and of a link."""
    return b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")


def _trace_state(context: SpanContext) -> bytes:
    if not context.trace_state:
        return b""
    return _text(b"\x1a", ",".join(f"{key}={value}" for key, value in context.trace_state.items()))


def _status(status: Status) -> bytes:
    if status.status_code is StatusCode.UNSET:
        return b""
    code: int = status.status_code.value
    return _optional_text(b"\x12", status.description) + b"\x18" + _VARINTS[code]


def _flags(context: SpanContext | None) -> bytes:
    """Return the flags of a span with this parent, or of a link to this span."""
    flags = _IS_REMOTE if context is not None and context.is_remote else _HAS_IS_REMOTE
    return _fixed32(flags)
