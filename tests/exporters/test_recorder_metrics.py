"""Recorder of metrics: beside the SDK's provider, under threads and garbage collection."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    Counter,
    Exemplar,
    ExemplarFilter,
    ExemplarReservoir,
    Histogram,
    MeterProvider,
    TraceBasedExemplarFilter,
    _Gauge,
)
from opentelemetry.sdk.metrics._internal import _disable_meter_configurator
from opentelemetry.sdk.metrics._internal._view_instrument_match import _ViewInstrumentMatch
from opentelemetry.sdk.metrics._internal.aggregation import _LastValueAggregation
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
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

from pellucid import semconv
from pellucid_exporters.prometheus.reader import PrometheusReader
from pellucid_exporters.recorder.metrics import aggregations, measurements
from pellucid_exporters.recorder.metrics.measurements import MOST_WAITING
from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider
from pellucid_exporters.recorder.metrics.trial import needs_sdk
from support.processes import PATIENCE, run_python

OWN: Final = semconv.SCOPE
"""A scope that the recorder records; the others are left to the SDK."""

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


class EveryExemplar(ExemplarReservoir):
    """Reservoir of an application."""

    def __init__(self, **_: object) -> None:
        self._offered: list[tuple[float, Any]] = []

    def offer(self, value: float, time_unix_nano: int, attributes: Any, context: Context) -> None:
        """Store all."""
        self._offered.append((value, attributes))

    def collect(self, point_attributes: Any) -> list[Exemplar]:
        """Return all, and begin anew."""
        offered, self._offered = self._offered, []
        return [Exemplar(attributes, value, 0) for value, attributes in offered]


class FirstValue(LastValueAggregation):
    """Aggregation that is not the SDK's own."""

    def _create_aggregation(self, *arguments: Any) -> Any:
        class Aggregation(_LastValueAggregation):
            def aggregate(self, measurement: Any, should_sample_exemplar: bool = True) -> None:
                if self._value is None:
                    super().aggregate(measurement, should_sample_exemplar)

        _, attributes, reservoirs, _ = arguments
        return Aggregation(attributes, reservoirs(_LastValueAggregation), instrument_is_synchronous=True)


