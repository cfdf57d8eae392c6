"""Servers of `/metrics`: a WSGI and ASGI app to mount, and an endpoint with its own thread and optional TLS."""

from __future__ import annotations

import errno
import gzip
import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import anyio.to_thread

from pellucid.errors import ConfigError
from pellucid_exporters.prometheus.exposition import negotiate, only, render
from pellucid_exporters.prometheus.reader import PrometheusCollector, PrometheusReader

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    from pellucid_exporters.options import Prometheus

_log: Final = logging.getLogger("pellucid_exporters.endpoint")

CLIENT_TIMEOUT: Final = 10.0
"""Timeout in seconds of a client's TLS handshake, and of each read of its request."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a request for metrics."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class MetricsApp:
    """Application that serves metrics in the requested format; mount `asgi` or `wsgi` under any path.

    Args:
        reader: Source of the metrics. Pass its readers `all` to a `MeterProvider`.
        registry: Metrics of `prometheus_client` to serve too.
        bearer_token: Required token; requests without it get an empty 401.

    Attributes:
        probes: Answers of other paths, by path, of the server with a port; they need no token. Each returns what is
            wrong, or None. They are called in threads.
    """

    def __init__(
        self, reader: PrometheusReader, *, registry: CollectorRegistry | None = None, bearer_token: str | None = None
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._token = bearer_token.encode() if bearer_token is not None else None
        self.probes: dict[str, Callable[[], str | None]] = {}

    def wsgi(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve a WSGI request."""
        names = {
            "HTTP_ACCEPT": "accept",
            "HTTP_ACCEPT_ENCODING": "accept-encoding",
            "HTTP_AUTHORIZATION": "authorization",
        }
        headers = {name: environ[key] for key, name in names.items() if key in environ}
        if (probe := self.probes.get(environ.get("PATH_INFO", ""))) is not None:
            answer = _probed(probe())
        else:
            answer = self.answer(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", ""), headers)
        start_response(f"{answer.status} {answer.reason}", list(answer.headers.items()))
        return [answer.body]

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an ASGI request; metrics are collected in a worker thread.

        Raises:
            ValueError: the request is not HTTP.
        """
        if scope["type"] != "http":
            raise ValueError(f"/metrics answers HTTP, not {scope['type']!r}")
        headers: dict[str, str] = {}
        for key, value in scope["headers"]:
            name, text = key.decode("latin-1").lower(), value.decode("latin-1")
            headers[name] = f"{headers[name]},{text}" if name in headers else text
        query = scope.get("query_string", b"").decode("latin-1")
        answer = await anyio.to_thread.run_sync(self.answer, scope["method"], query, headers)
        encoded = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await send({"type": "http.response.body", "body": answer.body})

    def answer(self, method: str, query: str, headers: Mapping[str, str]) -> Answer:
        """Answer one request. Args: headers: with names in lower case."""
        if not self._is_allowed(headers.get("authorization", "")):
            return Answer(401, "Unauthorized", {"WWW-Authenticate": "Bearer", "Content-Length": "0"})
        if method != "GET":
            return Answer(405, "Method Not Allowed", {"Allow": "GET", "Content-Length": "0"})
        output_format = negotiate(headers.get("accept"))
        names = parse_qs(query).get("name[]")
        families = self._families(complete=output_format.kind == "protobuf", encoded=not names)
        if names:
            families = only(families, names)
        body = render(families, output_format, self._reader.complain)
        encoding: dict[str, str] = {}
        if _accepts_gzip(headers.get("accept-encoding", "")):
            body, encoding = gzip.compress(body, compresslevel=6), {"Content-Encoding": "gzip"}
        described = {
            "Content-Type": output_format.content_type,
            "Content-Length": str(len(body)),
            "Vary": "Accept, Accept-Encoding",
        }
        return Answer(200, "OK", {**described, **encoding}, body)

    def _families(self, *, complete: bool, encoded: bool) -> Iterable[Family]:
        yield from self._reader.scrape(complete=complete, encoded=encoded)
        if self._registry is not None:
            yield from self._reader.others(self._registry)

    def _is_allowed(self, authorization: str) -> bool:
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return hmac.compare_digest(given.strip().encode(), self._token) and scheme.lower() == "bearer"


class MetricsEndpoint:
    """HTTP server that serves a reader on `/metrics` from a daemon thread.

    Attributes:
        app: Application to mount in another server.
        url: URL of the endpoint; `None` without a port and after `close`.

    Raises:
        ConfigError: the address cannot be listened on, or a certificate cannot be used.
    """

    def __init__(self, options: Prometheus, reader: PrometheusReader) -> None:
        self.app = MetricsApp(reader, registry=options.registry, bearer_token=options.bearer_token)
        self.url: str | None = None
        self._server: _Server | None = None
        if options.port is not None:
            self._server = _listen(options, self.app)
            self._thread = threading.Thread(
                target=self._server.serve_forever, args=(0.1,), name="pellucid-metrics", daemon=True
            )
            self._thread.start()
            scheme = "https" if options.certificate is not None else "http"
            shown = f"[{options.host}]" if ":" in options.host else options.host
            self.url = f"{scheme}://{shown}:{self._server.server_port}/metrics"
        self._registered: tuple[CollectorRegistry, PrometheusCollector] | None = None
        if options.registry is not None:
            self._registered = options.registry, PrometheusCollector(reader)
            options.registry.register(self._registered[1])

    def close(self) -> None:
        """Stop serving, release the port and unregister from the registry."""
        if self._registered is not None:
            registry, collector = self._registered
            registry.unregister(collector)
            self._registered = None
        server, self._server, self.url = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def renew(self) -> None:
        """Release the parent's socket in a forked child, which has no thread to serve it."""
        server, self._server, self.url = self._server, None, None
        if server is not None:
            server.socket.close()


class _Server(ThreadingMixIn, WSGIServer):
    """Server with one thread per request, so that a slow client does not block others."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], app: MetricsApp, context: ssl.SSLContext | None) -> None:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(where[0]), int(where[1])), _Handler)
        self.set_app(app.wsgi)
        if context is not None:  # the handshake happens in the request's thread, on its first read
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log clients that disconnected or were rejected at debug level."""
        _log.debug("a request for /metrics from %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the parent's)
        """Log nothing."""


def _probed(fault: str | None) -> Answer:
    body = (fault or "ok").encode()
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
    return Answer(200, "OK", headers, body) if fault is None else Answer(503, "Service Unavailable", headers, body)


def _listen(options: Prometheus, app: MetricsApp) -> _Server:
    context = _tls(options)
    ports = options.port if isinstance(options.port, range) else (options.port,)
    taken: OSError | None = None
    for port in ports:
        try:
            return _Server((options.host, port or 0), app, context)
        except OSError as error:
            taken = error
            if error.errno != errno.EADDRINUSE:
                break
    shown = f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0])
    reason = taken.strerror or taken if taken is not None else ""
    raise ConfigError(
        f"serving /metrics on {options.host}:{shown} failed: {reason}; "
        f"stop what uses port {shown}, or choose another (0 takes any free one)"
    ) from taken


def _tls(options: Prometheus) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With a password, an encrypted key raises instead of prompting on the terminal.
        context.load_cert_chain(options.certificate, options.key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Prometheus(certificate={str(options.certificate)!r}, key={str(options.key)!r}) cannot be used: {error}; "
            f"give a PEM certificate chain and its unencrypted private key"
        ) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"Prometheus(client_ca={str(options.client_ca)!r}) cannot be used: {error}; give PEM certificates"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _accepts_gzip(header: str) -> bool:
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if name == "gzip":
            return not any(part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters)
    return False
