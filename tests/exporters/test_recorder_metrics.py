"""Recorder of metrics: beside the SDK's provider, under threads, forks and garbage collection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    Counter,
    ExemplarFilter,
    Histogram,
    MeterProvider,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricReader,
)
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    LastValueAggregation,
    View,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from pellucid_exporters.prometheus.reader import PrometheusReader
from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider

RESOURCE: Final = Resource({"service.name": "shop"})
KINDS: Final = ("counter", "up_down_counter", "histogram", "advised", "gauge")
ATTRIBUTES: Final[Sequence[Any]] = (
    None,
    {},
    {"a": "x", "b": 1},
    {"b": 1, "a": "x"},
    {"a": "x", "b": True},
    {"a": "x", "b": 1.0},
    {"a": None},
    {"a": ("x", 1)},
    {"a": ["x", True]},
    {"a": {"b": [1]}, "c": b"x"},
)
SPANS: Final = (
    Context(),
    *(
        set_span_in_context(NonRecordingSpan(SpanContext(number, number, False, TraceFlags(flags))), Context())
        for number, flags in ((1, 1), (2, 1), (3, 0))
    ),
)
AMOUNTS: Final = (
    st.floats(min_value=0, max_value=1e300)
    | st.floats(min_value=0.5, max_value=4)
    | st.integers(min_value=0, max_value=2**70)
    | st.integers(min_value=-1080, max_value=1000).map(lambda exponent: 2.0**exponent)
    | st.booleans()
)
VIEWS: Final = (
    View(instrument_name="histogram", attribute_keys={"b"}, name="by b"),
    View(instrument_name="histogram", aggregation=ExponentialBucketHistogramAggregation(max_size=4)),
    View(instrument_name="advised", aggregation=ExplicitBucketHistogramAggregation((1, 2), record_min_max=False)),
    View(instrument_name="up_down_counter", aggregation=ExponentialBucketHistogramAggregation()),
    View(instrument_name="counter", aggregation=LastValueAggregation()),
    View(instrument_name="gauge", aggregation=DropAggregation()),
)
RECORDS: Final = st.tuples(
    st.sampled_from(KINDS),
    st.lists(AMOUNTS, min_size=1, max_size=6),
    st.sampled_from(ATTRIBUTES),
    st.sampled_from(SPANS),
)
STEPS: Final = st.lists(RECORDS | st.integers(min_value=0, max_value=5), max_size=25)


def make_readers(max_size: int = 160) -> Sequence[MetricReader]:
    exponential = ExponentialBucketHistogramAggregation(max_size=max_size, max_scale=20 if max_size > 8 else 3)
    return (
        InMemoryMetricReader(),
        InMemoryMetricReader({Histogram: AggregationTemporality.DELTA, Counter: AggregationTemporality.DELTA}),
        InMemoryMetricReader(preferred_aggregation={Histogram: exponential}),
        InMemoryMetricReader({Histogram: AggregationTemporality.DELTA}, {Histogram: exponential}),
        InMemoryMetricReader(cardinality_limits={Histogram: 2, Counter: 1}),
        PrometheusReader(resource=RESOURCE, exemplar_ttl=math.inf, clock=lambda: 0.0),
    )


def make_provider(kind: type[MeterProvider], readers: Sequence[MetricReader], **options: Any) -> MeterProvider:
    registered = [each for reader in readers for each in getattr(reader, "all", (reader,))]
    return kind(registered, resource=RESOURCE, shutdown_on_exit=False, **options)


def make_instruments(provider: MeterProvider) -> Mapping[str, Any]:
    meter, other = provider.get_meter("m", "1", "https://schema", {"x": 1}), provider.get_meter("other")
    return {
        "counter": meter.create_counter("counter", "1", "a counter").add,
        "up_down_counter": other.create_up_down_counter("up_down_counter").add,
        "histogram": meter.create_histogram("histogram", "s").record,
        "advised": meter.create_histogram("advised", explicit_bucket_boundaries_advisory=[0.5, 1, 2.5]).record,
        "gauge": other.create_gauge("gauge").set,
    }


def collected(reader: MetricReader) -> Any:
    """Return all that a reader collects, without times; random exemplars only by their number."""
    if isinstance(reader, PrometheusReader):
        families = reader.scrape(complete=True)
        return [
            (family.name, family.type, family.documentation, sample.name, sample.labels, repr(sample.value), histogram)
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
            for histogram in [repr(sample.native_histogram)]
        ]
    assert isinstance(reader, InMemoryMetricReader)
    data = reader.get_metrics_data()
    if data is None:
        return None
    (resource,) = data.resource_metrics
    return resource.resource, [
        (scope.scope, scope.schema_url, [_metric(metric) for metric in scope.metrics])
        for scope in resource.scope_metrics
    ]


def _metric(metric: Any) -> Any:
    points = [
        (
            type(point),
            *(repr(getattr(point, name)) for name in ("value", "sum", "min", "max") if hasattr(point, name)),
            replace(point, start_time_unix_nano=0, time_unix_nano=0, exemplars=()),
            list(_exemplars(point)),
        )
        for point in metric.data.data_points
    ]
    return metric.name, metric.unit, metric.description, replace(metric.data, data_points=()), points


def _exemplars(point: Any) -> Iterator[Any]:
    for exemplar in point.exemplars:
        assert point.start_time_unix_nano is None or exemplar.time_unix_nano <= point.time_unix_nano
        is_aligned = hasattr(point, "explicit_bounds")
        yield replace(exemplar, time_unix_nano=0) if is_aligned else type(exemplar)


@pytest.mark.parametrize("views", [(), VIEWS], ids=["without views", "with views"])
@given(
    steps=STEPS,
    max_size=st.sampled_from([2, 5, 160]),
    exemplar_filter=st.sampled_from([TraceBasedExemplarFilter(), AlwaysOnExemplarFilter(), AlwaysOffExemplarFilter()]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_as_the_sdk(
    views: Sequence[View], steps: Sequence[Any], max_size: int, exemplar_filter: ExemplarFilter
) -> None:
    """Whatever is recorded and collected, in any order: readers of any kind get what the SDK's provider gives them."""
    ours, theirs = make_readers(max_size), make_readers(max_size)
    options: dict[str, Any] = {"views": views, "exemplar_filter": exemplar_filter}
    providers = [
        make_provider(RecorderMeterProvider, ours, **options),
        make_provider(MeterProvider, theirs, **options),
    ]
    instruments = [make_instruments(provider) for provider in providers]
    for step in (*steps, *range(6)):
        if isinstance(step, int):
            assert collected(ours[step]) == collected(theirs[step])
        else:
            kind, amounts, attributes, span = step
            for amount in amounts:
                for each in instruments:
                    each[kind](-amount if kind == "up_down_counter" else amount, attributes, span)
