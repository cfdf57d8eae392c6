"""Span and metric of each request, by OpenTelemetry's conventions for HTTP servers.

An application that has instrumentation of its own keeps it: then there is no second span.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from opentelemetry.util.types import AttributeValue
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid import semconv
from pellucid.failures import error_type_of
from pellucid.server.pages import PROBES
from pellucid.telemetry import Pipeline
from pellucid.telemetry.metrics import instruments_of
from pellucid.telemetry.pipeline import complete
from pellucid.text import excerpt
from pellucid.version import __version__

SCOPE: Final = "pellucid.server"
_UNOBSERVED: Final = PROBES | {"/metrics"}
"""Routes without telemetry: probes and scrapes come every few seconds."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_SERVER_ERROR: Final = 500
_CLIENT_LEFT: Final = 499
_MAX_PATH: Final = 256


class ServerTelemetry:
    """Middleware that makes a span, which ends with the response, and measures its duration.

    Args:
        app: The application.
        routes: Its routes, for `http.route`.
        telemetry: Destination, as the option of an agent.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route], telemetry: Pipeline | None) -> None:
        self._app = app
        self._routes = [(route.path_regex, route.path_format) for route in routes]
        self._telemetry = telemetry
        self._providers: tuple[Any, Any] | None = None
        self._tracer: trace.Tracer = trace.NoOpTracer()
        self._duration: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        current = get_current_span().get_span_context()
        is_instrumented = current.is_valid and not current.is_remote
        route = self._route_of(scope) if scope["type"] == "http" and not is_instrumented else None
        if scope["type"] != "http" or is_instrumented or route in _UNOBSERVED:
            await self._app(scope, receive, send)
        else:
            await self._traced(scope, receive, send, route)

    async def _traced(self, scope: Scope, receive: Receive, send: Send, route: str | None) -> None:
        status: int | None = None
        has_left = False

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def observed_receive() -> Message:
            nonlocal has_left
            message = await receive()
            has_left = has_left or (message["type"] == "http.disconnect" and status is None)
            return message

        self._follow_providers()
        labels = _labels(scope, route)
        start, error = time.perf_counter(), ""
        outer = propagate.extract(scope, getter=_HEADERS)
        span = self._tracer.start_span(
            _name(labels),
            context=outer,
            kind=SpanKind.SERVER,
            attributes={**labels, **_addresses(scope), semconv.URL_PATH: excerpt(scope["path"], _MAX_PATH)},
        )
        token = context.attach(trace.set_span_in_context(span, outer))
        try:
            await self._app(scope, observed_receive, observed_send)
            error = str(status) if status is not None and status >= _SERVER_ERROR else ""
        except Exception as exception:
            status, error = status or _SERVER_ERROR, error_type_of(exception)
            raise
        finally:
            is_left = has_left and status is None  # a later status is that of an answer
            if is_left:
                status, error = _CLIENT_LEFT, "client_disconnected"
            result: dict[str, AttributeValue] = {}
            if status is not None:
                result[semconv.HTTP_RESPONSE_STATUS_CODE] = status
            if error:
                result[semconv.ERROR_TYPE] = error
            if error and not is_left:  # the server has not failed
                span.set_status(StatusCode.ERROR)
            span.set_attributes(result)
            self._duration.record(time.perf_counter() - start, {**labels, **result})
            context.detach(token)
            span.end()

    def _route_of(self, scope: Scope) -> str | None:
        """Return the template of the path, which is the same for all ids; None if there is no such endpoint."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        for pattern, template in self._routes:
            if pattern.match(path):
                return template
        return None

    def _follow_providers(self) -> None:
        """Record where the pipeline leads now: an application may configure it at any time."""
        pipeline = complete(self._telemetry)
        tracers = pipeline.tracer_provider or trace.get_tracer_provider()
        meters = pipeline.meter_provider or metrics.get_meter_provider()
        if self._providers != (tracers, meters):
            self._providers = tracers, meters
            self._tracer = tracers.get_tracer(SCOPE, __version__)
            self._duration = instruments_of(meters).by_name[semconv.HTTP_SERVER_DURATION.name]


def _name(labels: Mapping[str, AttributeValue]) -> str:
    method = str(labels[semconv.HTTP_REQUEST_METHOD])
    verb = "HTTP" if method == "_OTHER" else method
    return f"{verb} {labels[semconv.HTTP_ROUTE]!s}" if semconv.HTTP_ROUTE in labels else verb


class _Headers(Getter[Scope]):
    """Getter of the first header of a name of a request, as most requests have none of those of a trace."""

    def get(self, carrier: Scope, key: str) -> list[str] | None:
        value = _header(carrier, key.lower().encode())
        return None if value is None else [value]

    def keys(self, carrier: Scope) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier["headers"]]


_HEADERS: Final = _Headers()


def _header(scope: Scope, name: bytes) -> str | None:
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text
    return None


def _addresses(scope: Scope) -> dict[str, AttributeValue]:
    """Return the attributes of the span about the connection."""
    host, server, client = _header(scope, b"host"), scope.get("server"), scope.get("client")
    # A port follows the last colon, unless that is in the brackets of an IPv6 address.
    name = host.rpartition(":")[0] if host and ":" in host.rpartition("]")[2] else host
    address = excerpt(name, _MAX_PATH).strip("[]") if name else server[0] if server else None
    found = {
        semconv.SERVER_ADDRESS: address,
        semconv.CLIENT_ADDRESS: client[0] if client else None,
        semconv.NETWORK_PROTOCOL_VERSION: scope.get("http_version"),
    }
    return {attribute: value for attribute, value in found.items() if value}


def _labels(scope: Scope, route: str | None) -> dict[str, AttributeValue]:
    method = scope["method"]
    labels: dict[str, AttributeValue] = {
        semconv.HTTP_REQUEST_METHOD: method if method in _METHODS else "_OTHER",
        semconv.URL_SCHEME: scope["scheme"],
    }
    if route is not None:
        labels[semconv.HTTP_ROUTE] = f"{scope.get('root_path', '')}{route}"
    return labels
