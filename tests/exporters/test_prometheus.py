"""`/metrics` as Prometheus reads it."""

from __future__ import annotations

import logging
import math
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from opentelemetry.sdk.metrics import Exemplar, ExemplarReservoir, MeterProvider
from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid_exporters import configure
from pellucid_exporters.options import Prometheus
from pellucid_exporters.prometheus.endpoint import MetricsEndpoint
from pellucid_exporters.prometheus.families import to_classic
from pellucid_exporters.prometheus.naming import to_labels, to_name
from pellucid_exporters.prometheus.reader import PrometheusCollector, PrometheusReader
from support.instruments import ANY_INSTRUMENT
from support.openmetrics import exemplars, fetch, scrape, values
from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Observation
    from prometheus_client import Metric

    from pellucid_exporters.telemetry import Telemetry

DISCOVERY = "pellucid_tool_discovery_duration_seconds"


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """A pipeline that serves `/metrics` on a free port, with no global state."""
    built = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    yield built
    built.shutdown()


def record(telemetry: Telemetry, metric: semconv.Metric, value: float, **labels: str) -> int:
    """Record a value inside a span; return the id of its trace."""
    meter = telemetry.meter_provider.get_meter(semconv.SCOPE)
    histogram = meter.create_histogram(
        metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
    )
    with telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_as_current_span("span") as span:
        histogram.record(value, {key.replace("_", "."): text for key, text in labels.items()})
    return span.get_span_context().trace_id


class HalfReservoir(ExemplarReservoir):
    """A reservoir whose exemplar has a trace and no span."""

    def __init__(self, **_: Any) -> None: ...

    def offer(self, *_: Any) -> None:
        """Ignore a measurement."""

    def collect(self, point_attributes: Any) -> list[Exemplar]:
        """Return the exemplar."""
        return [Exemplar({}, 0.5, 1, None, 5)]


class Bench:
    """A reader without a server, under a clock that stands still."""

    def __init__(self, *views: View, ttl: float = 300.0) -> None:
        self.failures: list[None] = []
        self.reader = PrometheusReader(
            resource=Resource({"service.name": "shop"}),
            exemplar_ttl=ttl,
            on_failure=lambda: self.failures.append(None),
            clock=lambda: self.now,
        )
        self.now = 0.0
        self.provider = MeterProvider(self.reader.all, views=views, shutdown_on_exit=False)
        self.meter = self.provider.get_meter("bench")
        self.registry = CollectorRegistry()
        self.registry.register(PrometheusCollector(self.reader))

    def scrape(self) -> Mapping[str, Metric]:
        """Scrape once and parse strictly."""
        return scrape(self.registry)


