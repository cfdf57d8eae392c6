"""OTLP over HTTP or gRPC: spans, metrics with exponential histograms and exemplars, and logs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from pellucid.errors import ConfigError
from pellucid_exporters.otlp.batches import MAX_POINTS

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


def span_exporter(options: Otlp, session: Any = None) -> SpanExporter:
    """Return an exporter of spans. Over HTTP it uses `session`, if given."""
    if options.protocol_of("traces") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCSpanExporter

        return GRPCSpanExporter(**_grpc_options(options))
    from pellucid_exporters.otlp.http_exporters import HTTPSpanExporter

    return HTTPSpanExporter(**_http_options(options, "traces", session))


def metric_exporter(options: Otlp, session: Any = None) -> MetricExporter:
    """Return an exporter of metrics whose histograms are exponential, unless the environment asks for explicit ones."""
    aggregation: dict[type, Aggregation] | None = None
    if not os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
        aggregation = {Histogram: ExponentialBucketHistogramAggregation()}
    common: dict[str, Any] = {"preferred_aggregation": aggregation, "max_export_batch_size": MAX_POINTS}
    if options.protocol_of("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter

        return GrpcMetricExporter(**_grpc_options(options), **common)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(**_http_options(options, "metrics", session), **common)


def log_exporter(options: Otlp, session: Any = None) -> LogRecordExporter:
    """Return an exporter of log records."""
    if options.protocol_of("logs") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCLogExporter

        return GRPCLogExporter(**_grpc_options(options))
    from pellucid_exporters.otlp.http_exporters import HTTPLogExporter

    return HTTPLogExporter(**_http_options(options, "logs", session))


class OtlpLogSink:
    """Log sink that converts one log line per boundary to an OpenTelemetry log record with the context of its span."""

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
                event_name=line.get("event"),
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


def _http_options(options: Otlp, signal: Signal, session: Any) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    return {
        "endpoint": options.endpoint and f"{options.endpoint.rstrip('/')}/v1/{signal}",
        "headers": options.headers,
        "timeout": options.timeout,
        "compression": options.compression and Compression(options.compression),
        "certificate_file": _path(options.certificate),
        "client_certificate_file": _path(options.client_certificate),
        "client_key_file": _path(options.client_key),
        "session": make_session() if session is None else session,
    }


def make_session() -> Any:
    """Return a session in which a configured certificate overrides `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE`.

    None if the environment names a provider of sessions with credentials.
    """
    import requests

    if any(name.endswith("_CREDENTIAL_PROVIDER") and "_OTLP_HTTP_" in name for name in os.environ):
        return None

    class Session(requests.Session):
        def merge_environment_settings(self, *of_request: Any) -> Any:
            merged = super().merge_environment_settings(*of_request)
            return {**merged, "verify": self.verify} if isinstance(self.verify, str) else merged

    return Session()


def _grpc_options(options: Otlp) -> dict[str, Any]:
    """Return the arguments of gRPC exporters.

    Raises:
        ConfigError: gRPC does not support the compression.
    """
    import grpc  # type: ignore[import-untyped]  # comes without types

    if options.compression == "deflate":
        raise ConfigError("Otlp(protocol='grpc', compression='deflate'): use gzip or none")
    kinds = {"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression}
    credentials = None
    if options.certificate is not None or options.client_certificate is not None:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_content(options.certificate),
            private_key=_content(options.client_key),
            certificate_chain=_content(options.client_certificate),
        )
    return {
        "endpoint": options.endpoint,
        # gRPC requires names in lower case.
        "headers": options.headers and {name.lower(): value for name, value in options.headers.items()},
        "timeout": options.timeout,
        "compression": kinds[options.compression] if options.compression is not None else None,
        "credentials": credentials,
    }


def _path(file: str | Path | None) -> str | None:
    return None if file is None else str(file)


def _content(file: str | Path | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
