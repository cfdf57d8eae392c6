"""The SDK's exporters over gRPC, with requests of our own encoder.

gRPC takes messages only. Parsing ours takes a tenth of the time of building one from its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan

from pellucid_exporters.otlp.encoding import Encoder


class GRPCSpanExporter(OTLPSpanExporter):
    """Exporter of spans; everything but the encoding is that of the SDK."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._encoder = Encoder()

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        request = ExportTraceServiceRequest()
        request.ParseFromString(self._encoder.spans(data))
        return request


class GRPCLogExporter(OTLPLogExporter):
    """Exporter of log records; everything but the encoding is that of the SDK."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._encoder = Encoder()

    def _translate_data(self, data: Sequence[ReadableLogRecord]) -> ExportLogsServiceRequest:
        request = ExportLogsServiceRequest()
        request.ParseFromString(self._encoder.logs(data))
        return request
