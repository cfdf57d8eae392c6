"""The SDK's exporters over HTTP, for items that are encoded already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid_exporters.otlp.encoding import Encoded


class HTTPSpanExporter(OTLPSpanExporter):
    """Exporter of spans; everything but the encoding is that of the SDK."""

    def send(self, request: bytes, batch: Sequence[Encoded]) -> bool:
        """Send a request with these spans, and return whether they were received."""
        return _send(self, request, batch)


class HTTPLogExporter(OTLPLogExporter):
    """Exporter of log records; everything but the encoding is that of the SDK."""

    def send(self, request: bytes, batch: Sequence[Encoded]) -> bool:
        """Send a request with these log records, and return whether they were received."""
        return _send(self, request, batch)


def _send(exporter: Any, request: bytes, batch: Sequence[Encoded]) -> bool:
    """Send a request with the SDK's client: its address, headers, compression, retries and metrics of its own.

    An exporter that is closed, or has no such client, which is not public, encodes the batch itself.
    """
    if exporter._shutdown or not hasattr(exporter, "_client") or not hasattr(exporter, "_metrics"):  # noqa: SLF001
        return bool(exporter.export([item for item, _ in batch]).name == "SUCCESS")
    with exporter._metrics.export_operation(len(batch)) as operation:  # noqa: SLF001
        answer = exporter._client.export(request)  # noqa: SLF001
        if not answer.success:
            operation.error = answer.error
            if answer.status_code is not None:
                operation.error_attrs = {"http.response.status_code": answer.status_code}
    return bool(answer.success)
