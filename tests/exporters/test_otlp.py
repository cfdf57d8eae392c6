"""OTLP as an official receiver reads it."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from pellucid import semconv
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from pellucid_exporters.otlp.batches import MAX_REQUEST
from support.otlp_receiver import LOGS, METRICS, TRACES, Received, Receiver, attributes_of, otlp_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.options import OtlpProtocol
    from pellucid_exporters.telemetry import Telemetry


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> OtlpProtocol:
    """Both protocols."""
    found: OtlpProtocol = request.param
    return found


@pytest.fixture
def receiver(protocol: OtlpProtocol) -> Iterator[Receiver]:
    """A strict collector."""
    with otlp_receiver(protocol) as started:
        yield started


@pytest.fixture
def telemetry(receiver: Receiver, protocol: OtlpProtocol) -> Iterator[Telemetry]:
    """A pipeline to that collector, with no global state."""
    otlp = Otlp(endpoint=receiver.endpoint, protocol=protocol, headers={"X-Tenant": "acme"}, timeout=2.0)
    built = configure("shop", otlp=otlp, resource={"deployment.environment.name": "test"}, set_global=False)
    yield built
    built.shutdown()


def test_the_receiver_is_strict() -> None:
    """The collector of these tests finds fault with unknown fields, bad ids, kinds and times, and orphans."""
    span = Span(name="bad", trace_id=b"\0" * 16, span_id=b"short", parent_span_id=b"12345678", end_time_unix_nano=1)
    span.MergeFromString(b"\xa0\x1f\x01")  # field 500
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.append(span)
    received = Received()
    received.take("traces", request.SerializeToString(), {})
    assert received.faults == [
        "traces.resource_spans.scope_spans.spans: unknown fields",
        "resource without service.name",
        *(f"span 'bad': {rule}" for rule in ("trace id", "span id", "kind", "times")),
    ]
    assert received.unresolved_parents() == ["bad"]


def test_spans(telemetry: Telemetry, receiver: Receiver) -> None:
    """Spans arrive complete: ids, parents, kinds, attributes, events, links, status."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    with tracer.start_as_current_span("invoke_agent shop", attributes={semconv.RUN_ID: "r1"}) as run:
        link = Link(run.get_span_context(), {"why": "joined"})
        with tracer.start_as_current_span("chat m", kind=SpanKind.CLIENT, links=[link]) as chat:
            chat.set_attribute(semconv.RESPONSE_FINISH_REASONS, ["stop"])
            chat.add_event("retried", {semconv.ATTEMPT: 1})
            chat.set_status(Status(StatusCode.ERROR, "no answer"))
    assert telemetry.flush()
    assert receiver.faults == []
    assert receiver.unresolved_parents() == []
    by_name = {span.name: span for span in receiver.spans}
    run_sent, chat_sent = by_name["invoke_agent shop"], by_name["chat m"]
    assert not run_sent.parent_span_id
    assert chat_sent.parent_span_id == run_sent.span_id
    assert (run_sent.kind, chat_sent.kind) == (1, 3)
    assert attributes_of(run_sent) == {semconv.RUN_ID: "r1"}
    assert attributes_of(chat_sent) == {semconv.RESPONSE_FINISH_REASONS: ["stop"]}
    assert [event.name for event in chat_sent.events] == ["retried"]
    assert chat_sent.links[0].span_id == run_sent.span_id
    assert (chat_sent.status.code, chat_sent.status.message) == (2, "no answer")


def test_resource_and_headers(telemetry: Telemetry, receiver: Receiver) -> None:
    """Each request says who sends it and carries the headers that were asked for."""
    telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("run").end()
    assert telemetry.flush()
    assert receiver.headers["x-tenant"] == "acme"
    assert receiver.resources[0]["service.name"] == "shop"
    assert receiver.resources[0]["deployment.environment.name"] == "test"


