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

    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
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
    records: list[list[LogRecord]] = []
    try:
        for is_read in (False, True):
            if is_read:
                loggers.add_log_record_processor(SimpleLogRecordProcessor(read))
            for line in lines:
                OtlpLogSink(loggers, scope)(line)
            loggers.force_flush()
            batches, outlet.requests = outlet.requests, []  # the queue may have sent some before
            assert is_read or {type(item) for sent in batches for item, _ in sent.batch} <= {LineRecord}
            records.append([record for batch in batches for record in _records_of(batch)])
    finally:
        loggers.shutdown()
    direct, emitted = records
    assert len(emitted) == len(read.get_finished_logs())
    assert direct == emitted


def _records_of(sent: Request) -> list[LogRecord]:
    """Return the records of a request, which the official encoder would have made of them, too."""
    request = ExportLogsServiceRequest.FromString(sent.content)
    assert request == encode_logs([item for item, _ in sent.batch])
    [of_resource] = request.resource_logs
    [of_scope] = of_resource.scope_logs
    for record in of_scope.log_records:
        record.observed_time_unix_nano = 0
    return list(of_scope.log_records)


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
