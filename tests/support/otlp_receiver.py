"""An OTLP collector over HTTP and gRPC that takes the protocol at its word and lists every violation."""

from __future__ import annotations

import gzip
import ssl
import threading
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import grpc  # type: ignore[import-untyped]  # comes without types, as do the next two
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_DECOMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "none": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress,
}  # fmt: skip
TRACES, METRICS, LOGS = "traces", "metrics", "logs"

_REQUESTS: Final[Mapping[str, type[Message]]] = {
    TRACES: trace_pb.ExportTraceServiceRequest,
    METRICS: metrics_pb.ExportMetricsServiceRequest,
    LOGS: logs_pb.ExportLogsServiceRequest,
}
_RESPONSES: Final[Mapping[str, type[Message]]] = {
    TRACES: trace_pb.ExportTraceServiceResponse,
    METRICS: metrics_pb.ExportMetricsServiceResponse,
    LOGS: logs_pb.ExportLogsServiceResponse,
}
_REJECTED: Final[Mapping[str, str]] = {
    TRACES: "rejected_spans",
    METRICS: "rejected_data_points",
    LOGS: "rejected_log_records",
}
_SERVICES: Final[Mapping[str, str]] = {
    "opentelemetry.proto.collector.trace.v1.TraceService": TRACES,
    "opentelemetry.proto.collector.metrics.v1.MetricsService": METRICS,
    "opentelemetry.proto.collector.logs.v1.LogsService": LOGS,
}


class Received:
    """All that has arrived. Attributes: faults: violations of the protocol; headers: of the last request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: list[tuple[str, Any]] = []
        self.sizes: list[int] = []
        self.faults: list[str] = []
        self.headers: dict[str, str] = {}

    @property
    def spans(self) -> list[Any]:
        """All spans."""
        return [span for scope in self._scopes(TRACES, "resource_spans", "scope_spans") for span in scope.spans]

    @property
    def metrics(self) -> list[Any]:
        """All metrics, one per export."""
        scopes = self._scopes(METRICS, "resource_metrics", "scope_metrics")
        return [metric for scope in scopes for metric in scope.metrics]

    @property
    def logs(self) -> list[Any]:
        """All log records."""
        return [record for scope in self._scopes(LOGS, "resource_logs", "scope_logs") for record in scope.log_records]

    @property
    def resources(self) -> list[dict[str, Any]]:
        """The resource of each request."""
        fields = {TRACES: "resource_spans", METRICS: "resource_metrics", LOGS: "resource_logs"}
        return [
            attributes_of(part.resource)
            for signal, request in self.requests
            for part in getattr(request, fields[signal])
        ]

    def take(self, signal: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Decode and check one request."""
        request = _REQUESTS[signal]()
        request.ParseFromString(body)
        faults = [*_unknown(request, signal), *_CHECKS[signal](request)]
        with self._lock:
            self.headers = {name.lower(): value for name, value in headers.items()}
            self.requests.append((signal, request))
            self.sizes.append(len(body))
            self.faults += faults

    def unresolved_parents(self) -> list[str]:
        """Return the spans whose parent never arrived."""
        known = {(span.trace_id, span.span_id) for span in self.spans}
        return [
            span.name
            for span in self.spans
            if span.parent_span_id and (span.trace_id, span.parent_span_id) not in known
        ]

    def _scopes(self, signal: str, resources: str, scopes: str) -> list[Any]:
        return [
            scope
            for found, request in self.requests
            if found == signal
            for resource in getattr(request, resources)
            for scope in getattr(resource, scopes)
        ]


class Receiver(Received):
    """A collector that listens.

    Attributes:
        endpoint: Its base URL.
        refusing: Answer each request with an error that says not to try again.
        answers: Over HTTP: statuses and headers of the next answers; nothing of these requests is taken.
        rejecting: By signal: number of items that the next answer says were rejected, and its message.
        asked: Requests so far, also refused ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.endpoint = ""
        self.refusing = False
        self.answers: deque[tuple[int, dict[str, str]]] = deque()
        self.rejecting: dict[str, tuple[int, str]] = {}
        self.asked = 0

    def answer_to(self, signal: str) -> Message:
        """Return the answer to a request that was taken."""
        answer = _RESPONSES[signal]()
        if signal in self.rejecting:
            rejected, answer.partial_success.error_message = self.rejecting.pop(signal)
            setattr(answer.partial_success, _REJECTED[signal], rejected)
        return answer


@dataclass(frozen=True)
class Tls:
    """Certificates of a collector, in PEM. Attributes: client_ca: authority of clients that need a certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


@contextmanager
def otlp_receiver(protocol: str, *, port: int = 0, tls: Tls | None = None) -> Iterator[Receiver]:
    """Run a collector on a loopback port, any free one unless told."""
    with _http(port, tls) if protocol == "http/protobuf" else _grpc(port, tls) as receiver:
        yield receiver