@contextmanager
def in_span() -> Iterator[int]:
    """Make a sampled span current; yield the id of its trace."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("span") as span:
        yield span.get_span_context().trace_id


def test_histograms_and_exemplars_in_every_scrape(telemetry: Telemetry) -> None:
    """A histogram has classic buckets in seconds, and its exemplars stay when nothing new is measured."""
    fast = record(telemetry, semconv.DISCOVERY_DURATION, 0.05, pellucid_provider_id="hub")
    slow = record(telemetry, semconv.DISCOVERY_DURATION, 7.0, pellucid_provider_id="hub")
    for _ in range(3):
        family = scrape(telemetry.prometheus_url)[DISCOVERY]
        assert (family.type, family.unit) == ("histogram", "seconds")
        sampled = {bound: exemplar.labels["trace_id"] for bound, exemplar in exemplars(family).items()}
        assert sampled == {"0.05": f"{fast:032x}", "10.0": f"{slow:032x}"}
        found = values(family)
        assert found[f"{DISCOVERY}_count", (("pellucid_provider_id", "hub"),)] == 2
        assert found[f"{DISCOVERY}_sum", (("pellucid_provider_id", "hub"),)] == 7.05
        assert found[f"{DISCOVERY}_bucket", (("le", "0.02"), ("pellucid_provider_id", "hub"))] == 0
        assert found[f"{DISCOVERY}_bucket", (("le", "0.05"), ("pellucid_provider_id", "hub"))] == 1


def test_content_is_negotiated(telemetry: Telemetry) -> None:
    """A client that does not ask for OpenMetrics gets the same series as plain text, without exemplars."""
    record(telemetry, semconv.DISCOVERY_DURATION, 0.05, pellucid_provider_id="hub")
    content_type, text = fetch(telemetry.prometheus_url)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    content_type, text = fetch(telemetry.prometheus_url, "*/*")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert "# {" not in text
    assert DISCOVERY in {family.name for family in parse_text(text)}


def test_target_info_and_no_scope_labels(telemetry: Telemetry) -> None:
    """The resource is a series of its own, and no series has the instrumentation scope as labels."""
    record(telemetry, semconv.DISCOVERY_DURATION, 0.05)
    families = scrape(telemetry.prometheus_url)
    (info,) = families["target"].samples
    assert (info.name, info.value, info.labels["service_name"]) == ("target_info", 1, "shop")
    assert "otel_scope" not in fetch(telemetry.prometheus_url)[1]


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("gen_ai.client.token.usage", "{token}", "histogram", "gen_ai_client_token_usage"),
        ("pellucid.cost", "{USD}", "counter", "pellucid_cost"),
        ("pellucid.tool.discovery.last_success", "s", "gauge", "pellucid_tool_discovery_last_success_seconds"),
        ("requests_total", "", "counter", "requests"),
        ("wait_seconds", "s", "histogram", "wait_seconds"),
        ("load", "1", "gauge", "load_ratio"),
        ("load", "1", "counter", "load"),
        ("flow", "By/s", "gauge", "flow_bytes_per_second"),
        ("tokens", "{token}/min", "gauge", "tokens_per_minute"),
        ("5xx..rate", "", "gauge", "_5xx_rate"),
    ],
)
def test_names(name: str, unit: str, kind: str, expected: str) -> None:
    """Names of metrics follow the compatibility rules of OpenTelemetry and Prometheus."""
    assert to_name(name, unit, kind)[0] == expected


def test_labels_that_become_one_are_joined() -> None:
    """No label is lost when two attributes have one name in Prometheus."""
    assert to_labels({"a.b": "x", "a_b": True, "0": [1]}) == (("_0", "[1]"), ("a_b", "x;true"))


def test_kinds_of_instruments() -> None:
    """Counters, up-down counters and gauges keep their values and types; counters have exemplars."""
    bench = Bench()
    counter = bench.meter.create_counter("jobs", "{job}")
    with in_span() as trace_id:
        counter.add(2, {"k": "v"})
    bench.meter.create_up_down_counter("open").add(-3)
    bench.meter.create_gauge("level").set(1.5)
    families = bench.scrape()
    assert families["jobs"].type == "counter"
    assert values(families["jobs"]) == {("jobs_total", (("k", "v"),)): 2}
    assert exemplars(families["jobs"])[""].labels["trace_id"] == f"{trace_id:032x}"
    assert (families["open"].type, values(families["open"])) == ("gauge", {("open", ()): -3})
    assert (families["level"].type, values(families["level"])) == ("gauge", {("level", ()): 1.5})


def test_exemplars_expire() -> None:
    """An exemplar is repeated for its time to live and no longer."""
    bench = Bench(ttl=300.0)
    histogram = bench.meter.create_histogram("wait", "s")
    with in_span():
        histogram.record(0.5)
    (shown,) = exemplars(bench.scrape()["wait_seconds"]).values()
    assert shown.timestamp is not None
    bench.now = float(shown.timestamp) + 299
    assert exemplars(bench.scrape()["wait_seconds"])
    bench.now += 2
    assert not exemplars(bench.scrape()["wait_seconds"])


def test_an_exemplar_without_a_span_is_left_out() -> None:
    """An exemplar with a trace but no span is left out, without an error."""
    reservoir: Any = HalfReservoir  # which the SDK calls with keywords, other than its type says
    bench = Bench(View(instrument_name="wait", exemplar_reservoir_factory=lambda _: reservoir))
    histogram = bench.meter.create_histogram("wait", "s")
    with in_span():
        histogram.record(0.5)
    family = bench.scrape()["wait_seconds"]
    assert values(family)["wait_seconds_count", ()] == 1
    assert not exemplars(family)
    assert not bench.failures


def test_bounds_are_floats_and_inclusive() -> None:
    """Integer bounds are shown as floats, and a value on a bound counts and shows its exemplar in that bucket."""
    bench = Bench()
    histogram = bench.meter.create_histogram("steps", explicit_bucket_boundaries_advisory=[1, 2, 1048576])
    with in_span():
        histogram.record(2)
    family = bench.scrape()["steps"]
    assert [sample.labels["le"] for sample in family.samples if "le" in sample.labels] == [
        "1.0",
        "2.0",
        "1.048576e+06",
        "+Inf",
    ]
    assert list(exemplars(family)) == ["2.0"]


def test_exponential_histograms_become_classic_ones() -> None:
    """A view that makes histograms exponential costs resolution, not the scrape; exemplars stay."""
    bench = Bench(View(instrument_type=HistogramInstrument, aggregation=ExponentialBucketHistogramAggregation()))
    known = bench.meter.create_histogram(semconv.DISCOVERY_DURATION.name, "s")
    other = bench.meter.create_histogram("other")
    with in_span():
        for value in (0.0, 0.003, 0.4, 7.5, 1000.0):
            known.record(value)
    for value in (0.0, 3.0, 1e300):
        other.record(value)
    families = bench.scrape()
    found = {
        float(sample.labels["le"]): sample.value for sample in families[DISCOVERY].samples if "le" in sample.labels
    }
    assert tuple(found) == (*semconv.DISCOVERY_DURATION.buckets, math.inf)
    assert (found[0.001], found[0.005], found[0.5], found[5.0], found[10.0], found[60.0]) == (1, 2, 3, 3, 4, 4)
    assert found[math.inf] == 5
    assert list(exemplars(families[DISCOVERY])) == ["0.005", "0.5", "10.0", "+Inf"]
    assert values(families["other"])["other_count", ()] == 3
    assert bench.failures == []


def test_every_exponential_bucket_lands_in_a_classic_one() -> None:
    """Buckets of negative values, of zero, and beyond what a float can hold find their place by their upper bound."""
    point = ExponentialHistogramDataPoint(
        attributes={}, start_time_unix_nano=1, time_unix_nano=2, count=15, sum=0.0, scale=0, zero_count=1,
        positive=Buckets(offset=-1, bucket_counts=[2, *[0] * 1500, 4]), negative=Buckets(offset=1, bucket_counts=[8]),
        flags=0, min=-4.0, max=1.0,
    )  # fmt: skip
    assert to_classic(point, [-3.0, -1.0, 0.0, 1.0, math.inf]) == [0, 8, 1, 2, 4]


@given(**ANY_INSTRUMENT)
def test_any_name_and_label_is_valid(attributes: dict[str, Any], name: str, unit: str) -> None:
    """A scrape is valid OpenMetrics with any names of instruments and attributes."""
    bench = Bench()
    bench.meter.create_counter(name, unit, "what\n\ud800 it counts").add(1, attributes)
    families = bench.scrape()
    if bench.failures:  # only a name that belongs to the resource's own series
        assert name.startswith("target")
    else:
        assert len(families) == 2


def test_different_label_sets_are_one_family() -> None:
    """Instruments of one name in several scopes, with whatever labels, are one family; equal series add up."""
    bench = Bench()
    elsewhere = bench.provider.get_meter("elsewhere")
    bench.meter.create_counter("calls").add(1, {"a": "1"})
    elsewhere.create_counter("calls").add(2, {"a": "1"})
    elsewhere.create_counter("calls").add(4, {"a": "1", "b": "2"})
    bench.meter.create_histogram("wait", "s").record(0.1, {"ok": "yes"})
    elsewhere.create_histogram("wait", "s").record(0.1, {"ok": "yes"})
    elsewhere.create_histogram("wait", "s").record(0.1)
    families = bench.scrape()
    assert values(families["calls"]) == {
        ("calls_total", (("a", "1"),)): 3,
        ("calls_total", (("a", "1"), ("b", "2"))): 4,
    }
    found = values(families["wait_seconds"])
    assert (found["wait_seconds_count", (("ok", "yes"),)], found["wait_seconds_count", ()]) == (2, 1)


def test_a_bad_instrument_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """An instrument that cannot be shown is left out, counted at each scrape and logged once; the rest is served."""
    bench = Bench()
    bench.meter.create_counter("fine").add(1)
    bench.meter.create_counter("twin").add(1)
    bench.provider.get_meter("elsewhere").create_gauge("twin").set(1)
    bench.meter.create_gauge("fine.total").set(1)
    bench.meter.create_histogram("bucketed").record(1, {"le": "mine"})
    for scrapes in (1, 2):
        families = bench.scrape()
        assert {"target", "fine", "twin"} == set(families)
        assert values(families["twin"]) == {("twin_total", ()): 1}
        assert len(bench.failures) == 3 * scrapes
    assert sum(logged.name == "pellucid_exporters.prometheus" for logged in caplog.records) == 3


def test_a_raising_callback_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """An observable instrument whose callback raises does not take the others with it."""

    def broken(_: CallbackOptions) -> Iterable[Observation]:
        raise RuntimeError("no reading")

    def senseless(_: CallbackOptions) -> Iterable[Any]:
        return ["not an observation"]

    bench = Bench()
    bench.meter.create_counter("fine").add(1)
    bench.meter.create_observable_gauge("broken", [broken])
    bench.meter.create_observable_gauge("senseless", [senseless])
    with caplog.at_level(logging.CRITICAL):
        assert set(bench.scrape()) == {"target", "fine"}


def test_failures_are_counted_in_the_metrics(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """An instrument that was left out shows in `pellucid_telemetry_errors_total`."""
    telemetry.meter_provider.get_meter("app").create_histogram("bucketed").record(1, {"le": "mine"})
    with caplog.at_level(logging.CRITICAL):
        scrape(telemetry.prometheus_url)
        family = scrape(telemetry.prometheus_url)["pellucid_telemetry_errors"]
    assert values(family) == {("pellucid_telemetry_errors_total", (("pellucid_telemetry_part", "exporter"),)): 1}


def test_a_taken_port_is_refused() -> None:
    """A port in use is an error that names it and says what to do, and leaves nothing behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        registry = CollectorRegistry()
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} failed: .*; stop what uses port {port}, or"):
            configure("shop", prometheus=Prometheus(port=port, registry=registry), set_global=False)
        assert generate_latest(registry) == b""


def test_a_registry_of_the_application() -> None:
    """Metrics join a given registry and leave it at shutdown; without a port nothing is served."""
    registry = CollectorRegistry()
    Gauge("app_level", "Level", registry=registry).set(3)
    telemetry = configure("shop", prometheus=Prometheus(port=None, registry=registry), set_global=False)
    assert telemetry.prometheus_url is None
    assert b"target_info" in generate_latest(registry)
    telemetry.shutdown()
    assert b"target_info" not in generate_latest(registry)
    assert b"app_level 3.0" in generate_latest(registry)


def test_the_port_is_given_back() -> None:
    """A closed endpoint can be opened again on the same port, over IPv6 too."""
    for host in ("127.0.0.1", "::1"):
        reader = PrometheusReader(resource=Resource({}))
        port = free_port()
        MetricsEndpoint(Prometheus(host=host, port=port), reader).close()
        second = MetricsEndpoint(Prometheus(host=host, port=port), reader)
        assert "target" in scrape(second.url)
        second.close()
