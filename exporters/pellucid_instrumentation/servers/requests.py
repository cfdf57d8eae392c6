"""Observation of one MCP message by its server: span, measurements, and what is in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.semconv.resources import PROMPT_NAME
from pellucid.semconv.servers import STREAMS
from pellucid.telemetry import CapturedValue, Scope
from pellucid.telemetry.labels import MAX_LENGTH
from pellucid.text import excerpt
from pellucid.version import __version__
from pellucid_instrumentation.failures import CANCELLED
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.servers.observed import ObservedServer
from pellucid_instrumentation.servers.outcomes import Outcome, failure_in, failure_of, value_of
from pellucid_instrumentation.servers.state import instruments_of

SCOPE: Final = "pellucid.mcp.server"
"""Instrumentation scope of the spans."""

MAX_ID: Final = 128
"""Characters of the id of a request, which the client makes up."""


class Message(NamedTuple):
    """Message as it arrived.

    Attributes:
        method: Method, as the client sent it.
        target: Name of the tool or prompt.
        arguments: Arguments of a tool call.
        request_id: Id; None of a notification, which has no response.
        version: Version of the protocol.
        is_http: Whether it came over HTTP; None if that is not known.
        meta: Its `_meta`.
    """

    method: str
    target: str | None = None
    arguments: Any = None
    request_id: object = None
    version: str | None = None
    is_http: bool | None = None
    meta: Mapping[str, Any] | None = None


class ServedRequest:
    """Observation from the arrival of a message to its result.

    Attributes:
        context: OpenTelemetry context of the handler.
    """

    def __init__(self, server: ObservedServer, message: Message) -> None:
        self._server = server
        self._message = message
        self._scope: Scope = server.scope()
        self._start = time.perf_counter_ns()
        self._method = server.method_label(message.method)
        self._is_call = message.method == "tools/call" and message.target is not None
        self.context = self._parent = _parent_of(message)
        self._span: Span = trace.INVALID_SPAN
        self._content: Any = None
        self._is_open = True
        if (tracer := _tracer_of(self._scope)) is not None:
            self._start_span(tracer)
        if message.request_id is not None and message.method not in STREAMS:
            server.state.started(self, (self._method, self._tool_label()))

    @property
    def is_traced(self) -> bool:
        """Return whether the request has a span."""
        return self._span is not trace.INVALID_SPAN

    @property
    def meta(self) -> dict[str, Any] | None:
        """The message's `_meta` with this span as the caller; None if it said nothing about a trace."""
        given = self._message.meta
        if not given or "traceparent" not in given or not self.is_traced:
            return None
        changed = dict(given)
        propagate.inject(changed, self.context)
        return changed

    def succeeded(self, result: Any) -> None:
        """Record the result, which may say that the tool failed."""
        failure: Outcome | None = None
        if self._is_call:
            failure = guarded(failure_in, result)
            if failure is None:
                self._server.learn_name(self._message.target)
            if self._content is not None:
                guarded(lambda: self._record(semconv.TOOL_CALL_RESULT, value_of(result)))
        elif self._message.method == "tools/list":
            guarded(self._server.learn, result)
        self._end(failure)

    def failed(self, error: BaseException) -> None:
        """Record the error, or the cancellation, that ended the request."""
        self._end(guarded(failure_of, error) or Outcome(type(error).__name__))

    def answered(self, failure: Outcome) -> None:
        """Record an error that the server answered with."""
        self._end(failure)

    def _start_span(self, tracer: Tracer) -> None:
        scope, message = self._scope, self._message
        ambient = trace.get_current_span().get_span_context()
        parent = trace.get_current_span(self._parent).get_span_context()
        links = [Link(ambient)] if ambient.is_valid and ambient.trace_id != parent.trace_id else None
        target = excerpt(message.target, MAX_LENGTH) if message.target is not None else None
        attributes = self._attributes()
        if message.request_id is not None:
            attributes[semconv.JSONRPC_REQUEST_ID] = excerpt(str(message.request_id), MAX_ID)
        if target is not None:
            attributes[semconv.TOOL_NAME if self._is_call else PROMPT_NAME] = target
        span = tracer.start_span(
            f"{self._method} {target}" if target is not None else self._method,
            self._parent,
            SpanKind.SERVER,
            attributes,
            links,
            start_time=scope.now(),
        )
        self._span = span
        self.context = trace.set_span_in_context(span, self._parent)
        if self._is_call and span.is_recording() and scope.policy.mode != "off":
            self._content = scope.capturer.content(span)
            self._record(semconv.TOOL_CALL_ARGUMENTS, message.arguments or {})

    def _record(self, attribute: str, value: Any) -> None:
        def record(capturer: Any) -> CapturedValue:
            recorded: CapturedValue = capturer.value(value)
            return recorded

        is_input = attribute == semconv.TOOL_CALL_ARGUMENTS
        digest = semconv.INPUT_DIGEST if is_input else semconv.OUTPUT_DIGEST
        size = semconv.INPUT_BYTES if is_input else semconv.OUTPUT_BYTES
        self._scope.guarded("recording", self._content.add, attribute, record, digest, size)

    def _attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes that span and measurement share, but for the tool."""
        message = self._message
        attributes: dict[str, AttributeValue] = {semconv.MCP_METHOD_NAME: self._method, **self._server.attributes}
        if self._is_call:
            attributes[semconv.OPERATION_NAME] = semconv.EXECUTE_TOOL
        if message.version is not None:
            attributes[semconv.MCP_PROTOCOL_VERSION] = message.version
        attributes.update(transport_of(message.is_http))
        return attributes

    def _tool_label(self) -> str | None:
        return self._server.tool_label(self._message.target) if self._is_call else None

    def _end(self, outcome: Outcome | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._server.state.ended(self)
        seconds = (time.perf_counter_ns() - self._start) / 1e9
        facts: dict[str, AttributeValue] = {}
        if outcome is not None:
            facts[semconv.ERROR_TYPE] = outcome.error_type
            if outcome.code is not None:
                facts[semconv.RPC_RESPONSE_STATUS_CODE] = outcome.code
        try:
            if self._scope.is_measured:
                self._scope.guarded("metric", self._measure, seconds, facts)
        finally:
            if self.is_traced:
                self._scope.guarded("span", self._end_span, outcome, facts)

    def _measure(self, seconds: float, facts: Mapping[str, AttributeValue]) -> None:
        instruments = self._scope.instruments
        own = instruments_of(instruments)
        labels = {**self._attributes(), **facts}
        tool = self._tool_label()
        if tool is not None:
            labels[semconv.TOOL_NAME] = tool
        own.duration.record(seconds, instruments.labels.bounded(labels), context=self.context)
        objective = self._server.state.objective
        message = self._message
        if objective is not None and message.request_id is not None and message.method not in STREAMS:
            subject = {semconv.MCP_SERVER_NAME: self._server.name, semconv.MCP_METHOD_NAME: self._method}
            if tool is not None:
                subject[semconv.TOOL_NAME] = tool
            # 0 creates the series, so that its first increase is visible.
            own.late.add(int(seconds > objective), instruments.labels.bounded(subject), context=self.context)

    def _end_span(self, outcome: Outcome | None, facts: Mapping[str, AttributeValue]) -> None:
        span, scope = self._span, self._scope
        try:
            if not span.is_recording():
                return
            content = self._content.attributes if self._content is not None else {}
            span.set_attributes({**facts, **content})
            # A cancelled request is no failure of the server.
            if outcome is not None and outcome.error_type != CANCELLED:
                span.set_status(StatusCode.ERROR, scope.text_of(outcome.error) if outcome.error is not None else None)
        finally:
            span.end(end_time=scope.now())


def transport_of(is_http: bool | None) -> dict[str, AttributeValue]:
    """Return the attributes of a transport."""
    if is_http is None:
        return {}
    if is_http:
        return {semconv.NETWORK_TRANSPORT: "tcp", semconv.NETWORK_PROTOCOL_NAME: "http"}
    return {semconv.NETWORK_TRANSPORT: "pipe"}


_known: Final[list[tuple[TracerProvider, Tracer]]] = []
"""Latest provider, and its tracer."""


def _tracer_of(scope: Scope) -> Tracer | None:
    """Return what makes the spans of servers, which are of no phase; None if nothing does."""
    if scope.tracer is None:
        return None
    provider = scope.pipeline.tracer_provider or trace.get_tracer_provider()
    if not _known or _known[0][0] is not provider:
        _known[:] = [(provider, provider.get_tracer(SCOPE, __version__))]
    return _known[0][1]


def _parent_of(message: Message) -> Context:
    """Return the context of the client, or else the current one."""
    current = otel_context.get_current()
    if not message.meta:
        return current
    found = guarded(propagate.extract, message.meta, current)
    if found is None or not trace.get_current_span(found).get_span_context().is_valid:
        return current
    return found
