"""Spans that cost a fraction of the SDK's, and are the same to everything that reads them.

They are the SDK's own classes for samplers, processors and exporters, with the SDK's limits. What differs: attributes
of plain types are taken as they are, in a dict, instead of being examined one by one; lists of events and links are
made when they are needed; and an ended span, which cannot change, is not copied for its processors.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, EventBase, ReadableSpan, Span, Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace import Span as ApiSpan

from pellucid_exporters.recorder.names import is_own

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer as ApiTracer
    from opentelemetry.util.types import AnyValue, Attributes

_log: Final = logging.getLogger(__name__)

_SCALARS: Final = (str, int, bool, float, bytes, NoneType)
_PLAIN: Final = frozenset(_SCALARS)
_TEXT: Final = frozenset({str})

_FLAGS: Final = [
    [TraceFlags(TraceFlags.DEFAULT), TraceFlags(TraceFlags.RANDOM_TRACE_ID)],
    [TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)],
]
"""Flags of a span, by whether it is sampled, and whether the id of its trace is random."""


class RecorderTracerProvider(TracerProvider):
    """The SDK's provider, with tracers whose spans cost less for Pellucid's own scopes; others get the SDK's."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> ApiTracer:
        """Return the tracer of a scope."""
        tracer = super().get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        if type(tracer) is Tracer and is_own(instrumenting_module_name):
            tracer.__class__ = RecorderTracer  # the SDK makes, keeps and configures tracers; only their spans differ
        return tracer


class RecorderTracer(Tracer):
    """The SDK's tracer, with spans that cost less."""

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> ApiSpan:
        """Start a span."""
        current: Any = get_current_span(context).get_span_context()  # None if a span of another library has none
        if not self._is_enabled():
            return NonRecordingSpan(current)
        ids = self.id_generator
        if current is not None and current.is_valid:
            parent, trace_id, is_random = current, current.trace_id, current.trace_flags.random_trace_id
        else:
            parent, trace_id, is_random = None, ids.generate_trace_id(), ids.is_trace_id_random()
        if self.sampler is DEFAULT_ON:  # as the parent
            is_recording = is_sampled = parent is None or parent.trace_flags.sampled
            trace_state = None if parent is None else parent.trace_state
        else:
            sampled = self.sampler.should_sample(context, trace_id, name, kind, attributes, links or ())
            is_recording = sampled.decision is not Decision.DROP
            is_sampled = sampled.decision is Decision.RECORD_AND_SAMPLE
            trace_state, attributes = sampled.trace_state, sampled.attributes
        flags = _FLAGS[is_sampled][is_random]
        span_context = SpanContext(trace_id, ids.generate_span_id(), False, flags, trace_state)
        if not is_recording:
            return NonRecordingSpan(span_context)
        span = RecorderSpan(
            self,
            name,
            span_context,
            parent,
            kind,
            attributes=attributes,
            links=links,
            record_exception=record_exception,
            set_status_on_exception=set_status_on_exception,
        )
        span.start(start_time, context)
        return span


