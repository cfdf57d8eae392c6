"""The two histograms that the MCP conventions have for clients: of requests, and of sessions."""

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
from pellucid.telemetry import Scope, current_scope

CANCELLED: Final = "cancelled"
"""Value of `error.type` of a request that nobody waits for any longer, because its time is over or its run is."""

Attributes = Mapping[str, AttributeValue]


class Request:
    """Measures one request, in the run that it belongs to.

    Attributes:
        result: Of `tools/call`, once it is there.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.result: object = None
        self._labels: dict[str, AttributeValue] = {semconv.MCP_METHOD_NAME: exchange.method}
        if exchange.tool is not None:
            self._labels |= {semconv.OPERATION_NAME: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: exchange.tool}

    @contextmanager
    def measured(self, known: Callable[[], Attributes]) -> Iterator[None]:
        """Record the time that the context lasts, with what is `known` of the connection before or after."""
        scope, labels = current_scope(), {**self._labels, **known()}
        began = scope.now()
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            labels |= {**known(), **self._error(failure)}
            _record(scope, semconv.MCP_OPERATION_DURATION, began, labels)

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
    """Measures one session, with the telemetry of the run that made it; it may outlive the run."""

    def __init__(self) -> None:
        self._scope = current_scope().detached()
        self._began = 0
        self._known: Attributes = {}

    def begin(self, known: Attributes) -> None:
        """Note that the session was opened, and what is known of the connection."""
        self._began, self._known = self._scope.now(), known

    def end(self, error_type: str | None) -> None:
        """Record its duration, if it was opened. Its exemplar leads nowhere: no span lasts as long."""
        if self._known:
            error = {semconv.ERROR_TYPE: error_type} if error_type is not None else {}
            _record(self._scope, semconv.MCP_SESSION_DURATION, self._began, {**self._known, **error}, Context())


def _record(
    scope: Scope, metric: semconv.Metric, began: int, labels: Attributes, context: Context | None = None
) -> None:
    allowed = {name: value for name, value in labels.items() if name in metric.attributes}
    scope.count(metric, (scope.now() - began) / 1e9, allowed, context)
