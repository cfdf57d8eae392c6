"""The SDK's exporters over gRPC, for requests that are encoded already.

gRPC takes messages only. Parsing ours takes a tenth of the time of building one from its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pellucid_exporters.otlp.answers import ReadsAnswers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid_exporters.otlp.encoding import Encoded


class GRPCSpanExporter(ReadsAnswers, OTLPSpanExporter):
    """Exporter of spans; everything but the encoding is that of the SDK."""

    def send(self, request: bytes, batch: Sequence[Encoded]) -> bool:
        """Send a request with these spans, and return whether they were received."""
        return _send(self, ExportTraceServiceRequest.FromString(request))

    def _translate_data(self, data: Any) -> ExportTraceServiceRequest:
        return data if isinstance(data, ExportTraceServiceRequest) else super()._translate_data(data)

    def _count_data(self, data: Any) -> int:
        if not isinstance(data, ExportTraceServiceRequest):
            return len(data)
        return sum(len(scope.spans) for resource in data.resource_spans for scope in resource.scope_spans)


class GRPCMetricExporter(ReadsAnswers, OTLPMetricExporter):
    """The SDK's exporter of metrics."""


class GRPCLogExporter(ReadsAnswers, OTLPLogExporter):
    """Exporter of log records; everything but the encoding is that of the SDK."""

    def send(self, request: bytes, batch: Sequence[Encoded]) -> bool:
        """Send a request with these log records, and return whether they were received."""
        return _send(self, ExportLogsServiceRequest.FromString(request))

    def _translate_data(self, data: Any) -> ExportLogsServiceRequest:
        return data if isinstance(data, ExportLogsServiceRequest) else super()._translate_data(data)

    def _count_data(self, data: Any) -> int:
        if not isinstance(data, ExportLogsServiceRequest):
            return len(data)
        return sum(len(scope.log_records) for resource in data.resource_logs for scope in resource.scope_logs)


def _send(exporter: Any, request: Any) -> bool:
    """Send a request with the SDK's client: its address, credentials, compression and retries."""
    return bool(exporter._export(request).name == "SUCCESS")  # noqa: SLF001  (what `export` calls)