class RecorderSpan(Span):
    """A recording span."""

    # As the SDK's class and its readers expect them of a span that has none.
    _instrumentation_info = None
    _trace_config = None
    _start_time = None
    _end_time = None
    _record_end_metrics = None
    _status = Status()
    _events: Any = ()
    _links: Any = ()
    _dropped = 0

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        *,
        attributes: Attributes,
        links: Sequence[Link] | None,
        record_exception: bool,
        set_status_on_exception: bool,
    ) -> None:
        self._name = name
        self._context = context
        self._parent = parent
        self._kind = kind
        self._record_exception = record_exception
        self._set_status_on_exception = set_status_on_exception
        self._sampler = tracer.sampler
        self._resource = tracer.resource
        self._span_processor = tracer.span_processor
        self._instrumentation_scope = tracer._instrumentation_scope  # noqa: SLF001  (as its own spans do)
        self._limits = tracer._span_limits  # noqa: SLF001
        self._lock = threading.Lock()
        self._attributes: dict[str, AnyValue] = {}
        if attributes:
            self._put(attributes)
        if links:
            self._links = self._new_links(links)

    @property
    def attributes(self) -> Mapping[str, AnyValue]:
        """Attributes; of a span that has not ended, those at this moment."""
        attributes = self._attributes
        return MappingProxyType(attributes.copy() if self._end_time is None else attributes)

    @property
    def dropped_attributes(self) -> int:
        """Number of attributes that were invalid or beyond the limit."""
        return self._dropped

    def set_attribute(self, key: Any, value: AnyValue) -> None:
        """Set an attribute."""
        if isinstance(key, str):
            self.set_attributes({key: value})
        elif self._end_time is None:  # refused, with a warning
            refused = BoundedAttributes(self._limits.max_span_attributes, immutable=False)
            refused[key] = value
            self._dropped += refused.dropped
        else:
            super().set_attribute(key, value)  # logs it

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """Set attributes."""
        with self._lock:
            is_open = self._end_time is None
            if is_open:
                self._put(attributes)
        if not is_open:
            super().set_attributes(attributes)  # logs it

    def end(self, end_time: int | None = None) -> None:
        """End the span, and give it to the processors."""
        with self._lock:
            is_open = self._end_time is None
            if is_open:
                self._end_time = time.time_ns() if end_time is None else end_time
        if not is_open:
            super().end()  # logs it
            return
        processor = self._span_processor
        processor._on_ending(self)  # noqa: SLF001
        processor.on_end(self)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Add an event, at once if none of its attributes needs a closer look."""
        limits = self._limits
        most = limits.max_event_attributes
        if (
            attributes
            and limits.max_attribute_length is None
            and (most is None or len(attributes) <= most)
            and _are_plain(attributes)
        ):
            self._add_event(_PlainEvent(name, dict(attributes), timestamp))
        else:
            super().add_event(name, attributes, timestamp)

    def _add_event(self, event: EventBase) -> None:
        with self._lock:
            is_open = self._end_time is None
            if is_open:
                if type(self._events) is tuple:
                    self._events = BoundedList(self._limits.max_events)
                self._events.append(event)
        if not is_open:
            super()._add_event(event)  # logs it

    def _add_link(self, link: Link) -> None:
        with self._lock:
            if type(self._links) is tuple:
                self._links = self._new_links(())
        super()._add_link(link)

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadableSpan:
        """Return a copy to read, as the SDK gives processors: a span itself has a lock, and its processors."""
        return copy.deepcopy(self._readable_span(), memo)

    def _readable_span(self) -> ReadableSpan:
        span: ReadableSpan = super()._readable_span()
        span._attributes = attributes = BoundedAttributes(attributes=self.attributes)  # noqa: SLF001
        attributes.dropped = self._dropped
        return span

    def _put(self, attributes: Mapping[str, AnyValue]) -> None:
        """Add attributes: all at once if none of them needs a closer look."""
        kept, limits = self._attributes, self._limits
        most = limits.max_span_attributes
        fits = most is None or len(kept) + len(attributes) <= most
        if fits and limits.max_span_attribute_length is None and _are_plain(attributes):
            if kept:
                for key in attributes:
                    kept.pop(key, None)  # the latest are the last
            kept.update(attributes)
            return
        for key, value in attributes.items():
            self._put_one(key, value, most)

    def _put_one(self, key: str, value: AnyValue, most: int | None) -> None:
        """Add an attribute as `BoundedAttributes` does: the oldest makes room."""
        kept, longest = self._attributes, self._limits.max_span_attribute_length
        if most == 0:
            self._dropped += 1
            return
        if longest is not None or not key or type(key) is not str or not _is_plain(value):
            cleaned = BoundedAttributes(attributes={key: value}, max_value_len=longest)
            if not cleaned:
                self._dropped += 1
                return
            ((key, value),) = cleaned.items()
        if key in kept:
            del kept[key]
        elif most is not None and len(kept) >= most:
            _log.warning("span %r has more than %d attributes; the oldest are dropped", self._name, most)
            del kept[next(iter(kept))]
            self._dropped += 1
        kept[key] = value


class _PlainEvent(Event):
    """Event whose attributes needed no cleaning."""

    @property
    def attributes(self) -> Mapping[str, AnyValue]:
        """Attributes."""
        return MappingProxyType(self._attributes or {})


def _are_plain(attributes: Mapping[str, AnyValue]) -> bool:
    """Return whether names and values of attributes are all kept as they are."""
    values = attributes.values()
    return (
        _TEXT.issuperset(map(type, attributes))
        and "" not in attributes
        and (_PLAIN.issuperset(map(type, values)) or all(map(_is_plain, values)))
    )


def _is_plain(value: object) -> bool:
    """Return whether a value is kept as it is."""
    return isinstance(value, _SCALARS) or (type(value) is tuple and _TEXT.issuperset(map(type, value)))
