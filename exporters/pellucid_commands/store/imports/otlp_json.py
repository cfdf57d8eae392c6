"""Spans of OTLP in JSON: one document, or one in each line, as the file exporter of the Collector writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SIGNS: Final = ("resourceSpans", "resource_spans")
"""Keys of a document."""

_KINDS: Final = (
    SpanKind.INTERNAL,
    SpanKind.INTERNAL,
    SpanKind.SERVER,
    SpanKind.CLIENT,
    SpanKind.PRODUCER,
    SpanKind.CONSUMER,
)
_CODES: Final = (StatusCode.UNSET, StatusCode.OK, StatusCode.ERROR)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def read_spans(path: Path) -> Iterator[ReadableSpan]:
    """Yield the spans of a file.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    try:
        for document in _documents(path):
            yield from _spans_of(document)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ConfigError(f"{path}: this is no OTLP in JSON ({error})") from error


def _documents(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:  # not one in each line
            file.seek(0)
            yield json.load(file)
            return
        yield first
        for line in file:
            if line.strip():
                yield json.loads(line)


def _spans_of(document: Mapping[str, Any]) -> Iterator[ReadableSpan]:
    for group in _get(document, "resourceSpans", ()):
        resource = Resource(_attributes(_get(_get(group, "resource", {}), "attributes", ())))
        for scoped in _get(group, "scopeSpans", ()):
            given = _get(scoped, "scope", {})
            scope = InstrumentationScope(given.get("name", ""), given.get("version") or None)
            for span in _get(scoped, "spans", ()):
                yield _span(span, resource, scope)


def _span(span: Mapping[str, Any], resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    context = _context(span)
    parent = _get(span, "parentSpanId", "")
    status = span.get("status") or {}
    code = _member(status.get("code", 0), "STATUS_CODE_", [code.name for code in _CODES], _CODES)
    is_failed = code is StatusCode.ERROR
    names = ["UNSPECIFIED", *(kind.name for kind in _KINDS[1:])]
    return ReadableSpan(
        name=str(span.get("name", "")),
        context=context,
        parent=SpanContext(context.trace_id, int(parent, 16), True, _SAMPLED) if parent else None,
        resource=resource,
        attributes=_attributes(span.get("attributes", ())),
        events=[
            Event(str(event.get("name", "")), _attributes(event.get("attributes", ())), _time(event, "timeUnixNano"))
            for event in span.get("events", ())
        ],
        links=[Link(_context(link), _attributes(link.get("attributes", ()))) for link in span.get("links", ())],
        kind=_member(span.get("kind", 0), "SPAN_KIND_", names, _KINDS),
        instrumentation_scope=scope,
        status=Status(code, status.get("message") or None) if is_failed else Status(code),
        start_time=_time(span, "startTimeUnixNano"),
        end_time=_time(span, "endTimeUnixNano"),
    )


def _context(item: Mapping[str, Any]) -> SpanContext:
    return SpanContext(int(_get(item, "traceId", ""), 16), int(_get(item, "spanId", ""), 16), True, _SAMPLED)


def _time(item: Mapping[str, Any], name: str) -> int:
    return int(_get(item, name, 0))


def _get(item: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """Return a field in camel case; protobuf's own names, in snake case, are read, too."""
    if name in item:
        return item[name]
    return item.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name), otherwise)


def _member(value: Any, prefix: str, names: list[str], members: tuple[Any, ...]) -> Any:
    """Return a member of an enumeration by its number or name."""
    return members[value if isinstance(value, int) else names.index(str(value).removeprefix(prefix))]


def _attributes(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found = {str(pair["key"]): _value(pair.get("value") or {}) for pair in pairs}
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        for name, value in found.items()
        if value is not None
    }


def _value(value: Mapping[str, Any]) -> Any:
    [(name, content), *_] = list(value.items()) or [("", None)]
    convert = _VALUES.get(name)
    return convert(content) if convert is not None else None


def _array(content: Mapping[str, Any]) -> list[Any]:
    return [_value(item) for item in content.get("values", ())]


def _object(content: Mapping[str, Any]) -> dict[str, Any]:
    return {str(pair["key"]): _value(pair.get("value") or {}) for pair in content.get("values", ())}


_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    name: convert
    for names, convert in (
        (("stringValue", "string_value"), str),
        (("boolValue", "bool_value"), bool),
        (("intValue", "int_value"), int),
        (("doubleValue", "double_value"), float),
        (("arrayValue", "array_value"), _array),
        (("bytesValue", "bytes_value"), lambda content: base64.b64decode(content).hex()),
        (("kvlistValue", "kvlist_value"), _object),
    )
    for name in names
}
"""Conversion of values by the names of their types."""
