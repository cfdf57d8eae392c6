"""OTLP over HTTP or gRPC: spans, metrics with exponential histograms and exemplars, and logs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.util.types import AnyValue

    from pellucid_exporters.options import Otlp, Signal

SEVERITIES: Final[Mapping[str, SeverityNumber]] = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}

_RECORD_FIELDS: Final = frozenset({"event", "level", "timestamp", "trace_id", "span_id"})


def span_exporter(options: Otlp) -> SpanExporter:
    """Return an exporter of spans."""
    if options.protocol_of("traces") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter

        return GrpcSpanExporter(endpoint=options.endpoint, headers=_metadata(options), timeout=options.timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=_url(options, "traces"), headers=options.headers, timeout=options.timeout)


def metric_exporter(options: Otlp) -> MetricExporter:
    """Return an exporter of metrics whose histograms are exponential, unless the environment asks for explicit ones."""
    aggregation: dict[type, Aggregation] | None = None
    if not os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
        aggregation = {Histogram: ExponentialBucketHistogramAggregation()}
    if options.protocol_of("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter

        return GrpcMetricExporter(
            endpoint=options.endpoint,
            headers=_metadata(options),
            timeout=options.timeout,
            preferred_aggregation=aggregation,
        )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(
        endpoint=_url(options, "metrics"),
        headers=options.headers,
        timeout=options.timeout,
        preferred_aggregation=aggregation,
    )


def log_exporter(options: Otlp) -> LogRecordExporter:
    """Return an exporter of log records."""
    if options.protocol_of("logs") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter

        return GrpcLogExporter(endpoint=options.endpoint, headers=_metadata(options), timeout=options.timeout)
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

    return OTLPLogExporter(endpoint=_url(options, "logs"), headers=options.headers, timeout=options.timeout)


class OtlpLogSink:
    """Turns one log line per boundary into an OpenTelemetry log record that points to the boundary's span."""

    __slots__ = ("_logger",)

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Emit one line."""
        level = str(line.get("level", "info"))
        self._logger.emit(
            LogRecord(
                timestamp=line.get("timestamp"),
                observed_timestamp=time.time_ns(),
                context=_span_context(line),
                severity_text=level,
                severity_number=SEVERITIES.get(level, SeverityNumber.UNSPECIFIED),
                body=line.get("event"),
                attributes={
                    key: _attribute(value)
                    for key, value in line.items()
                    if key not in _RECORD_FIELDS and value is not None
                },
            )
        )


def _span_context(line: Mapping[str, Any]) -> Context | None:
    trace_id, span_id = line.get("trace_id"), line.get("span_id")
    if not trace_id or not span_id:
        return None
    return set_span_in_context(NonRecordingSpan(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False)))


def _attribute(value: Any) -> AnyValue:
    if isinstance(value, (str, bool, int, float, bytes)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _attribute(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_attribute(item) for item in value]
    return str(value)


def _url(options: Otlp, signal: Signal) -> str | None:
    return options.endpoint and f"{options.endpoint.rstrip('/')}/v1/{signal}"


def _metadata(options: Otlp) -> dict[str, str] | None:
    """Return the headers with names in lower case, which gRPC insists on."""
    return options.headers and {name.lower(): value for name, value in options.headers.items()}  # type: ignore[return-value]  # empty is as good as None
