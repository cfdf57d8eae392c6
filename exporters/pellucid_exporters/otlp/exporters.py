"""OTLP over HTTP or gRPC: spans, metrics with exponential histograms and exemplars, and logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.view import Aggregation

from pellucid.errors import ConfigError
from pellucid_exporters.otlp.answers import OnAnswer, read_http
from pellucid_exporters.otlp.batches import MAX_POINTS
from pellucid_exporters.recorder.metrics.reservoir import FEW, HistogramWithLargest

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

    from pellucid_exporters.options import Otlp, Signal

T = TypeVar("T")


def span_exporter(options: Otlp, session: Any = None, on_answer: OnAnswer | None = None) -> SpanExporter:
    """Return an exporter of spans. Over HTTP it uses `session`, if given."""
    if options.protocol_of("traces") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCSpanExporter

        return _by_grpc(GRPCSpanExporter, options, on_answer)
    from pellucid_exporters.otlp.http_exporters import HTTPSpanExporter

    return _by_http(HTTPSpanExporter, options, "traces", session, on_answer)


def metric_exporter(
    options: Otlp, session: Any = None, exemplars: int = FEW, on_answer: OnAnswer | None = None
) -> MetricExporter:
    """Return an exporter of metrics whose histograms are exponential, unless the environment asks for explicit ones.

    Exponential ones have at most `exemplars` exemplars of each series and export.
    """
    aggregation: dict[type, Aggregation] | None = None
    if not os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
        aggregation = {Histogram: HistogramWithLargest(exemplars)}
    common: dict[str, Any] = {"preferred_aggregation": aggregation, "max_export_batch_size": MAX_POINTS}
    if options.protocol_of("metrics") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCMetricExporter

        return _by_grpc(GRPCMetricExporter, options, on_answer, **common)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return _by_http(OTLPMetricExporter, options, "metrics", session, on_answer, **common)


def log_exporter(options: Otlp, session: Any = None, on_answer: OnAnswer | None = None) -> LogRecordExporter:
    """Return an exporter of log records."""
    if options.protocol_of("logs") == "grpc":
        from pellucid_exporters.otlp.grpc_exporters import GRPCLogExporter

        return _by_grpc(GRPCLogExporter, options, on_answer)
    from pellucid_exporters.otlp.http_exporters import HTTPLogExporter

    return _by_http(HTTPLogExporter, options, "logs", session, on_answer)


def _by_http(
    kind: Callable[..., T], options: Otlp, signal: Signal, session: Any, on_answer: OnAnswer | None, **more: Any
) -> T:
    from opentelemetry.exporter.otlp.proto.http import Compression

    session = make_session() if session is None else session
    exporter = kind(
        endpoint=options.endpoint and f"{options.endpoint.rstrip('/')}/v1/{signal}",
        headers=options.headers,
        timeout=options.timeout,
        compression=options.compression and Compression(options.compression),
        certificate_file=_path(options.certificate),
        client_certificate_file=_path(options.client_certificate),
        client_key_file=_path(options.client_key),
        session=session,
        **more,
    )
    used = _session_of(exporter) if session is None else session
    if on_answer is not None and used is not None:
        read_http(used, signal, on_answer)
    return exporter


def _session_of(exporter: Any) -> Any:
    """Return the session that the environment's provider of credentials made; None if the SDK keeps it elsewhere."""
    holder = getattr(getattr(exporter, "_client", None), "_transport", exporter)
    return getattr(holder, "_session", None)


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


def _by_grpc(kind: Callable[..., T], options: Otlp, on_answer: OnAnswer | None, **more: Any) -> T:
    """Return a gRPC exporter.

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
    exporter: Any = kind(
        endpoint=options.endpoint,
        # gRPC requires names in lower case.
        headers=options.headers and {name.lower(): value for name, value in options.headers.items()},
        timeout=options.timeout,
        compression=kinds[options.compression] if options.compression is not None else None,
        credentials=credentials,
        **more,
    )
    exporter.on_answer = on_answer
    return cast("T", exporter)


def _path(file: str | Path | None) -> str | None:
    return None if file is None else str(file)


def _content(file: str | Path | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
