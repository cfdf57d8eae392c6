"""The SDK's exporters over HTTP, with requests of our own encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from pellucid_exporters.otlp.encoding import Encoder


class HTTPSpanExporter(OTLPSpanExporter):
    """Exporter of spans; everything but the encoding is that of the SDK."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._encoder = Encoder()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans."""
        if not _can_send(self):
            return super().export(spans)
        is_sent = _send(self, len(spans), self._encoder.spans(spans))
        return SpanExportResult.SUCCESS if is_sent else SpanExportResult.FAILURE


class HTTPLogExporter(OTLPLogExporter):
    """Exporter of log records; everything but the encoding is that of the SDK."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._encoder = Encoder()

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Export log records."""
        if not _can_send(self):
            return super().export(batch)
        is_sent = _send(self, len(batch), self._encoder.logs(batch))
        return LogRecordExportResult.SUCCESS if is_sent else LogRecordExportResult.FAILURE


def _can_send(exporter: Any) -> bool:
    """Return whether the exporter is open, and has the parts that `_send` uses, which are not public."""
    return not exporter._shutdown and hasattr(exporter, "_client") and hasattr(exporter, "_metrics")  # noqa: SLF001


def _send(exporter: Any, number: int, request: bytes) -> bool:
    """Send a request with the SDK's client: its address, headers, compression, retries and metrics of its own."""
    with exporter._metrics.export_operation(number) as operation:  # noqa: SLF001
        answer = exporter._client.export(request)  # noqa: SLF001
        if not answer.success:
            operation.error = answer.error
            if answer.status_code is not None:
                operation.error_attrs = {"http.response.status_code": answer.status_code}
    return bool(answer.success)
