"""Our OTLP encoder beside the official one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from pellucid_exporters.otlp.encoding import MAX_KEPT, Encoder
from support.otlp_encodings import compare_lines, compare_spans, request_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(TEXTS, st.booleans(), INTEGERS, st.floats(allow_nan=False))
SPAN_VALUES = st.one_of(
    SCALARS, *(st.lists(items, max_size=4) for items in (TEXTS, st.booleans(), INTEGERS, st.floats(allow_nan=False)))
)
LOG_VALUES = st.recursive(
    st.one_of(SCALARS, st.none(), st.binary(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
LINES = st.lists(st.dictionaries(NAMES, LOG_VALUES, max_size=5), min_size=1, max_size=3)
CONTEXTS = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.just(TraceFlags(1)),
    st.sampled_from([TraceState(), TraceState([("a", "1"), ("b", "2")])]),
)


def exporting(**options: Any) -> tuple[TracerProvider, InMemorySpanExporter]:
    """Return a provider, and the exporter that keeps its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@settings(max_examples=150, deadline=None, database=None, derandomize="CI" in os.environ)
@given(data=st.data())
def test_spans_are_encoded_as_by_the_official_encoder(data: st.DataObject) -> None:
    """Whatever is in them: kinds, parents, values, events, links, statuses, exceeded limits, several scopes."""
    attributes = st.dictionaries(NAMES, SPAN_VALUES, max_size=6)
    limits = SpanLimits(max_span_attributes=4, max_events=2, max_links=2, max_event_attributes=2, max_link_attributes=2)
    provider, exporter = exporting(
        span_limits=limits, resource=Resource(data.draw(attributes), data.draw(st.sampled_from(["", "https://x/1"])))
    )
    tracers = [provider.get_tracer("a", "1", "https://x/2", {"k": 1}), provider.get_tracer("b")]
    for _ in range(data.draw(st.integers(1, 3))):
        parent = data.draw(st.none() | CONTEXTS)
        span = data.draw(st.sampled_from(tracers)).start_span(
            data.draw(TEXTS),
            trace.set_span_in_context(trace.NonRecordingSpan(parent)) if parent is not None else None,
            data.draw(st.sampled_from(SpanKind)),
            data.draw(attributes),
            [Link(context, data.draw(attributes)) for context in data.draw(st.lists(CONTEXTS, max_size=3))],
        )
        for name in data.draw(st.lists(TEXTS, max_size=3)):
            span.add_event(name, data.draw(attributes))
        span.set_status(data.draw(st.sampled_from(StatusCode)), data.draw(st.none() | TEXTS))
        span.end()
    compare_spans(exporter.get_finished_spans())


@settings(max_examples=150, deadline=None, database=None, derandomize="CI" in os.environ)
@given(
    lines=st.lists(st.dictionaries(NAMES, LOG_VALUES, max_size=5), min_size=1, max_size=3),
    level=st.sampled_from(["info", "?"]),
)
def test_log_records_are_encoded_as_by_the_official_encoder(lines: list[dict[str, Any]], level: str) -> None:
    """With nested values, with and without a span and a time; also those that do not pass through the SDK."""
    span = {"trace_id": "0a" * 16, "span_id": "0b" * 8, "timestamp": 1_700_000_000_000_000_000}
    compare_lines([{"event": "tool.ok", **line, "level": level} for line in lines])
    compare_lines([{**line, **span} for line in lines])


@pytest.mark.parametrize("value", [2**63, "half of a pair: \ud800"])
def test_values_that_otlp_cannot_hold_are_text(value: Any) -> None:
    """The official encoder drops the whole attribute."""
    provider, exporter = exporting()
    provider.get_tracer("a").start_span("s", attributes={"k": value}).end()
    request = ExportTraceServiceRequest.FromString(request_of(Encoder(), exporter.get_finished_spans()))
    (attribute,) = request.resource_spans[0].scope_spans[0].spans[0].attributes
    assert attribute.value.string_value == str(value).replace("\ud800", "?")


def test_what_is_kept_is_bounded() -> None:
    """Attributes that never come again do not fill the memory, and equal values of other types are not mixed up."""
    provider, exporter = exporting()
    tracer = provider.get_tracer("a")
    for number in range(100):
        tracer.start_span("s", attributes={"k": [1, True, 1.0][number % 3]}).end()
    compare_spans(exporter.get_finished_spans())
    exporter.clear()
    encoder = Encoder()
    for number in range(MAX_KEPT + 10):
        tracer.start_span("s", attributes={"k": number, "t": str(number)}).end()
        request_of(encoder, exporter.get_finished_spans())
        exporter.clear()
    assert max(len(encoder._texts), len(encoder._numbers)) <= MAX_KEPT
