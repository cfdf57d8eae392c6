"""Observation of one request: a page of a listing, a tool call, or another one."""

from __future__ import annotations

from typing import Any, Protocol

from anyio import get_current_task
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import ToolError
from pellucid.telemetry import DISCOVERY, DISPATCH, Entered, HubRequest, Scope, boundary, shared_scope
from pellucid_instrumentation import messages
from pellucid_instrumentation.failures import code_of, error_type_of, failed_call, failed_listing
from pellucid_instrumentation.foreign_spans import span_of_call
from pellucid_instrumentation.transports import Link

VALIDATION = "validation"
"""Value of `pellucid.discovery.cache` of a listing that the MCP SDK makes to check the result of a call."""


class Peer(Protocol):
    """Facts about the server of a session.

    Attributes:
        link: The connection.
        attributes: Span attributes of requests.
        waiting: Listings whose next page has not been requested.
    """

    link: Link
    attributes: dict[str, AttributeValue]
    waiting: list[Listing]


class Exchange:
    """Observation of a request. It also records `mcp.client.operation.duration`.

    Attributes:
        context: OpenTelemetry context in which the request is sent.
    """

    def __init__(self, peer: Peer, method: str, tool: str | None = None) -> None:
        self.peer = peer
        self.scope: Scope = shared_scope()
        self.context: Context = otel_context.get_current()
        self._start = self.scope.now()
        self._labels: dict[str, AttributeValue] = {semconv.MCP_METHOD_NAME: method}
        if tool is not None:
            self._labels |= {semconv.OPERATION_NAME: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: tool}

    def identified(self, request_id: object) -> None:
        """Record the id that the request got; of requests without a span, nowhere."""

    def succeeded(self, result: Any) -> None:
        """Record the response."""
        self.measure("tool_error" if messages.is_error(result) else None)

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the request."""
        code = code_of(error)
        self.measure(error_type_of(error), str(code) if code is not None else None)

    def measure(self, error_type: str | None = None, code: str | None = None) -> None:
        """Record the duration of the request."""
        errors = {semconv.ERROR_TYPE: error_type, semconv.RPC_RESPONSE_STATUS_CODE: code}
        labels = self._labels | self.peer.attributes | {name: value for name, value in errors.items() if value}
        self.scope.measure(semconv.MCP_OPERATION_DURATION, self._start, labels, self.context)


class Listing:
    """Listing of a server's tools, of one or more pages, with its boundary.

    Attributes:
        cursor: Cursor of the next page; None before the first one and after the last one.
        task: Id of the task that has received the latest page.
    """

    def __init__(self, peer: Peer, *, is_validation: bool) -> None:
        link = peer.link
        self.scope: Scope = shared_scope()
        self._link = link
        self._is_validation = is_validation
        self._tools = 0
        self._arrived = 0
        self.cursor: str | None = None
        self.task: int | None = None
        objective = None if is_validation else link.hub.objective
        self._entered = Entered(
            boundary(
                self.scope,
                DISCOVERY,
                link.id,
                provider_id=link.id,
                provider_kind=link.endpoint.kind,
                server_address=link.endpoint.address,
                server_port=link.endpoint.port,
                cache=VALIDATION if is_validation else "none",
                objective=objective,
            )
        )
        self.context = self._entered.boundary.context
        self._request: HubRequest | None = None

    def identified(self, request_id: object) -> None:
        """Record the id of the request for a page; the last one stays."""
        self._entered.boundary.attributes({semconv.JSONRPC_REQUEST_ID: str(request_id)})

    def sent(self) -> None:
        """Note the request for a page; the first one starts that to the hub."""
        if self._request is not None:
            self._request.sent_again()
            return
        link = self._link
        self._entered.run(self._send, link.id, link.endpoint.kind, link.hub.objective)

    def _send(self, provider_id: str, kind: str, objective: float | None) -> None:
        self._request = HubRequest(self.scope, provider_id, kind, objective)

    def add(self, peer: Peer, result: Any) -> None:
        """Add a page. The listing waits for the next one, unless it is the last, or the only one that is checked."""
        if self._request is not None:
            self._request.answered()
        self._tools += len(result.tools)
        self._arrived = self.scope.now()
        self.cursor = messages.next_cursor(result)
        self._entered.boundary.attributes(peer.attributes | {semconv.MCP_METHOD_NAME: "tools/list"})
        if self.cursor is None or self._is_validation:
            self._succeed()
        else:
            self.task = get_current_task().id
            peer.waiting.append(self)

    def abandon(self) -> None:
        """End a listing of which no further page was requested, at the time of its last one."""
        self._entered.boundary.end_at(self._arrived)
        self._succeed()

    def fail(self, peer: Peer, error: BaseException) -> None:
        """End the listing with an error."""
        self._entered.boundary.attributes(peer.attributes | {semconv.MCP_METHOD_NAME: "tools/list"})
        failure = failed_listing(self._link.id, error)
        self._end_request(failure)
        self._entered.end(failure)

    def _end_request(self, error: BaseException | None) -> None:
        if self._request is not None:
            is_abandoned = error is not None and not isinstance(error, Exception)
            self._request.end(error, is_abandoned=is_abandoned)
            self._request.note(self._entered.boundary)

    def _succeed(self) -> None:
        self._end_request(None)
        if not self._is_validation:
            self.scope.instruments.hubs.set(semconv.CATALOG_SIZE, self._link.id, self._tools)
        self._entered.boundary.note(tool_count=self._tools)
        self._entered.end()


class Page(Exchange):
    """Observation of a `tools/list`."""

    def __init__(self, peer: Peer, listing: Listing) -> None:
        super().__init__(peer, "tools/list")
        self._listing = listing
        self.context = listing.context
        listing.sent()

    def identified(self, request_id: object) -> None:
        """Record the id that the request got."""
        self._listing.identified(request_id)

    def succeeded(self, result: Any) -> None:
        """Record the response."""
        super().succeeded(result)
        self._listing.add(self.peer, result)

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the request."""
        super().failed(error)
        self._listing.fail(self.peer, error)