def test_exponential_histograms_with_exemplars(telemetry: Telemetry, receiver: Receiver) -> None:
    """A histogram leaves as an exponential one, and its exemplar points to the span that was measured."""
    metric = semconv.DISCOVERY_DURATION
    meter = telemetry.meter_provider.get_meter(semconv.SCOPE)
    histogram = meter.create_histogram(
        metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
    )
    with telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_as_current_span("discover_tools hub") as span:
        histogram.record(0.25, {semconv.PROVIDER_ID: "hub"})
    histogram.record(4.0, {semconv.PROVIDER_ID: "hub"})
    assert telemetry.flush()
    assert receiver.faults == []
    (sent,) = [found for found in receiver.metrics if found.name == metric.name]
    assert (sent.unit, sent.WhichOneof("data")) == ("s", "exponential_histogram")
    (point,) = sent.exponential_histogram.data_points
    assert (point.count, point.sum) == (2, 4.25)
    (exemplar,) = point.exemplars
    assert exemplar.as_double == 0.25
    assert int.from_bytes(exemplar.trace_id) == span.get_span_context().trace_id
    assert int.from_bytes(exemplar.span_id) == span.get_span_context().span_id


@pytest.mark.parametrize("recorder", ["fast", "sdk"])
def test_exemplars_are_few_and_one_is_the_slowest(receiver: Receiver, protocol: OtlpProtocol, recorder: Any) -> None:
    """Of many measurements the largest is an exemplar of each export, with three others, in the order of time."""
    otlp = Otlp(endpoint=receiver.endpoint, protocol=protocol)
    telemetry = configure("shop", otlp=otlp, recorder=recorder, set_global=False)
    meter = telemetry.meter_provider.get_meter(semconv.SCOPE)
    histogram = meter.create_histogram("wait", "s")
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    traces = {}
    for export in (1, 2):
        for number in range(500):
            with tracer.start_as_current_span("wait") as span:
                value = 1000.0 * export if number == 77 else 1 + number / 1000
                histogram.record(value)
                traces[value] = span.get_span_context().trace_id
        assert telemetry.flush()
    telemetry.shutdown()
    points = [metric.exponential_histogram.data_points[0] for metric in receiver.metrics if metric.name == "wait"]
    assert [max(each.as_double for each in point.exemplars) for point in points[:2]] == [1000.0, 2000.0]
    for point in points[:2]:
        assert len(point.exemplars) == 4
        assert sorted(each.time_unix_nano for each in point.exemplars) == [e.time_unix_nano for e in point.exemplars]
        [slowest] = [each for each in point.exemplars if each.as_double >= 1000]
        assert int.from_bytes(slowest.trace_id) == traces[slowest.as_double]


