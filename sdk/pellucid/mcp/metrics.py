"""Durations of connecting, and the two client histograms of the MCP conventions: those of requests and of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from mcp_types import CallToolResult
from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.failures import error_type_of
from pellucid.mcp.exchange import Exchange, Refused, ServerGone
from pellucid.telemetry import current_scope

CANCELLED: Final = "cancelled"
"""Value of `error.type` of a request that was cancelled, by a timeout or because its run ended."""

Attributes = Mapping[str, AttributeValue]


class Request:
    """Duration of one request, recorded in the run that made it.

    Attributes:
        result: The response, once it has arrived; a failed `tools/call` sets `error.type`.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.result: object = None
        self._labels: dict[str, AttributeValue] = {semconv.MCP_METHOD_NAME: exchange.method}
        if exchange.tool is not None:
            self._labels |= {semconv.OPERATION_NAME: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: exchange.tool}

    @contextmanager
    def measured(self, connection: Callable[[], Attributes]) -> Iterator[None]:
        """Record the duration of the context, with the `connection` attributes that are known before and after it."""
        scope, labels = current_scope(), {**self._labels, **connection()}
        start = scope.now()
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            labels |= {**connection(), **self._error(failure)}
            scope.measure(semconv.MCP_OPERATION_DURATION, start, labels)

    def _error(self, failure: BaseException | None) -> Attributes:
        if isinstance(failure, Refused) and failure.code is not None:
            return {semconv.ERROR_TYPE: failure.error_type, semconv.RPC_RESPONSE_STATUS_CODE: str(failure.code)}
        if isinstance(failure, Refused | ServerGone):
            return {semconv.ERROR_TYPE: failure.error_type}
        if failure is not None:
            return {semconv.ERROR_TYPE: error_type_of(failure) if isinstance(failure, Exception) else CANCELLED}
        if isinstance(self.result, CallToolResult) and self.result.is_error:
            return {semconv.ERROR_TYPE: "tool_error"}
        return {}


class Session:
    """Duration of one session, recorded with the telemetry of the run that opened it; it may outlive the run."""

    def __init__(self) -> None:
        self._scope = current_scope().detached()
        self._start = 0
        self._labels: Attributes = {}

    def start(self, labels: Attributes) -> None:
        """Start the measurement, with the attributes of the connection."""
        self._start, self._labels = self._scope.now(), labels

    def end(self, error_type: str | None) -> None:
        """Record the duration if the session was opened; without an exemplar, because no span lasts as long."""
        if self._labels:
            error = {semconv.ERROR_TYPE: error_type} if error_type is not None else {}
            self._scope.measure(semconv.MCP_SESSION_DURATION, self._start, {**self._labels, **error}, Context())


@contextmanager
def measured_connect(provider_id: str, kind: str) -> Iterator[None]:
    """Record the time to connect, in the run that needs the connection; not if it was cancelled."""
    scope = current_scope()
    start = scope.now()
    labels = {semconv.PROVIDER_ID: provider_id, semconv.PROVIDER_KIND: kind}
    try:
        yield
    except Exception as error:
        scope.measure(semconv.MCP_CONNECT_DURATION, start, {**labels, semconv.ERROR_TYPE: error_type_of(error)})
        raise
    scope.measure(semconv.MCP_CONNECT_DURATION, start, labels)