class Call(Exchange):
    """Observation of a `tools/call` within a span of its own."""

    def __init__(self, peer: Peer, tool: str, params: Any) -> None:
        super().__init__(peer, "tools/call", tool)
        link = peer.link
        b = boundary(
            self.scope,
            DISPATCH,
            tool,
            provider_id=link.id,
            tool_name=tool,
            tool_type="function",
            dispatch_mode="mcp",
            source="mcp",
            source_place=link.id,
        )
        b.input(params.arguments or {})
        self._entered = Entered(b)
        self.context = b.context

    def identified(self, request_id: object) -> None:
        """Record the id that the request got."""
        self._entered.boundary.attributes({semconv.JSONRPC_REQUEST_ID: str(request_id)})

    def succeeded(self, result: Any) -> None:
        """Record the response."""
        super().succeeded(result)
        b = self._entered.boundary
        b.capture_output(lambda capturer: capturer.value(messages.value_of(result)))
        if messages.is_error(result):
            b.fail(ToolError(messages.text_of(result)))
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the request."""
        super().failed(error)
        self._end(failed_call(error))

    def _end(self, error: BaseException | None) -> None:
        self._entered.boundary.attributes(self.peer.attributes | {semconv.MCP_METHOD_NAME: "tools/call"})
        self._entered.end(error)


class ForeignCall(Exchange):
    """Observation of a `tools/call` that has a span of a framework, or of ours, which is completed."""

    def __init__(self, peer: Peer, tool: str, span: Span) -> None:
        super().__init__(peer, "tools/call", tool)
        self._span = span
        self._is_ours = getattr(getattr(span, "instrumentation_scope", None), "name", None) == semconv.SCOPE
        self._tool = tool
        self._set(
            {
                semconv.PROVIDER_ID: peer.link.id,
                semconv.TOOL_SOURCE: "mcp",
                semconv.TOOL_SOURCE_PLACE: peer.link.id,
                semconv.DISPATCH_MODE: "mcp",
            }
        )

    def identified(self, request_id: object) -> None:
        """Record the id that the request got."""
        self._set({semconv.JSONRPC_REQUEST_ID: str(request_id)})

    def measure(self, error_type: str | None = None, code: str | None = None) -> None:
        """Record the duration of the request, and of the call unless our span of it does."""
        super().measure(error_type, code)
        self._set(self.peer.attributes | {semconv.MCP_METHOD_NAME: "tools/call"})
        if self._is_ours:
            return
        labels: dict[str, AttributeValue] = {
            semconv.TOOL_NAME: self._tool,
            semconv.TOOL_TYPE: "function",
            semconv.PROVIDER_ID: self.peer.link.id,
            semconv.TOOL_SOURCE: "mcp",
        }
        if error_type is not None and error_type != "cancelled":
            labels[semconv.ERROR_TYPE] = error_type
            self._set({semconv.ERROR_TYPE: error_type})
        self.scope.measure(semconv.TOOL_DURATION, self._start, labels, self.context)

    def _set(self, attributes: dict[str, AttributeValue]) -> None:
        """Set the attributes that the span does not have."""
        if self._span.is_recording():
            known = getattr(self._span, "attributes", None) or {}
            self._span.set_attributes({name: value for name, value in attributes.items() if name not in known})


def call_of(peer: Peer, params: Any) -> Exchange:
    """Return the observation of a tool call."""
    tool: str = params.name
    span = span_of_call(tool)
    return Call(peer, tool, params) if span is None else ForeignCall(peer, tool, span)
