"""Comparison of our OTLP encoder with the official one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from pellucid_exporters.otlp.encoding import Encoder
from pellucid_exporters.otlp.exporters import OtlpLogSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.trace import ReadableSpan


def compare_spans(spans: Sequence[ReadableSpan]) -> None:
    """Check that both encoders make the same request of spans; ours twice, as it keeps attributes."""
    encoder = Encoder()
    for _ in range(2):
        assert ExportTraceServiceRequest.FromString(encoder.spans(spans)) == encode_spans(spans)


def compare_records(records: Sequence[ReadableLogRecord]) -> None:
    """Check that both encoders make the same request of log records."""
    encoder = Encoder()
    for _ in range(2):
        assert ExportLogsServiceRequest.FromString(encoder.logs(records)) == encode_logs(records)


def records_of(lines: Iterable[Mapping[str, Any]]) -> Sequence[ReadableLogRecord]:
    """Return log records of lines, as they are exported."""
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    sink = OtlpLogSink(provider.get_logger("pellucid", "1"))
    for line in lines:
        sink(line)
    return exporter.get_finished_logs()
