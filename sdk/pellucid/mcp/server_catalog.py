"""The cached tools of an MCP server, and the connection that listings and tool calls share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from opentelemetry import trace

from pellucid import semconv
from pellucid.concurrency.single_flight import Flight
from pellucid.errors import DiscoveryError
from pellucid.mcp.connection import Connection
from pellucid.mcp.listing import Plan, ServerListing, cause_of, failure_of, with_details
from pellucid.mcp.metrics import measured_connect
from pellucid.providers.hub import DiscoveryProvider

_KEY: Final = "tools"
"""The only key: a server lists the same tools for every caller."""


class ServerCatalog(DiscoveryProvider):
    """The cached tools and the connection of a server in one event loop.

    Concurrent callers share one attempt to connect. After a failure, listings and tool calls observe the same back-off.

    Args:
        plan: Options of the provider.
        opened: Called with each new connection.
        ended: Called with each connection that has ended.
    """

    def __init__(
        self, plan: Plan, *, opened: Callable[[Connection], None], ended: Callable[[Connection], None]
    ) -> None:
        super().__init__(
            ServerListing(plan, self._connect, lambda: self._usable is not None),
            id=plan.id,
            ttl=plan.lifetimes.ttl or 0.0,
            key=lambda _ctx: _KEY,
            objective=plan.objective,
            timeout=plan.timeout,
            stale_if_error=plan.lifetimes.stale_if_error,
            stale_while_revalidate=plan.lifetimes.stale_while_revalidate,
            patience=plan.patience,
            tell_model=plan.tell_model,
            max_entries=1,
            on_invalid="quarantine",  # `plan.build` rejects an invalid list unless the provider quarantines
        )
        self.kind = plan.target.kind
        self._plan = plan
        self._opened = opened
        self._ended = ended
        self._connection: Connection | None = None
        self._connecting: Flight[Connection] | None = None

    async def connection(self) -> Connection:
        """Return the connection, or wait for a new one.

        Raises:
            DiscoveryError: the server cannot be reached, or its back-off after a failure has not ended.
        """
        if self._usable is None and self._connecting is None and (refusal := self._back_off(_KEY)) is not None:
            raise refusal
        return await self._connect()

    def release(self) -> None:
        """Close the connection once its requests are done."""
        if self._connection is not None:
            self._connection.retire()

    @property
    def _usable(self) -> Connection | None:
        return self._connection if self._connection is not None and self._connection.usable else None

    async def _connect(self) -> Connection:
        if (connection := self._usable) is not None:
            return connection
        flight = self._connecting
        if flight is None:
            span = trace.get_current_span().get_span_context()
            flight = Flight(span=span, timeout=self.timeout, held=False, settled=self._connected)
            self._connecting = flight
            flight.start(self._open)
        await flight.wait()
        if flight.error is not None:
            raise self._failed(flight.error)
        return flight.result

    async def _open(self) -> Connection:
        plan = self._plan
        expire = partial(self._expire, _KEY)
        connection = Connection(
            plan.target,
            limits=plan.limits,
            elicitor=plan.elicitor,
            protocol=plan.protocol,
            expire=expire,
            ended=self._ended,
        )
        self._opened(connection)
        try:
            with measured_connect(self.id, self.kind):
                await connection.open()
        except Exception as error:
            failure = DiscoveryError(self.id, f"cannot connect to {plan.target.title}: {connection.explain(error)}")
            raise with_details(failure, error) from error
        return connection

    def _connected(self, flight: Flight[Connection]) -> None:
        self._connecting = None
        if flight.error is None:
            was_failing = self._connection is not None and self._connection.is_failing
            self._connection = flight.result
            if not was_failing:  # else only a successful listing ends the back-off
                self._failures.pop(_KEY)
        elif not flight.abandoned:
            super()._note_failure(_KEY, flight.error)

    def _note_failure(self, key: Hashable, error: BaseException) -> None:
        """Start the back-off after a failed listing. `_connected` has counted a failure to connect already."""
        cause, previous = cause_of(error), self._failures.get(key)
        if previous is None or cause_of(previous.error) is not cause:
            super()._note_failure(key, error)
        if isinstance(cause, TimeoutError) and self._connection is not None:
            self._connection.retire(semconv.TIMEOUT)  # it may be half-open; active requests continue

    def _failed(self, error: BaseException) -> DiscoveryError:
        failure = failure_of(self._plan, error)
        failure.__cause__ = cause_of(error)
        return failure