VIEWS: Final = (
    View(instrument_name="histogram", attribute_keys={"b"}, name="by b"),
    View(instrument_name="advised", name="every", exemplar_reservoir_factory=cast("Any", lambda _: EveryExemplar)),
    View(instrument_name="counter", name="first", aggregation=FirstValue()),
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


def make_readers(max_size: int) -> Sequence[MetricReader]:
    """Return readers of all temporalities, aggregations and limits."""
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
    """Return a provider with readers, of which one may have two."""
    registered = [each for reader in readers for each in getattr(reader, "all", (reader,))]
    return kind(registered, resource=RESOURCE, shutdown_on_exit=False, **options)


def make_instruments(provider: MeterProvider) -> Mapping[str, Any]:
    """Return the methods that record, by name of the instrument."""
    meter, other = provider.get_meter(OWN, "1", "https://schema", {"x": 1}), provider.get_meter(f"{OWN}.other")
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


def collected_or_error(reader: MetricReader) -> Any:
    """Return all that a reader collects, or the text of the error: the SDK cannot merge some exponential histograms."""
    try:
        return collected(reader)
    except Exception as error:
        if str(error) != "Incorrect merge scale":
            raise
        return repr(error)


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
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_as_the_sdk(
    views: Sequence[View], steps: Sequence[Any], max_size: int, exemplar_filter: ExemplarFilter
) -> None:
    """A reader of any kind gets the same from the own recorder as from the SDK's provider, in any order of steps."""
    ours, theirs = make_readers(max_size), make_readers(max_size)
    options: dict[str, Any] = {"views": views, "exemplar_filter": exemplar_filter}
    providers = [
        make_provider(RecorderMeterProvider, ours, **options),
        make_provider(MeterProvider, theirs, **options),
    ]
    instruments = [make_instruments(provider) for provider in providers]
    for step in (*steps, *range(6)):
        if isinstance(step, int):
            our, their = collected_or_error(ours[step]), collected_or_error(theirs[step])
            assert our == their
            if isinstance(our, str):
                return
        else:
            kind, amounts, attributes, span = step
            if isinstance(exemplar_filter, AlwaysOnExemplarFilter):
                span = span or SPANS[-1]  # without one, the SDK leaves the ids of the exemplar that it overwrites
            for amount in amounts:
                for each in instruments:
                    each[kind](amount if kind != "up_down_counter" else -amount, attributes, span)


@given(
    batches=st.lists(st.lists(AMOUNTS, min_size=MOST_WAITING, max_size=MOST_WAITING + 5), min_size=1, max_size=3),
    max_size=st.sampled_from([2, 20, 160]),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
def test_many_measurements_are_aggregated_at_once(batches: Sequence[Sequence[float]], max_size: int) -> None:
    """Many measurements at once have the SDK's buckets, scales and sums."""
    ours, theirs = make_readers(max_size), make_readers(max_size)
    records = [
        make_instruments(make_provider(kind, readers))["histogram"]
        for kind, readers in ((RecorderMeterProvider, ours), (MeterProvider, theirs))
    ]
    for batch in batches:
        for amount in batch:
            for record in records:
                record(amount)
        for our, their in zip(ours, theirs, strict=True):
            assert collected(our) == collected(their)


def points_of(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Return the points of each metric that a reader collects."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_random_exemplars_are_measurements_of_their_series() -> None:
    """An exponential histogram gives out 20 of all its measurements, and at the next collection 20 of the new ones."""
    reader = InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
    record = make_instruments(make_provider(RecorderMeterProvider, [reader]))["histogram"]
    for begin in (1, 2 * MOST_WAITING):
        amounts = range(begin, begin + 2 * MOST_WAITING)
        for amount in amounts:
            record(amount, {"a": "x"}, SPANS[1])
            record(amount, {"a": "y"}, SPANS[2])
            record(0.5, {"a": "x"}, SPANS[3])
        for point, trace_id in zip(points_of(reader)["histogram"], (1, 2), strict=True):
            values = {exemplar.value for exemplar in point.exemplars}
            assert len(values) == 20
            assert values <= set(amounts)
            assert {exemplar.trace_id for exemplar in point.exemplars} == {trace_id}


MERGED: Final = {
    "spelled": ([{"a": "x", "b": 1}, {"b": 1, "a": "x"}], None, 9),
    "empty": ([None, {}], None, 9),
    "view": ([{"a": "x", "b": 1}, {"a": "x", "b": 2}], {"a"}, 9),
    "overflow": ([{"a": 1}, {"a": 2}], None, 1),
}
"""Attributes whose series meet in one, those that a view keeps, and the number of series before the overflow."""


@pytest.mark.parametrize(("spellings", "kept", "limit"), MERGED.values(), ids=MERGED.keys())
@pytest.mark.parametrize("provider_class", [RecorderMeterProvider, MeterProvider])
def test_series_that_meet_keep_the_order_of_arrival(
    provider_class: type[MeterProvider], spellings: Sequence[Any], kept: set[str] | None, limit: int
) -> None:
    """The last value, and the exemplar of a bucket, are the last that arrived under any spelling of the series."""
    reader = InMemoryMetricReader(cardinality_limits={_Gauge: limit, Histogram: limit})
    views = (View(instrument_name="*", attribute_keys=kept),)
    provider = make_provider(provider_class, [reader], views=views, exemplar_filter=AlwaysOnExemplarFilter())
    meter = provider.get_meter(OWN)
    set_, record = meter.create_gauge("gauge").set, meter.create_histogram("histogram").record
    one, other = spellings
    for amount, attributes in ((8, {"a": "first"}), (9, one), (9, other), (1, one), (2, other), (3, one)):
        set_(amount, attributes)
        record(1 + amount / 100, attributes)
    points = points_of(reader)
    assert [point.value for point in points["gauge"]] == [8, 3]
    assert [[exemplar.value for exemplar in point.exemplars] for point in points["histogram"]] == [[1.08], [1.03]]


def test_a_series_starts_with_its_first_measurement() -> None:
    """A series starts with its first measurement, not with the collection."""
    reader = InMemoryMetricReader()
    record = make_instruments(make_provider(RecorderMeterProvider, [reader]))["histogram"]
    before = time.time_ns()
    record(1)
    after = time.time_ns()
    (point,) = points_of(reader)["histogram"]
    assert before <= point.start_time_unix_nano <= after


def test_the_same_registration_is_the_same_instrument() -> None:
    """The same registration gives the same instrument, under the SDK's rules of names; so do meters."""
    provider = make_provider(RecorderMeterProvider, [InMemoryMetricReader()])
    meter = provider.get_meter(OWN)
    assert provider.get_meter(OWN) is meter
    counter = meter.create_counter("Requests", "1", "requests")
    assert meter.create_counter("requests", "1", "requests") is counter
    assert isinstance(counter, metrics.Counter)
    assert (counter.name, counter.unit, counter.description) == ("requests", "1", "requests")  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="Expected ASCII string"):
        meter.create_counter("not a name")


def test_a_conflicting_registration_is_the_sdks_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A histogram with other boundaries is the first one, with a warning; one with another unit is another one."""
    meter = make_provider(RecorderMeterProvider, [InMemoryMetricReader()]).get_meter(OWN)
    histogram = meter.create_histogram("h", "s", explicit_bucket_boundaries_advisory=[1])
    assert meter.create_histogram("h", "ms") is not histogram
    assert meter.create_histogram("h", "s", explicit_bucket_boundaries_advisory=[2]) is histogram
    assert "has been created already with a different advisory" in caplog.text


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, 10**400])
def test_invalid_amounts_are_the_sdks_to_refuse(amount: float, caplog: pytest.LogCaptureFixture) -> None:
    """Invalid amounts are logged and ignored, or raise, as with the SDK's instruments."""
    ours, theirs = InMemoryMetricReader(), InMemoryMetricReader()
    said: list[list[object]] = []
    for kind, reader in ((RecorderMeterProvider, ours), (MeterProvider, theirs)):
        caplog.clear()
        said.append([])
        for record in make_instruments(make_provider(kind, [reader])).values():
            record(1)
            try:
                record(amount)
            except OverflowError as error:
                said[-1].append(str(error))
        said[-1].extend(caplog.messages)
    assert said[0] == said[1] != []
    assert collected(ours) == collected(theirs)


def test_amounts_that_are_other_numbers_keep_their_order() -> None:
    """An amount that is neither int nor float is added after all that was recorded before."""
    reader = InMemoryMetricReader()
    set_ = make_instruments(make_provider(RecorderMeterProvider, [reader]))["gauge"]
    for amount in (1, Decimal(2)):
        set_(amount)
    (point,) = points_of(reader)["gauge"]
    assert point.value == Decimal(2)


def test_attributes_that_are_no_attributes_are_warned_of_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """Wrong attributes are warned of each time, as by the SDK, and the measurement counts without them."""
    reader = InMemoryMetricReader()
    add: Any = make_instruments(make_provider(RecorderMeterProvider, [reader]))["counter"]
    for _ in range(2):
        add(1, ["a"])
        add(1, {"": 1})
    assert [point.value for point in points_of(reader)["counter"]] == [4]
    assert len(caplog.records) == 4


def test_a_disabled_meter_records_nothing() -> None:
    """A disabled meter records nothing, and keeps what it recorded before."""
    reader = InMemoryMetricReader()
    provider = make_provider(RecorderMeterProvider, [reader])
    add = make_instruments(provider)["counter"]
    enabled = provider._meter_configurator
    for configurator in (enabled, _disable_meter_configurator, enabled):
        provider._set_meter_configurator(meter_configurator=configurator)
        add(1)
        add(2)
    assert [point.value for point in points_of(reader)["counter"]] == [6]


def test_a_filter_of_an_application_decides_on_exemplars() -> None:
    """An application's filter of exemplars gets the attributes, the amount and the context of each measurement."""

    class Large(ExemplarFilter):
        def should_sample(self, value: float, time_unix_nano: int, attributes: Any, context: Context) -> bool:
            return value > 2 and attributes == {"a": ("x",)} and context == SPANS[2]

    reader = InMemoryMetricReader()
    provider = make_provider(RecorderMeterProvider, [reader], exemplar_filter=Large())
    record = make_instruments(provider)["advised"]
    for amount in (1, 3, 2):
        record(amount, {"a": ["x"]}, SPANS[2])
        record(amount + 10, {"a": ["x"]}, SPANS[1])
    (point,) = points_of(reader)["advised"]
    assert [(exemplar.value, exemplar.trace_id) for exemplar in point.exemplars] == [(3, 2)]


def test_observable_instruments_beside() -> None:
    """Observable instruments work beside others, and appear in the same scope."""
    reader = InMemoryMetricReader()
    provider = make_provider(RecorderMeterProvider, [reader])
    make_instruments(provider)["counter"](1)
    meter = provider.get_meter(OWN, "1", "https://schema", {"x": 1})

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        yield Observation(7, {"a": "x"})

    meter.create_observable_counter("seen", [observe])
    meter.create_observable_up_down_counter("up", [observe])
    meter.create_observable_gauge("gauge", [observe])
    points = points_of(reader)
    assert {name: point.value for name, (point,) in points.items()} == {"counter": 1, "seen": 7, "up": 7, "gauge": 7}
    data = reader.get_metrics_data()
    assert data is not None
    assert len(data.resource_metrics[0].scope_metrics) == 1


def test_readers_that_come_and_go() -> None:
    """A reader that is added reads later measurements, and one that is removed reads none."""
    first, second = InMemoryMetricReader(), InMemoryMetricReader()
    provider = make_provider(RecorderMeterProvider, [first])
    add = make_instruments(provider)["counter"]
    add(1)
    add(1)
    provider.add_metric_reader(second)
    add(1)
    assert points_of(first)["counter"][0].value == 3
    assert points_of(second)["counter"][0].value == 1
    provider.remove_metric_reader(first)
    add(1)
    assert first.get_metrics_data() is None
    assert points_of(second)["counter"][0].value == 2


def test_shutdown_exports_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    """The last collection of a periodic reader holds all; later measurements and meters do nothing."""
    exporter = _Exporter()
    provider = make_provider(RecorderMeterProvider, [PeriodicExportingMetricReader(exporter, math.inf)])
    add = make_instruments(provider)["counter"]
    add(1)
    add(2)
    assert provider.force_flush()
    assert exporter.values == [3]
    provider.shutdown()
    add(1)
    assert exporter.values == [3]
    assert isinstance(provider.get_meter(OWN), metrics.NoOpMeter)
    assert "A shutdown `MeterProvider` can not provide a `Meter`" in caplog.text


class _Exporter(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:
        for scope in metrics_data.resource_metrics[0].scope_metrics:
            self.values += [point.value for metric in scope.metrics for point in metric.data.data_points]  # type: ignore[union-attr]
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        pass


def test_threads_lose_no_measurement() -> None:
    """Eight threads record while another collects: all is counted once, also in differences."""
    cumulative, delta = InMemoryMetricReader(), InMemoryMetricReader({Counter: AggregationTemporality.DELTA})
    add = make_instruments(make_provider(RecorderMeterProvider, [cumulative, delta]))["counter"]
    count, differences = 3000, []

    def work(number: int) -> None:
        for index in range(count):
            add(1, {"series": index % 5, "thread": number % 2})

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        differences.append(delta.get_metrics_data())
        cumulative.collect()
    for worker in workers:
        worker.join(PATIENCE)
    differences.append(delta.get_metrics_data())
    assert sum(point.value for point in points_of(cumulative)["counter"]) == 8 * count
    assert sum(_values(differences)) == 8 * count


def _values(collections: Sequence[MetricsData | None]) -> Iterator[float]:
    for data in filter(None, collections):
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                yield point.value  # type: ignore[union-attr]


def test_garbage_collection_records_at_any_time() -> None:
    """Measurements that a garbage collection makes at any time neither block nor are lost."""
    run_python(
        """
        import gc
        from opentelemetry.sdk.metrics import Histogram
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
        from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider

        readers = [
            InMemoryMetricReader(),
            InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()}),
        ]
        meter = RecorderMeterProvider(readers, shutdown_on_exit=False).get_meter("pellucid")
        record = meter.create_histogram("h").record
        ended = 0

        def on_collection(phase, info):
            global ended
            if phase == "start":
                ended += 1
                record(ended % 7, {"finalizer": ended % 300})

        gc.callbacks.append(on_collection)
        gc.set_threshold(1, 1, 1)
        for index in range(1000):
            record(index, {"number": index % 50})
            if index % 100 == 0:
                for reader in readers:
                    reader.collect()
        gc.set_threshold(700, 10, 10)
        gc.callbacks.clear()
        assert ended > 300
        for reader in readers:
            (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
            points = scope.metrics[0].data.data_points
            assert sum(point.count for point in points) == 1000 + ended, (points, ended)
        """
    )


def test_many_series_are_found_by_a_bounded_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """More series than the table holds are counted all the same."""
    monkeypatch.setattr(measurements, "MOST_KNOWN", 3)
    reader = InMemoryMetricReader()
    add = make_instruments(make_provider(RecorderMeterProvider, [reader]))["counter"]
    for number in range(40):
        add(1, {"number": number % 10})
    assert [point.value for point in points_of(reader)["counter"]] == [4] * 10


def test_the_installed_sdk_is_supported() -> None:
    """The trial of the installed SDK finds no reason to use the SDK's provider."""
    assert needs_sdk() is None


def test_another_sdk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial names a private part that the SDK lacks, with its version, and an SDK that counts in another way."""
    monkeypatch.setattr(aggregations, "floor", lambda amount: math.floor(amount) + 1)
    aggregations.index_function.cache_clear()
    assert "counts differently" in (needs_sdk() or "")
    monkeypatch.undo()
    aggregations.index_function.cache_clear()
    monkeypatch.delattr(_ViewInstrumentMatch, "_get_or_create_aggregation")
    assert re.search(r"opentelemetry-sdk \d.*_get_or_create_aggregation", needs_sdk() or "")
