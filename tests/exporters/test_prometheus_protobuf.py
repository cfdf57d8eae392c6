"""`/metrics` in protobuf, read by an independent decoder."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, UnknownMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import BucketSpan, Exemplar, NativeHistogram, Sample

from pellucid_exporters.prometheus.endpoint import MetricsApp
from pellucid_exporters.prometheus.reader import PrometheusReader
from support.instruments import ANY_INSTRUMENT
from support.metrics_proto import (
    COUNTER,
    GAUGE,
    GAUGE_HISTOGRAM,
    HISTOGRAM,
    PROTOBUF,
    SUMMARY,
    UNTYPED,
    decode,
    labels_of,
    native_buckets,
    series,
)
from support.openmetrics import OPENMETRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Bench:
    """A reader with its app, without a server, under a clock that stands still."""

    def __init__(self, *views: View, registry: CollectorRegistry | None = None, **options: Any) -> None:
        self.failures: list[None] = []
        self.reader = PrometheusReader(
            resource=Resource({"service.name": "shop"}), on_failure=lambda: self.failures.append(None), **options
        )
        self.provider = MeterProvider(self.reader.all, views=views, shutdown_on_exit=False)
        self.meter = self.provider.get_meter("bench")
        self.tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
        self.app = MetricsApp(self.reader, registry=registry)

    def scrape(self, accept: str = PROTOBUF) -> Mapping[str, Any]:
        """Scrape once by protobuf and decode strictly."""
        answer = self.app.answer("GET", "", {"accept": accept})
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith(
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
        )
        return decode(answer.body)

    def text(self) -> str:
        """Scrape once by OpenMetrics."""
        return self.app.answer("GET", "", {"accept": OPENMETRICS}).body.decode()

    def record(self, histogram: Any, value: float, **labels: str) -> str:
        """Record a value inside a span; return its trace id."""
        with self.tracer.start_as_current_span("span") as span:
            histogram.record(value, labels)
        return f"{span.get_span_context().trace_id:032x}"


def test_each_kind_of_instrument() -> None:
    """Counters, gauges and the resource are there with type, unit, labels, exemplar and time of creation."""
    bench = Bench()
    with bench.tracer.start_as_current_span("span") as span:
        bench.meter.create_counter("jobs", "By", "What it did").add(2, {"k": "v"})
    bench.meter.create_up_down_counter("open").add(-3)
    bench.meter.create_gauge("level").set(1.5)
    families = bench.scrape()
    assert set(families) == {"target_info", "jobs_bytes_total", "open", "level"}
    jobs = families["jobs_bytes_total"]
    assert (jobs.type, jobs.help, labels_of(jobs.metric[0])) == (COUNTER, "What it did", {"k": "v"})
    counter = jobs.metric[0].counter
    assert counter.value == 2
    assert counter.created_timestamp.seconds > 1_700_000_000
    context = span.get_span_context()
    assert labels_of(counter.exemplar) == {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
    }
    assert (families["open"].type, families["open"].metric[0].gauge.value) == (GAUGE, -3)
    assert families["level"].metric[0].gauge.value == 1.5
    assert (families["target_info"].type, families["target_info"].metric[0].gauge.value) == (GAUGE, 1)
    assert labels_of(families["target_info"].metric[0]) == {"service_name": "shop"}


def test_a_histogram_has_classic_and_native_buckets() -> None:
    """Both kinds of buckets hold the same measurements from the first on, with the exemplars of each bucket."""
    bench = Bench()
    histogram = bench.meter.create_histogram("wait", "s", explicit_bucket_boundaries_advisory=[0.1, 1.0])
    histogram.record(0.0, {"hub": "a"})
    fast = bench.record(histogram, 0.05, hub="a")
    slow = bench.record(histogram, 7.0, hub="a")
    for _ in range(2):  # nothing changes, and nothing is lost, when nothing new is measured
        family = bench.scrape()["wait_seconds"]
        found = series(family, hub="a").histogram
        assert (family.type, family.unit) == (HISTOGRAM, "seconds")
        assert (found.sample_count, found.sample_sum) == (3, 7.05)
        assert [(each.upper_bound, each.cumulative_count) for each in found.bucket] == [(0.1, 2), (1, 2), (math.inf, 3)]
        assert [labels_of(each.exemplar).get("trace_id") for each in found.bucket] == [fast, None, slow]
        assert [labels_of(each)["trace_id"] for each in found.exemplars] == [fast, slow]
        assert [each.value for each in found.exemplars] == [0.05, 7.0]
        assert all(each.timestamp.seconds for each in found.exemplars)
        assert found.created_timestamp.seconds > 1_700_000_000
        assert (found.zero_count, sum(native_buckets(found).values())) == (1, 2)


@given(values=st.lists(st.floats(min_value=0, max_value=1e300), min_size=1, max_size=300), data=st.data())
def test_every_value_is_in_its_native_bucket(values: list[float], data: st.DataObject) -> None:
    """Whatever is measured, each native bucket holds exactly the values between its bounds."""
    bench = Bench()
    histogram = bench.meter.create_histogram("wait")
    for value in values:
        histogram.record(value)
    found = bench.scrape()["wait"].metric[0].histogram
    assert -4 <= found.schema <= 8
    expected: dict[int, int] = {}
    buckets = native_buckets(found)
    upper_bounds = sorted(buckets)
    bounds = [_bound(index, found.schema) for index in upper_bounds]
    for value in values:
        # Values within an ulp of a bound, and subnormal ones, may be on either side of it.
        if value > 2.3e-308:
            index = upper_bounds[min(bisect_left(bounds, value * (1 - 1e-9)), len(bounds) - 1)]
            lower = _bound(index - 1, found.schema)
            assert lower * (1 - 1e-9) <= value <= _bound(index, found.schema) * (1 + 1e-9)
            expected[index] = expected.get(index, 0) + 1
    assert all(count > 0 for count in buckets.values())
    assert sum(buckets.values()) + found.zero_count == found.sample_count == len(values)


def _bound(index: int, schema: int) -> float:
    try:
        return float(2.0 ** (index * 2.0**-schema))
    except OverflowError:
        return math.inf


def test_native_quantiles_are_close() -> None:
    """The median of a native histogram is within 5 % where classic buckets only know "between 0.1 and 1"."""
    bench = Bench()
    histogram = bench.meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[0.1, 1.0])
    for step in range(1, 1001):
        histogram.record(step / 1000)
    found = bench.scrape()["wait"].metric[0].histogram
    seen = 0
    for index, count in sorted(native_buckets(found).items()):
        seen += count
        if seen >= 500:
            assert _bound(index - 1, found.schema) * 0.99 <= 0.5 <= _bound(index, found.schema) * 1.01
            assert _bound(index, found.schema) / _bound(index - 1, found.schema) < 1.1
            break


def test_histograms_of_two_scopes_add_up() -> None:
    """Series of one name and labels are one, in native buckets too, even if their scales differ."""
    bench = Bench()
    bench.meter.create_histogram("wait").record(1.0)
    wide = bench.provider.get_meter("elsewhere").create_histogram("wait")
    wide.record(1.0)
    wide.record(1e9)
    found = bench.scrape()["wait"].metric[0].histogram
    assert found.sample_count == found.bucket[-1].cumulative_count == 3
    assert sorted(native_buckets(found).values()) == [1, 2]


def test_classic_buckets_can_be_switched_off() -> None:
    """Protobuf has the native histogram with its exemplars; texts have the count, the sum and the latest exemplar."""
    bench = Bench(classic=False)
    assert list(bench.reader.all) == [bench.reader]
    histogram = bench.meter.create_histogram("wait")
    traces = [bench.record(histogram, value) for value in (0.02, 0.3, 7.0)]
    for _ in range(2):  # exemplars stay, as with classic buckets
        found = series(bench.scrape()["wait"]).histogram
        assert (found.sample_count, found.sample_sum, list(found.bucket)) == (3, 7.32, [])
        assert sum(native_buckets(found).values()) == 3
        assert [labels_of(each)["trace_id"] for each in found.exemplars] == traces
        assert found.created_timestamp.seconds > 1_700_000_000
    lines = bench.text().splitlines()
    assert [line for line in lines if line.startswith(("wait_count", "wait_sum"))] == [
        "wait_count 3.0",
        "wait_sum 7.32",
    ]
    [bucket] = [line for line in lines if line.startswith("wait_bucket")]
    assert bucket.startswith('wait_bucket{le="+Inf"} 3.0 # {')
    assert traces[-1] in bucket


def test_each_scrape_has_what_was_recorded_since() -> None:
    """Of series that change and of ones that do not; as an answer to a request for one name, which encodes anew."""
    bench = Bench(classic=False)
    histogram = bench.meter.create_histogram("wait")
    for number in range(6):
        histogram.record(number / 7, {"who": "changes"})
        if number in (0, 3):
            bench.record(histogram, 0.3, who="rests")
        found = bench.scrape()["wait"]
        [named] = decode(bench.app.answer("GET", "name[]=wait&name[]=wait_created", {"accept": PROTOBUF}).body).values()
        assert sorted(map(str, found.metric)) == sorted(map(str, named.metric))
        counts = {labels_of(each)["who"]: each.histogram.sample_count for each in found.metric}
        assert counts == {"changes": number + 1, "rests": 1 + (number >= 3)}


def test_native_histograms_whose_labels_become_equal_add_up() -> None:
    """Prometheus refuses two series with the same labels."""
    bench = Bench(classic=False)
    histogram = bench.meter.create_histogram("wait")
    for name in ("a.b", "a_b"):
        histogram.record(0.3, {name: "x"})
    for _ in range(2):
        assert series(bench.scrape()["wait"]).histogram.sample_count == 2


def test_some_histograms_may_keep_their_classic_buckets() -> None:
    """Those that are named have both; others have native buckets only."""
    bench = Bench(classic={"kept"})
    for name in ("kept", "other"):
        bench.record(bench.meter.create_histogram(name), 0.3)
    found = bench.scrape()
    kept, other = series(found["kept"]).histogram, series(found["other"]).histogram
    assert (len(kept.bucket), len(other.bucket)) == (16, 0)
    assert native_buckets(kept) == native_buckets(other)
    assert len(other.exemplars) == 1
    assert (bench.text().count("kept_bucket"), bench.text().count("other_bucket")) == (16, 1)


def test_a_view_of_the_application_may_keep_classic_buckets() -> None:
    """There is no native histogram then, so they are shown."""
    view = View(instrument_name="wait", aggregation=ExplicitBucketHistogramAggregation([1.0]))
    bench = Bench(view, classic=False)
    bench.record(bench.meter.create_histogram("wait"), 0.3)
    assert len(series(bench.scrape()["wait"]).histogram.bucket) == 2


def test_native_histograms_of_two_scopes_add_up() -> None:
    """They are one series, also without classic buckets."""
    bench = Bench(classic=False)
    for scope in ("one", "other"):
        bench.record(bench.provider.get_meter(scope).create_histogram("wait"), 0.3)
    assert series(bench.scrape()["wait"]).histogram.sample_count == 2


def test_native_histograms_can_be_switched_off() -> None:
    """Without the second reader the answer in protobuf has classic buckets, with their exemplars."""
    bench = Bench(native_histograms=False)
    trace_id = bench.record(bench.meter.create_histogram("wait"), 3.0)
    assert list(bench.reader.all) == [bench.reader]
    found = bench.scrape()["wait"].metric[0].histogram
    assert (found.sample_count, found.sample_sum, len(found.positive_span)) == (1, 3.0, 0)
    assert not found.HasField("schema")
    assert [labels_of(each.exemplar)["trace_id"] for each in found.bucket if each.HasField("exemplar")] == [trace_id]


@pytest.mark.parametrize(
    "aggregation", [ExponentialBucketHistogramAggregation(max_size=20), ExplicitBucketHistogramAggregation((1.0, 2.0))]
)
def test_views_of_the_application(aggregation: Any) -> None:
    """A view that fixes the aggregation of all readers leaves counts right, in whatever buckets it allows."""
    bench = Bench(View(instrument_type=HistogramInstrument, aggregation=aggregation))
    histogram = bench.meter.create_histogram("wait")
    for value in (0.5, 1.5, 1.6, 9.0):
        histogram.record(value)
    found = bench.scrape()["wait"].metric[0].histogram
    assert found.sample_count == found.bucket[-1].cumulative_count == 4
    if isinstance(aggregation, ExponentialBucketHistogramAggregation):
        assert sum(native_buckets(found).values()) == 4
    assert bench.failures == []


def test_a_scale_that_prometheus_lacks_costs_the_native_buckets_only(caplog: pytest.LogCaptureFixture) -> None:
    """A histogram with too few buckets for its values is shown with classic ones, and the failure is counted."""
    bench = Bench(
        View(instrument_type=HistogramInstrument, aggregation=ExponentialBucketHistogramAggregation(max_size=2))
    )
    histogram = bench.meter.create_histogram("wait")
    for value in (1e-300, 1.0, 1e300):
        histogram.record(value)
    found = bench.scrape()["wait"].metric[0].histogram
    assert (found.sample_count, len(found.positive_span)) == (3, 0)
    assert bench.failures == [None]
    assert "scale" in caplog.text


def test_metrics_of_the_application_are_there_too() -> None:
    """Each type that `prometheus_client` has is in the answer, with the application's exemplars and natives."""
    registry = CollectorRegistry()
    Counter("app_jobs", "Jobs", ["k"], registry=registry).labels("v").inc(3, {"trace_id": "abc"})
    Gauge("app_level", "Level", registry=registry).set(-1.5)
    Histogram("app_wait", "Wait", buckets=(1.0, 2.0), registry=registry).observe(1.5, {"trace_id": "def"})
    Summary("app_size", "Size", registry=registry).observe(7)
    Info("app_build", "Build", registry=registry).info({"version": "1"})
    Enum("app_state", "State", states=["up", "down"], registry=registry).state("down")
    registry.register(_Odd())
    families = Bench(registry=registry).scrape()
    jobs = families["app_jobs_total"].metric[0]
    assert (jobs.counter.value, labels_of(jobs), labels_of(jobs.counter.exemplar)) == (
        3,
        {"k": "v"},
        {"trace_id": "abc"},
    )
    assert jobs.counter.HasField("created_timestamp")
    assert families["app_level"].metric[0].gauge.value == -1.5
    wait = families["app_wait"].metric[0].histogram
    assert (wait.sample_count, wait.sample_sum) == (1, 1.5)
    assert [(each.upper_bound, each.cumulative_count) for each in wait.bucket] == [(1, 0), (2, 1), (math.inf, 1)]
    assert labels_of(wait.bucket[1].exemplar) == {"trace_id": "def"}
    assert families["app_size"].type == SUMMARY
    assert (families["app_size"].metric[0].summary.sample_count, families["app_size"].metric[0].summary.sample_sum) == (
        1,
        7,
    )
    assert labels_of(families["app_build_info"].metric[0]) == {"version": "1"}
    assert {labels_of(each)["app_state"]: each.gauge.value for each in families["app_state"].metric} == {
        "up": 0,
        "down": 1,
    }
    # What only custom collectors can give out:
    assert (families["odd_unknown"].type, families["odd_unknown"].metric[0].untyped.value) == (UNTYPED, 4)
    assert families["odd_unknown"].metric[0].timestamp_ms == 1_500
    queue = families["odd_queue"]
    assert (queue.type, queue.metric[0].histogram.sample_count, queue.metric[0].histogram.sample_sum) == (
        GAUGE_HISTOGRAM,
        3,
        9,
    )
    assert families["odd_stray"].metric[0].untyped.value == 5
    native = families["odd_native"].metric[0].histogram
    assert (native.schema, native.sample_count, native_buckets(native)) == (3, 6, {-2: 1, 3: 2, 4: 3})
    assert [labels_of(each) for each in native.exemplars] == [{"trace_id": "x"}]
    quantiles = {each.quantile: each.value for each in families["odd_summary"].metric[0].summary.quantile}
    assert quantiles == {0.5: 1.0, 0.9: 2.0}


