"""Instrumentation scopes of the own recorder: it records Pellucid's, and gives all others the SDK's objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, set_span_in_context

from pellucid import semconv
from pellucid_exporters.recorder.providers import make_meter_provider, make_tracer_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN: Final = (semconv.SCOPE, "pellucid.server", "pellucid.callbacks")
OTHERS: Final = ("opentelemetry.instrumentation.httpx", "app", "pellucidity")
KINDS: Final = ("counter", "up_down_counter", "histogram", "gauge")


@pytest.fixture
def tracers() -> Iterator[TracerProvider]:
    """A provider of the own recorder."""
    provider = make_tracer_provider("fast", shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def instruments_of(provider: MeterProvider, scope: str) -> list[Any]:
    """Return one synchronous instrument of each kind."""
    meter = provider.get_meter(scope)
    return [getattr(meter, f"create_{kind}")(kind) for kind in KINDS]


def test_spans_of_other_scopes_are_the_sdks(tracers: TracerProvider) -> None:
    """Tracers and spans of other scopes are of the very classes that the SDK's own provider makes."""
    plain = TracerProvider(shutdown_on_exit=False)
    for scope in OTHERS:
        tracer, reference = tracers.get_tracer(scope), plain.get_tracer(scope)
        assert type(tracer) is type(reference)
        assert type(tracer.start_span("s")) is type(reference.start_span("s"))
    for scope in OWN:
        assert type(tracers.get_tracer(scope).start_span("s")).__module__.startswith("pellucid_exporters.")


def test_instruments_of_other_scopes_are_the_sdks() -> None:
    """Meters and instruments of other scopes are of the very classes that the SDK's own provider makes."""
    provider, plain = make_meter_provider("fast", (), shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    for scope in OTHERS:
        assert type(provider.get_meter(scope)) is type(plain.get_meter(scope))
        pairs = zip(instruments_of(provider, scope), instruments_of(plain, scope), strict=True)
        assert all(type(one) is type(other) for one, other in pairs)
    for scope in OWN:
        assert all(type(each).__module__.startswith("pellucid_exporters.") for each in instruments_of(provider, scope))


def test_parents_links_processors_and_samplers_are_shared() -> None:
    """Traces cross scopes, and a processor or sampler of the application sees the spans of all scopes."""

    class Marking(Sampler):
        def should_sample(self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any) -> SamplingResult:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, {"sampled": name})

        def get_description(self) -> str:
            return "marking"

    provider = make_tracer_provider("fast", sampler=Marking(), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    own, other = provider.get_tracer(semconv.SCOPE), provider.get_tracer("app")
    root = other.start_span("request")
    run = own.start_span("run", set_span_in_context(root), links=[Link(root.get_span_context())])
    call = other.start_span("call", set_span_in_context(run), links=[Link(run.get_span_context())])
    for span in (call, run, root):
        span.end()
    finished: dict[str, ReadableSpan] = {span.name: span for span in exporter.get_finished_spans()}
    assert {name: dict(span.attributes or {}) for name, span in finished.items()} == {
        name: {"sampled": name} for name in ("call", "run", "request")
    }
    for child, parent in (("run", "request"), ("call", "run")):
        assert finished[child].parent == finished[parent].context
        assert [link.context for link in finished[child].links] == [finished[parent].context]
    assert len({span.context.trace_id for span in finished.values() if span.context is not None}) == 1


def test_views_and_readers_are_shared() -> None:
    """One collection has the measurements of all scopes, each changed by the view that matches it."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="requests", attribute_keys={"kept"})
    provider = make_meter_provider("fast", [reader], views=[view], shutdown_on_exit=False)
    for scope in (semconv.SCOPE, "app"):
        counter = provider.get_meter(scope).create_counter("requests")
        for number in range(3):
            counter.add(1, {"kept": "x", "left out": number})
    data = reader.get_metrics_data()
    assert data is not None
    assert {
        scope.scope.name: [(dict(point.attributes or {}), point.value) for point in scope.metrics[0].data.data_points]  # type: ignore[union-attr]  # they are counters
        for scope in data.resource_metrics[0].scope_metrics
    } == {scope: [({"kept": "x"}, 3)] for scope in (semconv.SCOPE, "app")}
