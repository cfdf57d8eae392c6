"""OTLP over HTTP or gRPC: spans, metrics with exponential histograms and exemplars, and logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.view import Aggregation

from pellucid.errors import ConfigError
from pellucid_exporters.otlp.batches import MAX_POINTS
from pellucid_exporters.recorder.metrics.reservoir import FEW, HistogramWithLargest

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

    from pellucid_exporters.options import Otlp, Signal


def span_exporter(options: Otlp, session: Any = None) -> SpanExporter:
    """Return an exporter of spans. Over HTTP it uses `session`, if given."""
    if options.protocol_of("traces") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCSpanExporter

        return GRPCSpanExporter(**_grpc_options(options))
    from pellucid_exporters.otlp.http_exporters import HTTPSpanExporter

    return HTTPSpanExporter(**_http_options(options, "traces", session))


def metric_exporter(options: Otlp, session: Any = None, exemplars: int = FEW) -> MetricExporter:
    """Return an exporter of metrics whose histograms are exponential, unless the environment asks for explicit ones.

    Exponential ones have at most `exemplars` exemplars of each series and export.
    """
    aggregation: dict[type, Aggregation] | None = None
    if not os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
        aggregation = {Histogram: HistogramWithLargest(exemplars)}
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