class _Odd(Collector):
    def collect(self) -> Iterable[Family]:
        unknown = UnknownMetricFamily("odd_unknown", "Unknown")
        unknown.add_metric([], 4, timestamp=1.5)
        yield unknown
        queue = GaugeHistogramMetricFamily("odd_queue", "Queue")
        queue.add_metric([], [("1.0", 1), ("+Inf", 3)], 9)
        yield queue
        stray = CounterMetricFamily("odd_counter", "Counter", value=1)
        stray.samples.append(Sample("odd_stray", {}, 5))
        yield stray
        native = Family("odd_native", "Native", "histogram")
        spans = [BucketSpan(-2, 1), BucketSpan(4, 2)]
        value = NativeHistogram(
            6, 1.5, 3, 0.0, 0, spans, None, [1, 1, 1], None, [Exemplar({"trace_id": "x"}, 1.0, 2.0)]
        )
        native.samples.append(Sample("odd_native", {}, 0, native_histogram=value))
        yield native
        summary = Family("odd_summary", "Summary", "summary")
        summary.samples += [Sample("odd_summary", {"quantile": q}, v) for q, v in (("0.5", 1.0), ("0.9", 2.0))]
        yield summary


class _Broken(Collector):
    def collect(self) -> Iterable[Family]:
        yield CounterMetricFamily("fine", "Fine", value=1)
        bad = Family("bad", "Bad", "gauge")
        bad.samples.append(Sample("bad", {"k": None}, "three"))  # type: ignore[arg-type, dict-item]  # on purpose
        yield bad
        long = CounterMetricFamily("long", "Long")
        long.add_metric([], 1)
        long.samples[0] = long.samples[0]._replace(exemplar=Exemplar({"trace_id": "x" * 129}, 1.0))
        yield long
        yield CounterMetricFamily("fine", "The same again", value=2)
        yield CounterMetricFamily("target", "What is ours", value=2)
        raise RuntimeError("no more")


