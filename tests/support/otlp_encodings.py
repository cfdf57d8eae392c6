"""Comparison of our OTLP encoder with the official one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pellucid_exporters.otlp.delivery import LogOutlet, LogQueue
from pellucid_exporters.otlp.encoding import Encoded, Encoder
from pellucid_exporters.otlp.line_records import LineRecord
from pellucid_exporters.otlp.log_lines import Loggers, OtlpLogSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


def compare_spans(spans: Sequence[ReadableSpan]) -> None:
    """Check that both encoders make the same request of spans; ours twice, as it keeps attributes."""
    encoder = Encoder()
    for _ in range(2):
        assert ExportTraceServiceRequest.FromString(request_of(encoder, spans)) == encode_spans(spans)


def request_of(encoder: Encoder, spans: Iterable[ReadableSpan]) -> bytes:
    """Return a request of spans."""
    return encoder.request([encoder.span(span) for span in spans])


def compare_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Check that log lines become the same request, whether they pass through the SDK or not, by both encoders."""
    read = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    outlet = Received()
    loggers = Loggers(Resource({"service.name": "a"}), LogQueue(outlet, lambda _, __: None))
    scope = InstrumentationScope("pellucid", "1")
    requests: list[ExportLogsServiceRequest] = []
    try:
        for is_read in (False, True):
            if is_read:
                loggers.add_log_record_processor(SimpleLogRecordProcessor(read))
            for line in lines:
                OtlpLogSink(loggers, scope)(line)
            loggers.force_flush()
            batches, outlet.requests = outlet.requests, []  # the queue may have sent some before
            assert is_read or {type(item) for sent in batches for item, _ in sent.batch} <= {LineRecord}
            requests.append(_merged(batches))
    finally:
        loggers.shutdown()
    direct, emitted = requests
    assert len(emitted.resource_logs[0].scope_logs[0].log_records) == len(read.get_finished_logs())
    assert direct == emitted


def _merged(batches: Iterable[Request]) -> ExportLogsServiceRequest:
    """Return requests as one, without times of observation; the official encoder makes the same of each."""
    whole = ExportLogsServiceRequest()
    for content, batch in batches:
        request = ExportLogsServiceRequest.FromString(content)
        assert request == encode_logs([item for item, _ in batch])
        for record in request.resource_logs[0].scope_logs[0].log_records:
            record.observed_time_unix_nano = 0
        if whole.resource_logs:
            assert request.resource_logs[0].resource == whole.resource_logs[0].resource
            assert request.resource_logs[0].scope_logs[0].scope == whole.resource_logs[0].scope_logs[0].scope
            whole.resource_logs[0].scope_logs[0].log_records.extend(request.resource_logs[0].scope_logs[0].log_records)
        else:
            whole = request
    return whole


class Request(NamedTuple):
    """Request, and what it was made of."""

    content: bytes
    batch: Sequence[Encoded]


class Received(LogOutlet):
    """Outlet that keeps requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        super().__init__(lambda **_: self, lambda: None, lambda _, __: None)

    def send(self, content: bytes, batch: Sequence[Encoded]) -> bool:
        """Keep a request."""
        self.requests.append(Request(content, batch))
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """Do nothing: this is its own exporter."""