@pytest.mark.parametrize("recorder", ["fast", "sdk"])
def test_histograms_of_one_name_in_two_scopes_are_no_conflict(recorder: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Two libraries may measure under one name, such as `http.server.request.duration`: nothing is logged of it."""
    with otlp_receiver("http/protobuf") as receiver:
        otlp, prometheus = Otlp(endpoint=receiver.endpoint), Prometheus(port=0)
        telemetry = configure("shop", otlp=otlp, prometheus=prometheus, recorder=recorder, set_global=False)
        for scope in ("library", "another"):
            telemetry.meter_provider.get_meter(scope).create_histogram("wait", "s").record(1.0)
        assert telemetry.flush()
        telemetry.shutdown()
        assert len([metric for metric in receiver.metrics if metric.name == "wait"]) >= 2
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("recorder", ["fast", "sdk"])
def test_an_exemplar_does_not_keep_its_span_alive(recorder: Any) -> None:
    """Spans with all of their content are free when they have ended, not at the next export."""
    with otlp_receiver("http/protobuf") as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, traces=False)
        telemetry = configure("shop", otlp=otlp, recorder=recorder, set_global=False)
        histogram = telemetry.meter_provider.get_meter(semconv.SCOPE).create_histogram("wait", "s")
        with telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_as_current_span("wait") as span:
            histogram.record(1.0)
        ended = weakref.ref(span)
        del span
        gc.collect()
        assert ended() is None
        telemetry.shutdown()


def test_logs(telemetry: Telemetry, receiver: Receiver) -> None:
    """A log line becomes a record of its span, with severity, body and the other fields as attributes."""
    now = time.time_ns()
    line = {
        "event": "tools.discovery_failed",
        "level": "error",
        "timestamp": now,
        "trace_id": f"{0xABC:032x}",
        "span_id": f"{0xDEF:016x}",
        "provider_id": "hub",
        "tool_count": 3,
        "nothing": None,
        "tools": ["a", "b"],
    }
    (sink,) = telemetry.log_sinks
    sink(line)
    sink({"event": "bare", "level": "odd", "error": ValueError("x")})
    assert telemetry.flush()
    assert receiver.faults == []
    record, bare = sorted(receiver.logs, key=lambda found: found.body.string_value, reverse=True)
    assert record.event_name == record.body.string_value == "tools.discovery_failed"
    assert (record.severity_text, record.severity_number) == ("error", 17)
    assert record.time_unix_nano == now
    assert (int.from_bytes(record.trace_id), int.from_bytes(record.span_id)) == (0xABC, 0xDEF)
    assert attributes_of(record) == {"provider_id": "hub", "tool_count": 3, "tools": ["a", "b"]}
    assert (bare.trace_id, bare.severity_number, attributes_of(bare)) == (b"", 0, {"error": "x"})


GRPC_LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize("letter", ["x", "é", "🦊"])
def test_big_items_leave_in_bounded_requests(telemetry: Telemetry, receiver: Receiver, letter: str) -> None:
    """Spans and log records with much content are split over requests that receivers accept, and all arrive."""
    content = letter * (200_000 // len(letter.encode()))
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    for number in range(40):
        span = tracer.start_span(f"chat {number}", attributes={semconv.INPUT: content})
        span.add_event("said", {"text": content})
        span.end()
        telemetry.log_sinks[0]({"event": f"line {number}", "level": "info", "error": content})
    assert telemetry.flush(20.0)
    assert receiver.faults == []
    assert len({span.name for span in receiver.spans}) == len(receiver.logs) == 40
    assert max(receiver.sizes) < GRPC_LIMIT
    assert len(receiver.sizes) < 20


def test_many_series_leave_in_bounded_requests(telemetry: Telemetry, receiver: Receiver) -> None:
    """Two thousand histograms, each with its exemplars, are split over requests that receivers accept."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    histogram = telemetry.meter_provider.get_meter("application").create_histogram("waits", unit="s")
    for number in range(1900):
        with tracer.start_as_current_span("wait"):
            for power in range(20):
                histogram.record(1.7**power, {"route": f"/a/rather/long/path/to/a/resource/{number}"})
    assert telemetry.flush(30.0)
    assert max(receiver.sizes) < GRPC_LIMIT
    points = [
        point
        for metric in receiver.metrics
        if metric.name == "waits"
        for point in metric.exponential_histogram.data_points
    ]
    assert len({point.attributes[0].value.string_value for point in points}) == 1900


def test_one_item_that_nobody_takes_costs_only_itself(
    telemetry: Telemetry, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign span that is too big alone is left out, counted and told once; those around it arrive."""
    tracer = telemetry.tracer_provider.get_tracer("application")
    for name in ("before", "big", "between", "big", "after"):
        tracer.start_span(name, attributes={"content": "é" * MAX_REQUEST} if name == "big" else {}).end()
    assert not telemetry.flush(20.0)
    assert [span.name for span in receiver.spans] == ["before", "between", "after"]
    assert telemetry.flush(20.0)
    assert dropped(receiver) == {("span", "too_large"): 2}
    assert len([record for record in caplog.records if "left out" in record.getMessage()]) == 1


def dropped(receiver: Receiver) -> dict[tuple[str, str], int]:
    """Return what the latest metrics say was dropped, by part and reason."""
    sent = [found for found in receiver.metrics if found.name == semconv.TELEMETRY_DROPPED.name]
    labels = semconv.TELEMETRY_PART, semconv.TELEMETRY_REASON
    found = [(attributes_of(point), point.as_int) for point in (sent[-1].sum.data_points if sent else [])]
    return {(attributes[labels[0]], attributes[labels[1]]): count for attributes, count in found}


PARTS = {TRACES: "span", METRICS: "metric", LOGS: "log"}


@pytest.mark.parametrize("signal", PARTS)
def test_items_that_a_collector_rejects_are_counted(
    telemetry: Telemetry, receiver: Receiver, signal: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A partial success counts what it rejects, is logged once with its message, and flush() is not all well."""
    tracer, count = telemetry.tracer_provider.get_tracer("app"), telemetry.meter_provider.get_meter("app")
    for rejected in (3, 2):
        receiver.rejecting[signal] = rejected, "too old\nFATAL"
        tracer.start_span("s").end()
        count.create_counter("c").add(1)
        telemetry.log_sinks[0]({"event": "line", "level": "info"})
        assert not telemetry.flush(20.0)
    receiver.rejecting[signal] = 0, "deprecated field"
    tracer.start_span("s").end()
    telemetry.log_sinks[0]({"event": "line", "level": "info"})
    assert telemetry.flush(20.0)
    assert telemetry.flush(20.0)
    assert dropped(receiver) == {(PARTS[signal], "rejected"): 5}
    (refusal,) = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    assert "too old\\nFATAL" in refusal
    assert len([record for record in caplog.records if "deprecated field" in record.getMessage()]) == 1


def test_what_is_lost_is_counted(telemetry: Telemetry, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Sent and dropped add up to what there was, for spans and for log records."""
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    caplog.set_level(logging.CRITICAL)
    for receiver.refusing in (False, True, False):
        for number in range(700):
            tracer.start_span(f"span {number}").end()
            telemetry.log_sinks[0]({"event": "line", "level": "info"})
        telemetry.flush(20.0)
    assert telemetry.flush(20.0)
    lost = dropped(receiver)
    assert set(lost) == {("span", "export_failed"), ("log", "export_failed")}
    counts = len(receiver.spans) + lost["span", "export_failed"], len(receiver.logs) + lost["log", "export_failed"]
    assert counts == (2100, 2100)


def test_a_refusing_collector_is_counted(
    telemetry: Telemetry, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed export makes flush() say so and is counted in `pellucid.telemetry.errors`."""
    receiver.refusing = True
    telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("lost").end()
    with caplog.at_level(logging.CRITICAL):
        assert not telemetry.flush()
    receiver.refusing = False
    assert telemetry.flush()
    sent = [found for found in receiver.metrics if found.name == semconv.TELEMETRY_ERRORS.name]
    (point,) = sent[-1].sum.data_points
    assert attributes_of(point) == {semconv.TELEMETRY_PART: "exporter"}
    assert point.as_int >= 1


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_signals_can_be_left_out(receiver: Receiver, protocol: OtlpProtocol, signal: str) -> None:
    """Each signal is sent only if it is wanted."""
    wanted: dict[str, Any] = {name: name == signal for name in ("traces", "metrics", "logs")}
    telemetry = configure("shop", otlp=Otlp(endpoint=receiver.endpoint, protocol=protocol, **wanted), set_global=False)
    try:
        telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("run").end()
        telemetry.meter_provider.get_meter(semconv.SCOPE).create_counter("test.count").add(1)
        for sink in telemetry.log_sinks:
            sink({"event": "line", "level": "info"})
        assert telemetry.flush()
        assert {found for found, _ in receiver.requests} == {signal}
    finally:
        telemetry.shutdown()


def test_a_number_beyond_64_bits_loses_its_data_point_only(telemetry: Telemetry, receiver: Receiver) -> None:
    """Other metrics of the same export arrive, and so do the other points of the metric."""
    meter = telemetry.meter_provider.get_meter("app")
    meter.create_counter("small").add(1)
    counter = meter.create_counter("mixed")
    counter.add(1, {"size": "small"})
    for _ in range(3):
        counter.add(2**62, {"size": "large"})
    meter.create_histogram("sizes").record(2**64)
    assert telemetry.flush()
    found = {metric.name: metric for metric in receiver.metrics}
    assert found.keys() >= {"small", "mixed", "sizes"}
    assert [attributes_of(point)["size"] for point in found["mixed"].sum.data_points] == ["small"]
    assert not receiver.faults
