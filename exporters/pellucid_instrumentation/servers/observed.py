"""One instrumented server: what its telemetry says about it, and the names that it has."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.telemetry import Pipeline, Scope, shared_scope
from pellucid.telemetry.labels import MAX_LENGTH
from pellucid.telemetry.scope import SHARED_FOR
from pellucid_instrumentation.servers.outcomes import tools_in
from pellucid_instrumentation.servers.state import STATES, instruments_of

METHODS: Final = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/progress",
        "notifications/roots/list_changed",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tools/call",
        "tools/list",
    }
)
"""Methods of the protocol; others are labels if the server handles them."""

MOST_NAMES: Final = 1000
"""Names of tools that are remembered."""


class ObservedServer:
    """Facts about an instrumented server.

    Args:
        name: Its name.
        version: Its version, if it has one.
        handles: Returns whether it handles a method.
        has_tool: Returns whether it has a tool, as far as it can tell without asking anybody.
        telemetry: Destination; without, the default one.

    Attributes:
        name: Its name.
        attributes: Attributes of each span and measurement.
        state: Open sessions and requests.
    """

    def __init__(
        self,
        name: str,
        version: str | None,
        handles: Callable[[str], bool],
        has_tool: Callable[[str], bool],
        telemetry: Pipeline | None = None,
    ) -> None:
        self.name = name[:MAX_LENGTH] or "mcp"
        self.attributes: dict[str, AttributeValue] = {semconv.MCP_SERVER_NAME: self.name}
        if version:
            self.attributes[semconv.MCP_SERVER_VERSION] = version[:MAX_LENGTH]
        self.state = STATES.of(self.name)
        self._handles = handles
        self._has_tool = has_tool
        self._tools: set[str] = set()
        self._telemetry = telemetry
        self._scope: tuple[Scope, float] | None = None

    def scope(self) -> Scope:
        """Return the scope of a message."""
        if self._telemetry is None:
            # A server that was started by a run may outlast that run.
            return contextvars.Context().run(shared_scope)
        now = time.monotonic()
        if self._scope is None or now > self._scope[1]:
            self._scope = Scope(pipeline=self._telemetry), now + SHARED_FOR
        return self._scope[0]

    def method_label(self, method: str) -> str:
        """Return a method, or `_OTHER` for one that a client made up."""
        return method if method in METHODS or self._handles(method) else semconv.OTHER

    def tool_label(self, name: str | None) -> str:
        """Return the name of a tool, or `_OTHER` for one that the server does not have."""
        return name if name is not None and (name in self._tools or self._has_tool(name)) else semconv.OTHER

    def learn(self, listing: Any) -> None:
        """Remember the tools that the server lists."""
        if len(self._tools) < MOST_NAMES:
            self._tools |= tools_in(listing)

    def learn_name(self, name: str | None) -> None:
        """Remember a tool that has worked."""
        if name is not None and len(self._tools) < MOST_NAMES:
            self._tools.add(name)


class ServerSession:
    """A session with a client, from its start to its end."""

    def __init__(self, server: ObservedServer) -> None:
        self._server = server
        self._start = time.perf_counter_ns()
        self._facts: Mapping[str, AttributeValue] = {}
        self._is_open = True
        server.state.opened(self)

    def note(self, facts: Mapping[str, AttributeValue]) -> None:
        """Note the version of the protocol and the transport, which its requests tell."""
        self._facts = facts

    def close(self, error_type: str | None = None) -> None:
        """Record the end."""
        if not self._is_open:
            return
        self._is_open = False
        self._server.state.closed(self)
        scope = self._server.scope()
        if not scope.is_measured:
            return
        labels = {**self._server.attributes, **self._facts}
        if error_type is not None:
            labels[semconv.ERROR_TYPE] = error_type
        seconds = (time.perf_counter_ns() - self._start) / 1e9
        instruments = scope.instruments
        instruments_of(instruments).sessions.record(seconds, instruments.labels.bounded(labels), context=Context())