@pytest.mark.parametrize("accept", [PROTOBUF, "application/openmetrics-text", "text/plain"])
def test_nothing_of_the_application_fails_a_scrape(accept: str, caplog: pytest.LogCaptureFixture) -> None:
    """A collector that raises, a sample that cannot be written, a name that is taken: each is left out and counted."""
    registry = CollectorRegistry()
    registry.register(_Broken())
    bench = Bench(registry=registry)
    bench.meter.create_counter("ours").add(1)
    with caplog.at_level(logging.CRITICAL):
        body = bench.app.answer("GET", "", {"accept": accept}).body
    if accept == PROTOBUF:
        families = decode(body)
        assert set(families) == {"target_info", "ours_total", "fine_total", "long_total"}
        assert not families["long_total"].metric[0].counter.HasField("exemplar")
    else:
        lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
        names = {line.split("{")[0].split(" ")[0] for line in lines}
        assert names == {"target_info", "ours_total", "fine_total", "long_total"}
        assert "# {" not in body.decode()
    assert len(bench.failures) == 4


def test_names_are_escaped_unless_the_server_takes_them() -> None:
    """A name with other letters is written as it is for those who accept it, and with underscores for the others."""
    registry = CollectorRegistry()
    Gauge("app.level", "Level", ["größe"], registry=registry).labels("x").set(1)
    bench = Bench(registry=registry)
    assert labels_of(bench.scrape()["app_level"].metric[0]) == {"gr__e": "x"}
    asked = PROTOBUF.replace("delimited,", "delimited;escaping=allow-utf-8,")
    assert labels_of(bench.scrape(asked)["app.level"].metric[0]) == {"größe": "x"}
    headers = bench.app.answer("GET", "", {"accept": asked}).headers
    assert headers["Content-Type"].endswith("; escaping=allow-utf-8")


