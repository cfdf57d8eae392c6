"""Options of `configure`, validated before anything starts, and their defaults from `OTEL_*` variables."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pellucid.errors import ConfigError
from pellucid_exporters.urls import is_url, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.util.types import AttributeValue
    from prometheus_client import CollectorRegistry

    from pellucid.telemetry.capture import CapturePolicy
    from pellucid_exporters.console import Console
    from pellucid_exporters.file.options import File
    from pellucid_exporters.local.options import Local
    from pellucid_exporters.metric_limits import MetricLimits
    from pellucid_exporters.recorder.names import Recorder
    from pellucid_exporters.sampling.rules import TailSampling

OtlpProtocol: TypeAlias = Literal["http/protobuf", "grpc"]
OtlpCompression: TypeAlias = Literal["none", "gzip", "deflate"]
Signal: TypeAlias = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = get_args(Signal)

MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Otlp:
    """Options of OTLP export. `None` leaves an option to the `OTEL_EXPORTER_OTLP_*` variables and their defaults.

    Attributes:
        endpoint: Base URL of the collector, `http://collector:4318` for HTTP or `http://collector:4317` for gRPC.
        protocol: `http/protobuf` (the default) or `grpc`.
        headers: Sent with each request, such as the credentials of a backend.
        traces: Send spans.
        metrics: Send metrics, with exponential histograms.
        logs: Send one log record per ended boundary.
        timeout: Seconds for one export, including retries.
        metric_interval: Seconds between two exports of the metrics.
        compression: `gzip` or `none`; over HTTP `deflate` too.
        certificate: File with the PEM certificates of authorities that verify the collector's certificate.
        client_certificate: File with this client's PEM certificate chain, for collectors that require one.
        client_key: File with the private key of the client certificate.
    """

    endpoint: str | None = None
    protocol: OtlpProtocol | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    traces: bool = True
    metrics: bool = True
    logs: bool = True
    timeout: float | None = None
    metric_interval: float | None = None
    compression: OtlpCompression | None = None
    certificate: str | Path | None = None
    client_certificate: str | Path | None = None
    client_key: str | Path | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
        if self.protocol is not None and self.protocol not in get_args(OtlpProtocol):
            raise ConfigError(f"Otlp(protocol={self.protocol!r}): use one of {', '.join(get_args(OtlpProtocol))}")
        for name in ("timeout", "metric_interval"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"Otlp({name}={value}): must be more than 0 seconds")
        if self.compression is not None and self.compression not in get_args(OtlpCompression):
            raise ConfigError(
                f"Otlp(compression={self.compression!r}): use one of {', '.join(get_args(OtlpCompression))}"
            )
        if (self.client_certificate is None) is not (self.client_key is None):
            raise ConfigError("Otlp(client_certificate=, client_key=): give both, or none")
        _check_files("Otlp", self, ("certificate", "client_certificate", "client_key"))

    def protocol_of(self, signal: Signal) -> OtlpProtocol:
        """Return the protocol of one signal, which the environment may set per signal."""
        named = (
            self.protocol
            or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
            or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "http/protobuf"
        )
        if named == "grpc":
            return "grpc"
        if named == "http/protobuf":
            return "http/protobuf"
        raise ConfigError(f"OTLP protocol {named!r} is not supported; set it to http/protobuf or grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Options of the `/metrics` endpoint.

    Attributes:
        host: Address to listen on; by default only the local machine can connect.
        port: 0 uses any free port, a range its first free one, see `Telemetry.prometheus_url`; `None` serves nothing,
            for applications that mount `Telemetry.metrics_app` or expose `registry` themselves.
        registry: Registry of other collectors to serve too; by default a new one, never the global one.
        exemplar_ttl: Seconds for which every scrape repeats an exemplar.
        native_histograms: Also record native histograms, for servers that scrape protobuf.
        classic: Whether histograms have classic buckets, or the instruments whose histograms have them. Without, a
            server must scrape native histograms; texts have the count and the sum only.
        certificate: File with the PEM certificate chain of this server; serves HTTPS.
        key: File with its private key, unless `certificate` holds it too.
        client_ca: File with the PEM certificates of authorities; clients need a certificate signed by one of them.
        bearer_token: Token that clients must send as `Authorization: Bearer ...`.
    """

    host: str = "127.0.0.1"
    port: int | range | None = 9464
    registry: CollectorRegistry | None = None
    exemplar_ttl: float = 300.0
    native_histograms: bool = True
    classic: bool | Collection[str] = True
    certificate: str | Path | None = None
    key: str | Path | None = None
    client_ca: str | Path | None = None
    bearer_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        ports = self.port if isinstance(self.port, range) else () if self.port is None else (self.port,)
        if not all(0 <= port <= MAX_PORT for port in ports) or (not ports and self.port is not None):
            raise ConfigError(f"Prometheus(port={self.port}): must be between 0 and {MAX_PORT}")
        if isinstance(self.classic, str):
            raise ConfigError(f"Prometheus(classic={self.classic!r}): give a collection, such as {{{self.classic!r}}}")
        if self.classic is not True and not self.native_histograms:
            raise ConfigError("Prometheus(classic=..., native_histograms=False): leave one out, or quantiles are lost")
        if self.certificate is None and (self.key is not None or self.client_ca is not None):
            raise ConfigError("Prometheus(key=, client_ca=): HTTPS needs a certificate of this server too")
        if self.certificate is not None and self.port is None:
            raise ConfigError("Prometheus(port=None, certificate=...): nothing is served; let your own server do HTTPS")
        _check_files("Prometheus", self, ("certificate", "key", "client_ca"))
        if self.bearer_token is not None and not re.fullmatch(r"[!-~]+", self.bearer_token):
            raise ConfigError("Prometheus(bearer_token=...): must be printable ASCII without spaces, and not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `configure`, normalized; equivalent arguments are equal."""

    service_name: str
    otlp: Otlp | None = None
    prometheus: Prometheus | None = None
    console: Console | None = None
    file: File | None = None
    local: Local | None = None
    tail_sampling: TailSampling | None = None
    metric_limits: MetricLimits | None = None
    capture: CapturePolicy | None = None
    resource: Resource | Mapping[str, AttributeValue] | None = None
    recorder: Recorder | None = None

    @property
    def effective(self) -> Settings:
        """These settings, or only the service name if `OTEL_SDK_DISABLED` turns telemetry off."""
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
            return self
        return replace(self, otlp=None, prometheus=None, console=None, file=None, local=None)


def resolve_otlp(given: Otlp | str | bool | None) -> Otlp | None:
    """Normalize OTLP options; `None` leaves them to the environment, `False` sends nothing."""
    if isinstance(given, Otlp):
        return given
    if isinstance(given, str):
        return Otlp(endpoint=given)
    if given is not None:
        return Otlp() if given else None
    found = Otlp(
        traces=_environment_sends("traces"), metrics=_environment_sends("metrics"), logs=_environment_sends("logs")
    )
    return found if found.traces or found.metrics or found.logs else None


def resolve_prometheus(given: Prometheus | str | int | None) -> Prometheus | None:
    """Normalize Prometheus options; `None` leaves them to the environment, `False` serves nothing."""
    if isinstance(given, Prometheus):
        return given
    if isinstance(given, bool):
        return Prometheus() if given else None
    if isinstance(given, int):
        return Prometheus(port=given)
    if given is not None:
        return _parse_address(given)
    if "prometheus" not in exporters_of("metrics"):
        return None
    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
    return _parse_address(f"{host}:{os.environ.get('OTEL_EXPORTER_PROMETHEUS_PORT', '9464')}")


def resolve_console(given: Console | bool) -> Console | None:
    """Normalize console options; `None` leaves them to `OTEL_TRACES_EXPORTER=console`."""
    if not isinstance(given, bool):
        return given
    if not given and "console" not in exporters_of("traces"):
        return None
    from pellucid_exporters.console import Console

    return Console()


def resolve_file(given: File | str | os.PathLike[str] | None) -> File | None:
    """Normalize file options; `None` writes no file."""
    from pellucid_exporters.file.options import File

    return given if given is None or isinstance(given, File) else File(given)


def resolve_local(given: Local | str | os.PathLike[str] | bool | None) -> Local | None:
    """Normalize options of the local store; `None` and `False` write no store."""
    from pellucid_exporters.local.options import Local

    if given is None or isinstance(given, Local):
        return given
    if isinstance(given, bool):
        return Local() if given else None
    return Local(given)


def exporters_of(signal: Signal) -> frozenset[str]:
    """Return the exporters named by `OTEL_<SIGNAL>_EXPORTER`."""
    return frozenset(name.strip().lower() for name in os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").split(","))


def _environment_sends(signal: Signal) -> bool:
    named = exporters_of(signal) - {""}
    if named:
        return "otlp" in named
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(os.environ.get(name) for name in endpoints)


def _check_files(what: str, options: object, names: Sequence[str]) -> None:
    for name in names:
        file = getattr(options, name)
        if file is not None and not Path(file).is_file():
            raise ConfigError(f"{what}({name}={str(file)!r}): there is no such file")


def _check_endpoint(endpoint: str) -> None:
    if not is_url(endpoint):
        url = f"http://{endpoint}"
        forms = repr(shown(url)) if is_url(url) and urlsplit(url).port else "http://host:port or https://host:port"
        raise ConfigError(f"OTLP endpoint {shown(endpoint)!r} is not a URL; write it as {forms}")
    if urlsplit(endpoint).path.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
        raise ConfigError(f"OTLP endpoint {shown(endpoint)!r} names one signal; give the base URL, without /v1/…")


def _parse_address(text: str) -> Prometheus:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise ConfigError(f"prometheus={text!r} is not an address; write it as 'host:port' or as a port number")
    return Prometheus(host=host.strip("[]"), port=int(port)) if host else Prometheus(port=int(port))
