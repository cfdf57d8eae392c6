"""Delivery of one test item by the exporters that the application uses, without retries."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from google.protobuf import json_format  # type: ignore[import-untyped]  # comes without types, as does the next
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter

from pellucid.errors import ConfigError
from pellucid.text import excerpt
from pellucid_commands.doctor.samples import MAKERS
from pellucid_commands.doctor.web import Kind, Trouble, why
from pellucid_exporters.options import Otlp, OtlpProtocol, Signal
from pellucid_exporters.otlp.exporters import log_exporter, make_session, metric_exporter, span_exporter

_EXPORTERS: Final[Mapping[Signal, Callable[..., Any]]] = {
    "traces": span_exporter, "metrics": metric_exporter, "logs": log_exporter,
}  # fmt: skip
_REPLIES: Final[Mapping[Signal, Any]] = {
    "traces": ExportTraceServiceResponse, "metrics": ExportMetricsServiceResponse, "logs": ExportLogsServiceResponse,
}  # fmt: skip

_STATUSES: Final[Mapping[int, Kind]] = {
    401: "credentials", 403: "not_allowed", 404: "path", 405: "path", 415: "path", 429: "overloaded", 503: "overloaded",
}  # fmt: skip
_CODES: Final[Mapping[str, Kind]] = {
    "UNAUTHENTICATED": "credentials", "PERMISSION_DENIED": "not_allowed", "UNIMPLEMENTED": "path",
    "RESOURCE_EXHAUSTED": "overloaded",
}  # fmt: skip
_DETAILS: Final[tuple[tuple[str, Trouble], ...]] = (
    ("CERTIFICATE_VERIFY_FAILED", Trouble("untrusted", "shows a certificate that is not trusted")),
    ("Hostname Verification|Peer name", Trouble("other_host", "shows a certificate for another host")),
    ("CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE", Trouble("certificate_wanted", "wants a client certificate")),
    ("WRONG_VERSION_NUMBER|HTTP_REQUEST", Trouble("no_tls", "does not speak TLS")),
    ("(?i)http1|http/1|http2 header with status|content-type|(?i:frame)", Trouble("not_http", "does not speak gRPC")),
    ("(?i)connection refused", Trouble("refused", "refused the connection: nothing listens there")),
    ("(?i)dns|name resolution|errors resolving", Trouble("name", "has a host name that is not known here")),
    ("(?i)socket closed|connection reset|broken pipe|closed", Trouble("closed", "closed the connection")),
)
"""Problems that gRPC reports only as text, in the order of matching."""
_NO_ADDRESS: Final = Trouble("address", "the endpoint is not a URL")


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of one request.

    Attributes:
        to: Destination.
        got: The collector's response, or why there is none.
    """

    signal: Signal
    protocol: OtlpProtocol
    to: str
    got: Any


def send(options: Otlp, signal: Signal) -> Sent:
    """Send one item, for at most `options.timeout` seconds.

    Raises:
        ConfigError: the options do not allow sending.
    """
    if options.protocol_of(signal) == "grpc":
        return _by_grpc(options, signal)
    return _by_http(options, signal)


def _by_http(options: Otlp, signal: Signal) -> Sent:
    session = make_session()
    if session is None:
        raise ConfigError("requests are made by a credential provider of OpenTelemetry's and cannot be looked at")
    ear = _Ear()
    session.mount("http://", ear)
    session.mount("https://", ear)
    exporter = _EXPORTERS[signal](options, session)
    exporter.export(MAKERS[signal]())
    exporter.shutdown()
    if isinstance(ear.got, requests.Response):
        return Sent(signal, "http/protobuf", ear.url, _read(ear.got, signal))
    # Without a request, the library rejected the URL.
    trouble = why(ear.got, options.timeout or 0) if ear.got else _NO_ADDRESS
    return Sent(signal, "http/protobuf", ear.url, trouble)


class _Heard(Exception):
    """Signal that the response is known."""