@given(**ANY_INSTRUMENT)
def test_any_name_and_label_can_be_decoded(attributes: dict[str, Any], name: str, unit: str) -> None:
    """Whatever an application names its instruments and attributes, the answer is valid protobuf."""
    bench = Bench()
    bench.meter.create_histogram(name, unit, "what\n\ud800 it measures").record(1, attributes)
    families = bench.scrape()
    if not bench.failures:  # a label `le`, or a name that belongs to the resource's own series
        (found,) = [family for family in families.values() if family.name != "target_info"]
        assert found.metric[0].histogram.sample_count == 1
        assert not found.unit or found.name.endswith(f"_{found.unit}")


def test_exemplars_of_dropped_traces_are_left_out() -> None:
    """An exemplar whose trace a sampler dropped is not shown, neither when it comes in nor after it was shown."""
    dropped: set[int] = set()
    bench = Bench(is_dropped=dropped.__contains__)
    histogram = bench.meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[1.0])
    kept = bench.record(histogram, 0.5)
    gone = bench.record(histogram, 5.0)

    def shown() -> list[str]:
        found = bench.scrape()["wait"].metric[0].histogram
        in_buckets = [labels_of(each.exemplar)["trace_id"] for each in found.bucket if each.HasField("exemplar")]
        assert in_buckets == [labels_of(each)["trace_id"] for each in found.exemplars]
        return in_buckets

    assert shown() == [kept, gone]
    dropped.add(int(gone, 16))
    assert shown() == [kept]
    dropped.add(int(bench.record(histogram, 0.6), 16))
    assert shown() == [kept]
