"""Telemetry that our recorder and the SDK's record at once, to be compared."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from pellucid import semconv
from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider
from pellucid_exporters.recorder.spans import RecorderTracerProvider
from pellucid_exporters.testing import capture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_exporters.testing import Captured, Point


class Twins:
    """Makes the SDK record what a captured pipeline records with our recorder."""

    def __init__(self, telemetry: Captured) -> None:
        assert isinstance(telemetry.tracer_provider, RecorderTracerProvider)
        assert isinstance(telemetry.meter_provider, RecorderMeterProvider)
        self._ours, self._theirs = telemetry, capture(recorder="sdk")
        spans = _TwinTracerProvider(telemetry.tracer_provider, self._theirs.tracer_provider)
        telemetry.tracer_provider = spans  # type: ignore[assignment]
        meters = _TwinMeterProvider(telemetry.meter_provider, self._theirs.meter_provider)
        telemetry.meter_provider = meters  # type: ignore[assignment]

    def compare(self) -> None:
        """Check that both have the same spans, attribute by attribute, and the same points."""
        spans, others = _by_id(self._ours), _by_id(self._theirs)
        assert spans.keys() == others.keys()
        for span_id, content in spans.items():
            assert content == others[span_id]
        ours, theirs = _by_series(self._ours), _by_series(self._theirs)
        assert ours.keys() == theirs.keys()
        for series, point in ours.items():
            other = theirs[series]
            if point.name == semconv.HUB_UNANSWERED_AGE.name:
                continue  # read at two moments
            assert point.value == pytest.approx(other.value)
            if point.count is None:  # the exemplar is a random one
                point, other = (replace(each, exemplars=each.exemplars[:0]) for each in (point, other))  # noqa: PLW2901
            assert replace(point, value=0) == replace(other, value=0)


def _by_id(telemetry: Captured) -> dict[int, Any]:
    return {span.context.span_id: _content(span) for span in telemetry.spans}


def _content(span: ReadableSpan) -> list[Any]:
    status, scope = span.status, span.instrumentation_scope
    return [
        (span.name, span.context, span.parent, span.kind, span.start_time, span.end_time, scope),
        (status.status_code, status.description, dict(span.attributes or {}), span.dropped_attributes),
        [(event.name, dict(event.attributes or {})) for event in span.events],
        [(link.context, dict(link.attributes or {})) for link in span.links],
    ]


def _by_series(telemetry: Captured) -> Mapping[Any, Point]:
    return {(point.name, frozenset(point.attributes.items())): point for point in telemetry.metrics}


class _SameIds(IdGenerator):
    """Generator of the ids that the span of the other recorder has."""

    context = trace.INVALID_SPAN_CONTEXT

    def generate_span_id(self) -> int:
        return self.context.span_id

    def generate_trace_id(self) -> int:
        return self.context.trace_id

    def is_trace_id_random(self) -> bool:
        return self.context.trace_flags.random_trace_id


class _TwinTracerProvider(trace.TracerProvider):
    def __init__(self, ours: trace.TracerProvider, theirs: Any) -> None:
        self._ours, self._theirs, self._ids = ours, theirs, _SameIds()
        theirs.id_generator = self._ids

    def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
        ours, theirs = (provider.get_tracer(*args, **options) for provider in (self._ours, self._theirs))
        return _TwinTracer(ours, theirs, self._ids)


class _TwinTracer(trace.Tracer):
    _lock = threading.RLock()

    def __init__(self, ours: trace.Tracer, theirs: trace.Tracer, ids: _SameIds) -> None:
        self._ours, self._theirs, self._ids = ours, theirs, ids

    def start_span(self, *args: Any, **options: Any) -> trace.Span:
        span = self._ours.start_span(*args, **options)
        with self._lock:
            self._ids.context = span.get_span_context()
            other = self._theirs.start_span(*args, **options)
        return _TwinSpan(span, other)  # type: ignore[abstract]  # its methods are set below

    def start_as_current_span(self, name: str, *args: Any, **options: Any) -> Any:
        return trace.use_span(self.start_span(name, *args, **options), end_on_exit=True)


class _TwinSpan(trace.Span):
    def __init__(self, ours: trace.Span, theirs: trace.Span) -> None:
        self.ours, self.theirs = ours, theirs


def _forwarded(kind: Any, *names: str) -> Any:
    """Return a class with methods that call the ours and theirs of an object, and return what ours does."""

    def forward(name: str) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            with _TwinTracer._lock:
                result = getattr(self.ours, name)(*args, **options)
                getattr(self.theirs, name)(*args, **options)
            return result

        return call

    return type(kind.__name__, (kind,), {name: forward(name) for name in names})


_TwinSpan = _forwarded(  # type: ignore[misc]
    _TwinSpan,
    "get_span_context", "is_recording", "set_attribute", "set_attributes", "add_event", "add_link", "update_name",
    "set_status", "record_exception", "end",
)  # fmt: skip


class _TwinMeterProvider(NoOpMeterProvider):
    def __init__(self, ours: metrics.MeterProvider, theirs: metrics.MeterProvider) -> None:
        self._ours, self._theirs = ours, theirs

    def get_meter(self, *args: Any, **options: Any) -> metrics.Meter:
        return _TwinMeter(*(provider.get_meter(*args, **options) for provider in (self._ours, self._theirs)))


class _TwinMeter(NoOpMeter):
    def __init__(self, ours: metrics.Meter, theirs: metrics.Meter) -> None:
        super().__init__(ours.name)
        self._ours, self._theirs = ours, theirs

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("create_"):
            return super().__getattribute__(name)
        return lambda *args, **options: _TwinInstrument(
            *(getattr(meter, name)(*args, **options) for meter in (self._ours, self._theirs))
        )


class _TwinInstrument:
    def __init__(self, ours: Any, theirs: Any) -> None:
        self.ours, self.theirs = ours, theirs


_TwinInstrument = _forwarded(_TwinInstrument, "add", "record", "set")  # type: ignore[misc]
