"""Spans and log records as OTLP requests, written without message objects, which take most of the time of encoding.

Source: opentelemetry-proto 1.x, `trace.proto`, `logs.proto` and `common.proto`; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, Status

    from pellucid_exporters.otlp.line_records import LineRecord

MAX_KEPT: Final = 1_000
"""Texts, and numbers, of which the bytes are kept; then all are forgotten, as ids of runs never come again."""

MAX_KEPT_TEXT: Final = 96
"""Characters of a text whose bytes are kept: longer ones are content, which seldom comes again."""

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


class Encoded(NamedTuple):
    """Span or log record, and its field in a request.

    Attributes:
        item: Encoded item; it has a resource and a scope.
        content: The field.
    """

    item: Any
    content: bytes


class Encoder:
    """Encoder of requests, which encodes short attributes that come again once. Use it in one thread at a time."""

    def __init__(self) -> None:
        self._texts: dict[tuple[bytes, str, str], bytes] = {}
        self._numbers: dict[tuple[bytes, str, int, type], bytes] = {}

    def request(self, batch: Iterable[Encoded]) -> bytes:
        """Return an `ExportTraceServiceRequest` of spans, or an `ExportLogsServiceRequest` of log records."""
        resources: dict[Resource, _Scopes] = defaultdict(lambda: defaultdict(list))
        known: dict[tuple[int, int], list[bytes]] = {}  # hashes of resources take longer than encoding a span
        for item, content in batch:
            resource, scope = item.resource, item.instrumentation_scope
            fields = known.get((id(resource), id(scope)))
            if fields is None:
                fields = known[id(resource), id(scope)] = resources[resource][scope]
            fields.append(content)
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

    def span(self, span: ReadableSpan) -> Encoded:
        """Encode a span."""
        context, parent, status = span.context, span.parent, span.status
        assert context is not None
        parts = [
            _ids(context),
            _trace_state(context) if context.trace_state else b"",
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
            _sized(b"\x7a", _status(status) if status.status_code is not StatusCode.UNSET else b""),
            b"\x85\x01" + _flags(parent),
        ]
        return Encoded(span, _sized(b"\x12", b"".join(parts)))

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

    def record(self, item: ReadableLogRecord) -> Encoded:
        """Encode a log record."""
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
        return Encoded(item, _sized(b"\x12", b"".join(parts)))

    def line(self, item: LineRecord) -> Encoded:
        """Encode the log record of a line."""
        event, timestamp, (trace_id, span_id) = item.line.get("event"), item.line.get("timestamp"), item.ids
        parts = [
            b"\x09" + _fixed64(timestamp) if timestamp else b"",
            b"\x10" + _VARINTS[item.severity.value] + _text(b"\x1a", item.level),
            _sized(b"\x2a", _any_value(event)),
            self._attributes(b"\x32", item.attributes),
            b"\x45" + _fixed32(item.flags),
            b"\x4a\x10" + trace_id if any(trace_id) else b"",
            b"\x52\x08" + span_id if any(span_id) else b"",
            b"\x59" + _fixed64(item.observed),
            _optional_text(b"\x62", event),
        ]
        return Encoded(item, _sized(b"\x12", b"".join(parts)))

    def _attributes(self, tag: bytes, attributes: Mapping[str, Any] | None) -> bytes:
        """Return fields of `KeyValue`."""
        if not attributes:
            return b""
        parts, texts = [], self._texts
        for key, value in attributes.items():
            kind = value.__class__
            if kind is str and len(value) <= MAX_KEPT_TEXT:
                text = tag, key, value
                content = texts.get(text)
                if content is None:
                    if len(texts) >= MAX_KEPT:
                        texts.clear()
                    content = texts[text] = _sized(tag, _pair(key, value))
            elif kind is int or kind is bool:
                content = self._number(tag, key, value, kind)
            else:
                content = _sized(tag, _pair(key, value))
            parts.append(content)
        return b"".join(parts)

    def _number(self, tag: bytes, key: str, value: int, kind: type) -> bytes:
        numbers, number = self._numbers, (tag, key, value, kind)  # 1 and True are equal
        content = numbers.get(number)
        if content is None:
            if len(numbers) >= MAX_KEPT:
                numbers.clear()
            content = numbers[number] = _sized(tag, _pair(key, value))
        return content


def _ids(context: SpanContext) -> bytes:
    """Return the ids of trace and span, the first fields of a span and of a link."""
    return b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")


def _trace_state(context: SpanContext) -> bytes:
    return _text(b"\x1a", ",".join(f"{key}={value}" for key, value in context.trace_state.items()))


def _status(status: Status) -> bytes:
    code: int = status.status_code.value
    return _optional_text(b"\x12", status.description) + b"\x18" + _VARINTS[code]


def _flags(context: SpanContext | None) -> bytes:
    """Return the flags of a span with this parent, or of a link to this span."""
    flags = _IS_REMOTE if context is not None and context.is_remote else _HAS_IS_REMOTE
    return _fixed32(flags)