class _Ear(HTTPAdapter):
    """Transport adapter that keeps the response to the first request and prevents retries."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.got: requests.Response | Exception | None = None

    def send(self, request: requests.PreparedRequest, *given: Any, **options: Any) -> requests.Response:
        self.url = request.url or ""
        try:
            self.got = super().send(request, *given, **options)
        except Exception as error:
            self.got = error
            raise _Heard from error
        if not self.got.ok:
            self.got.close()
            raise _Heard
        return self.got


def _read(answer: requests.Response, signal: Signal) -> Any:
    kind = answer.headers.get("Content-Type", "").lower()
    if answer.is_redirect:
        return Trouble("redirect", f"answered {answer.status_code}: it redirects, and exporters do not follow")
    if not answer.ok:
        kind = _STATUSES.get(answer.status_code, "other")
        return Trouble(kind, f"answered {answer.status_code} {excerpt(answer.reason, 60)}".rstrip())
    if "html" in kind:
        return Trouble("page", "answered with a web page: it is no OTLP receiver")
    try:
        if "json" in kind and answer.content:  # against the protocol, and common
            return json_format.Parse(answer.content, _REPLIES[signal]())
        return _REPLIES[signal].FromString(answer.content if "protobuf" in kind else b"")
    except (DecodeError, json_format.ParseError):
        return Trouble("page", "answered with something else than OTLP does: it is no OTLP receiver")


def _by_grpc(options: Otlp, signal: Signal) -> Sent:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library would print the problem reported here
    import grpc  # type: ignore[import-untyped]  # comes without types

    try:
        exporter = _EXPORTERS[signal](options)
    except ValueError:
        return Sent(signal, "grpc", "", _NO_ADDRESS)
    # Private, because the exporter's own `export` retries, logs the response and returns only that it failed.
    if not _is_address(exporter._endpoint):  # noqa: SLF001
        exporter.shutdown()
        return Sent(signal, "grpc", "", _NO_ADDRESS)
    address = f"{'http' if exporter._insecure else 'https'}://{exporter._endpoint}"  # noqa: SLF001

    def export() -> Any:
        request = exporter._translate_data(MAKERS[signal]())  # noqa: SLF001
        try:
            return exporter._client.Export(request, metadata=exporter._headers, timeout=options.timeout)  # noqa: SLF001
        except grpc.RpcError as error:
            return _why(error.code().name, error.details() or "", options.timeout or 0)

    try:
        got = export()
        if isinstance(got, Trouble) and got.kind == "refused" and _use_listening_address(exporter):
            got = export()
    finally:
        exporter.shutdown()
    return Sent(signal, "grpc", address, got)


def _is_address(endpoint: str) -> bool:
    """Return whether host and port can be read; gRPC says that they cannot only once it knows the host."""
    try:
        return urlsplit(f"//{endpoint}").port != 0
    except ValueError:
        return False


def _use_listening_address(exporter: Any) -> bool:
    """Reconnect to the address of the host where something listens; return whether there is one.

    Of a host with several addresses, such as localhost, gRPC reports only the problem of the last that failed.
    """
    url = urlsplit(f"//{exporter._endpoint}")  # noqa: SLF001
    try:
        with socket.create_connection((url.hostname, url.port), timeout=1) as connection:
            host, port = connection.getpeername()[:2]
    except (OSError, ValueError, TypeError):  # nothing listens, or the endpoint is no host with a port
        return False
    exporter._channel.close()  # noqa: SLF001
    exporter._endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # noqa: SLF001
    exporter._channel_options += (("grpc.ssl_target_name_override", url.hostname),)  # noqa: SLF001
    exporter._initialize_channel_and_stub()  # noqa: SLF001
    return True


def _why(code: str, details: str, timeout: float) -> Trouble:
    if code in _CODES:
        return Trouble(_CODES[code], f"answered {code}: {excerpt(details, 100)}")
    trouble = next((trouble for pattern, trouble in _DETAILS if re.search(pattern, details)), None)
    if trouble is not None:
        return trouble
    if code == "DEADLINE_EXCEEDED":
        return Trouble("timeout", f"did not answer within {timeout:g} s")
    return Trouble("other", f"answered {code}: {excerpt(details, 100)}")
