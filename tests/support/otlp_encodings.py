"""Comparison of our OTLP encoder with the official one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pellucid_exporters.otlp.delivery import LogOutlet, LogQueue
from pellucid_exporters.otlp.encoding import Encoder
from pellucid_exporters.otlp.log_lines import Loggers, OtlpLogSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


def compare_spans(spans: Sequence[ReadableSpan]) -> None:
    """Check that both encoders make the same request of spans; ours twice, as it keeps attributes."""
    encoder = Encoder()
    for _ in range(2):
        assert ExportTraceServiceRequest.FromString(encoder.spans(spans)) == encode_spans(spans)


def compare_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Check that log lines become the same request, whether they pass through the SDK or not, by both encoders."""
    read = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    sent = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    outlet = LogOutlet(lambda: sent, lambda: None, lambda _: None)
    loggers = Loggers(Resource({"service.name": "a"}), LogQueue(outlet, lambda _: None))
    scope = InstrumentationScope("pellucid", "1")
    try:
        for is_read in (False, True):
            if is_read:
                loggers.add_log_record_processor(SimpleLogRecordProcessor(read))
            for line in lines:
                OtlpLogSink(loggers, scope)(line)
            loggers.force_flush()
    finally:
        loggers.shutdown()
    records = sent.get_finished_logs()
    direct, emitted = records[: len(records) // 2], records[len(records) // 2 :]
    assert len(emitted) == len(read.get_finished_logs())
    requests = []
    for batch in (direct, emitted):
        request = ExportLogsServiceRequest.FromString(Encoder().logs(batch))
        assert request == encode_logs(batch)
        for record in request.resource_logs[0].scope_logs[0].log_records if batch else ():
            record.observed_time_unix_nano = 0
        requests.append(request)
    assert requests[0] == requests[1]