@contextmanager
def _http(port: int, tls: Tls | None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.asked += 1
            body = _DECOMPRESS[self.headers.get("Content-Encoding", "none")](body)
            if receiver.answers:
                self.answer(*receiver.answers.popleft())
                return
            signal, content = self.path.removeprefix("/v1/"), b""
            if self.headers["Content-Type"] != "application/x-protobuf" or signal not in _REQUESTS:
                receiver.faults.append(f"POST {self.path} of {self.headers['Content-Type']}")
            elif not receiver.refusing:
                receiver.take(signal, body, dict(self.headers))
                content = receiver.answer_to(signal).SerializeToString()
            self.answer(400 if receiver.refusing else 200, {}, content)

        def answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name in the base class)
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that go away."""

    with Server(("127.0.0.1", port), Handler) as server, TemporaryDirectory() as folder:
        receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
        if tls is not None:
            server.socket = _context(tls, Path(folder)).wrap_socket(server.socket, server_side=True)
            receiver.endpoint = f"https://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


def _context(tls: Tls, folder: Path) -> ssl.SSLContext:
    files = {"certificate": tls.certificate, "key": tls.key}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    if tls.client_ca is not None:
        context.load_verify_locations(cadata=tls.client_ca.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def _grpc(port: int, tls: Tls | None) -> Iterator[Receiver]:
    receiver = Receiver()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers([_service(receiver, name, signal) for name, signal in _SERVICES.items()])
        if tls is None:
            receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        else:
            pair = [(tls.key, tls.certificate)]
            secured = grpc.ssl_server_credentials(pair, tls.client_ca, require_client_auth=tls.client_ca is not None)
            receiver.endpoint = f"https://localhost:{server.add_secure_port(f'127.0.0.1:{port}', secured)}"
        server.start()
        yield receiver
        server.stop(grace=None).wait()


def _service(receiver: Receiver, name: str, signal: str) -> grpc.GenericRpcHandler:
    def export(body: bytes, context: grpc.ServicerContext) -> Message:
        receiver.asked += 1
        if receiver.refusing:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refusing")
        receiver.take(signal, body, {key: str(value) for key, value in context.invocation_metadata()})
        return receiver.answer_to(signal)

    handler = grpc.unary_unary_rpc_method_handler(export, response_serializer=lambda answer: answer.SerializeToString())
    return grpc.method_handlers_generic_handler(name, {"Export": handler})


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of a resource, span, log record or point as plain values."""
    return {pair.key: _plain(pair.value) for pair in holder.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, kind)


def _unknown(message: Message, path: str) -> Iterator[str]:
    """Yield the fields that the official protocol does not have."""
    if len(UnknownFieldSet(message)):
        yield f"{path}: unknown fields"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in [value] if isinstance(value, Message) else value:
            yield from _unknown(item, f"{path}.{field.name}")


def _is_id(raw: bytes, length: int) -> bool:
    return len(raw) == length and any(raw)


def _check_traces(request: Any) -> Iterator[str]:
    for resource in request.resource_spans:
        yield from _check_resource(resource)
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            rules = {
                "trace id": _is_id(span.trace_id, 16),
                "span id": _is_id(span.span_id, 8),
                "parent id": not span.parent_span_id or _is_id(span.parent_span_id, 8),
                "name": bool(span.name),
                "kind": span.kind in range(1, 6),
                "status": span.status.code in range(3),
                "times": 0 < span.start_time_unix_nano <= span.end_time_unix_nano,
                "attribute names": _are_distinct(span),
                "events": all(event.time_unix_nano and event.name for event in span.events),
                "links": all(_is_id(link.trace_id, 16) and _is_id(link.span_id, 8) for link in span.links),
            }
            yield from (f"span {span.name!r}: {rule}" for rule, kept in rules.items() if not kept)


def _check_metrics(request: Any) -> Iterator[str]:
    for resource in request.resource_metrics:
        yield from _check_resource(resource)
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            if not metric.name or kind is None:
                yield f"metric {metric.name!r}: name or data missing"
                continue
            for point in getattr(metric, kind).data_points:
                yield from (f"metric {metric.name!r}: {fault}" for fault in _check_point(point))


def _check_point(point: Any) -> Iterator[str]:
    if point.time_unix_nano < point.start_time_unix_nano or not point.time_unix_nano:
        yield "times"
    if not _are_distinct(point):
        yield "attribute names"
    for exemplar in point.exemplars:
        if not (_is_id(exemplar.trace_id, 16) and _is_id(exemplar.span_id, 8) and exemplar.time_unix_nano):
            yield "exemplar"
    if hasattr(point, "positive"):
        inside = sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts) + point.zero_count
        if inside != point.count:
            yield f"{inside} in buckets, {point.count} counted"
    elif hasattr(point, "explicit_bounds") and len(point.bucket_counts) != len(point.explicit_bounds) + 1:
        yield "buckets"


def _check_logs(request: Any) -> Iterator[str]:
    for resource in request.resource_logs:
        yield from _check_resource(resource)
        for record in (record for scope in resource.scope_logs for record in scope.log_records):
            rules = {
                "trace id": not record.trace_id or _is_id(record.trace_id, 16),
                "span id": not record.span_id or _is_id(record.span_id, 8),
                "span id without trace id": bool(record.trace_id) or not record.span_id,
                "severity": record.severity_number in range(25),
                "observed time": record.observed_time_unix_nano > 0,
                "attribute names": _are_distinct(record),
            }
            yield from (f"log record: {rule}" for rule, kept in rules.items() if not kept)


def _check_resource(part: Any) -> Iterator[str]:
    if not attributes_of(part.resource).get("service.name"):
        yield "resource without service.name"


def _are_distinct(holder: Any) -> bool:
    names = [pair.key for pair in holder.attributes]
    return all(names) and len(names) == len(set(names))


_CHECKS: Final[Mapping[str, Callable[[Any], Iterator[str]]]] = {
    TRACES: _check_traces,
    METRICS: _check_metrics,
    LOGS: _check_logs,
}
