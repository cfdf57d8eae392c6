"""What a provider has in one event loop: a connection, a listing, and the memory of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from mcp import Client
from mcp_types import ListToolsResult
from mcp_types import Tool as ServerTool
from opentelemetry import propagate, trace
from opentelemetry.util.types import AttributeValue
from pydantic import ValidationError

from pellucid import semconv
from pellucid.concurrency.race import OutOfTime
from pellucid.concurrency.single_flight import Flight
from pellucid.context import DiscoveryContext
from pellucid.errors import DiscoveryBackoff, DiscoveryError, DiscoveryTimeout, InvalidCatalog
from pellucid.failures import describe
from pellucid.mcp.connection import Connection
from pellucid.mcp.exchange import Exchange, Refused, ServerGone, kind_of
from pellucid.mcp.invalid_tools import Broken, first_problem, set_aside
from pellucid.mcp.transports import Target
from pellucid.providers.hub import backoff
from pellucid.telemetry import current_scope
from pellucid.text import excerpt
from pellucid.tools import Tool

MAX_PAGES: Final = 1000
Tools: TypeAlias = tuple[Tool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a provider connects and lists; see `MCPProvider`.

    Attributes:
        build: Makes tools of what a server lists.
        attributes: Of the spans of round trips.
    """

    id: str
    target: Target
    timeout: float | None
    ttl: float | None
    build: Callable[[list[ServerTool | Broken]], Tools]
    attributes: Mapping[str, AttributeValue]
    opened: Callable[[Connection], None]
    ended: Callable[[Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """A listing. Attributes: lifetime: seconds that it is good for."""

    listed: list[ServerTool | Broken]
    tools: Tools
    lifetime: float


class Site:
    """Connects and lists within one event loop, each once at a time however many ask."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._connection: Connection | None = None
        self._connecting: Flight[Connection] | None = None
        self._fetching: Flight[_Listing] | None = None
        self._listing: _Listing | None = None
        self._good_until = 0.0
        self._failures = 0
        self._error: BaseException | None = None
        self._asleep_until = 0.0

    async def list_tools(self, ctx: DiscoveryContext) -> Tools:
        """Return the listing that is still good, or wait for a new one."""
        if self._listing is not None and time.monotonic() < self._good_until:
            ctx.report(cache="hit")
            return self._listing.tools
        flight = self._fetching
        trip: dict[str, AttributeValue] = {}
        if flight is None:
            self._check_awake()
            ctx.report(cache="miss")
            flight = self._flight(self._listed)
            self._fetching = flight
            flight.start(partial(self._fetch, trip))
        else:
            ctx.report(cache="joined", link=flight.span)
        try:
            await flight.wait()
        finally:
            ctx.describe(trip)
        if flight.error is not None:
            raise self._failed(flight.error) from _cause(flight.error)
        return flight.result.tools

    async def connection(self) -> Connection:
        """Return the connection, or wait for a new one.

        Raises:
            DiscoveryError: the server cannot be reached, or could not be a moment ago.
        """
        if self._connection is not None and self._connection.usable:
            return self._connection
        if self._connecting is None:
            self._check_awake()
        return await self._open()

    async def _open(self) -> Connection:
        if self._connection is not None and self._connection.usable:
            return self._connection
        flight = self._connecting
        if flight is None:
            flight = self._flight(self._connected)
            self._connecting = flight
            flight.start(self._connect)
        await flight.wait()
        if flight.error is not None:
            raise self._failed(flight.error) from _cause(flight.error)
        return flight.result

    def invalidate(self) -> None:
        """List anew for whoever asks from now on."""
        self._good_until = 0.0
        self._fetching = None

    def _flight(self, settled: Callable[[Any], None]) -> Flight[Any]:
        span = trace.get_current_span().get_span_context()
        return Flight(span=span, timeout=self._plan.timeout, held=False, settled=settled)

    async def _connect(self) -> Connection:
        connection = Connection(self._plan.target, changed=self.invalidate, ended=self._plan.ended)
        self._plan.opened(connection)
        try:
            await connection.open()
        except Exception as error:
            failure = DiscoveryError(self._plan.id, f"cannot connect to the MCP server: {connection.explain(error)}")
            raise _typed(failure, error) from error
        return connection

    def _connected(self, flight: Flight[Connection]) -> None:
        self._connecting = None
        if flight.error is None:
            was_failing = self._connection is not None and self._connection.is_failing
            self._connection = flight.result
            if not was_failing:  # else only a listing shows that it helped
                self._awake()
        elif not flight.abandoned:
            self._sleep(flight.error)

    async def _fetch(self, trip: dict[str, AttributeValue]) -> _Listing:
        """List. What becomes known of the round trip is noted in `trip` at once, since it may be cut short."""
        hubs = current_scope().instruments.hubs
        with hubs.fetching(self._plan.id):
            reused = self._connection is not None and self._connection.usable
            try:
                listing = await self._list(await self._open(), trip)
            except ServerGone:
                if not reused:
                    raise
                # It went away while nobody was looking: that says nothing of the server as it is now.
                listing = await self._list(await self._open(), trip)
        hubs.succeeded(self._plan.id)
        return listing

    def _listed(self, flight: Flight[_Listing]) -> None:
        """Keep what a fetch came to, unless the tools changed meanwhile."""
        current = self._fetching is flight
        if current:
            self._fetching = None
        error = flight.error
        if error is None:
            if current:
                self._listing = flight.result
                self._good_until = time.monotonic() + flight.result.lifetime
            self._awake()
        elif not flight.abandoned:
            if isinstance(error, InvalidCatalog) or not isinstance(error, DiscoveryError):
                self._sleep(error)  # else it could not connect, which was counted already
            if isinstance(error, TimeoutError) and self._connection is not None:
                self._connection.retire(semconv.TIMEOUT)  # it may be half dead; requests under way are left alone

    async def _list(self, connection: Connection, trip: dict[str, AttributeValue]) -> _Listing:
        trip.update({**self._plan.attributes, **connection.attributes})
        try:
            listed, said = await self._pages(connection, trip)
        except Refused as error:
            if error.code is not None:
                trip[semconv.RPC_RESPONSE_STATUS_CODE] = str(error.code)
            raise
        last = self._listing
        # The same objects, if they are equal, so that nobody needs to look at them again.
        tools = last.tools if last is not None and last.listed == listed else self._plan.build(listed)
        return _Listing(listed=listed, tools=tools, lifetime=self._lifetime(connection, said))

    async def _pages(
        self, connection: Connection, trip: dict[str, AttributeValue]
    ) -> tuple[list[ServerTool | Broken], float]:
        """Return all pages, and the shortest time that one of them is good for."""
        tools: list[ServerTool | Broken] = []
        seen: set[str] = set()
        said: list[int] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await connection.request(Exchange("tools/list", trip.__setitem__), partial(_page, cursor=cursor))
            except ValidationError as error:
                raise InvalidCatalog(
                    self._plan.id,
                    f"the server's tool list is one that the protocol does not allow: {first_problem(error)}",
                ) from error
            tools += [*page.tools, *set_aside(page)]
            said.append(page.ttl_ms)
            cursor = page.next_cursor
            if not cursor:
                return tools, min(said) / 1000
            if cursor in seen:
                raise InvalidCatalog(
                    self._plan.id, f"the server repeats the cursor {excerpt(repr(cursor))} of its tool list for ever"
                )
            seen.add(cursor)
        raise InvalidCatalog(self._plan.id, f"the server's tool list has more than {MAX_PAGES} pages")

    def _lifetime(self, connection: Connection, said: float) -> float:
        if said > 0:
            return said
        if self._plan.ttl is not None:
            return self._plan.ttl
        return float("inf") if connection.notified and not connection.modern else 0.0

    def _failed(self, error: BaseException) -> DiscoveryError:
        """Return a new error for each caller: one exception raised in many tasks mixes up their tracebacks."""
        name = self._plan.id
        if isinstance(error, OutOfTime):
            return DiscoveryTimeout(name, f"the MCP server did not answer within {self._plan.timeout:g} s")
        if isinstance(error, DiscoveryError):
            return _typed(type(error)(name, error.problem), error)
        if isinstance(error, Refused):
            return _typed(DiscoveryError(name, f"the MCP server {error}"), error)
        return _typed(DiscoveryError(name, str(error) if isinstance(error, ServerGone) else describe(error)), error)

    def _check_awake(self) -> None:
        """Raise DiscoveryBackoff while a server that failed is left alone."""
        wait = self._asleep_until - time.monotonic()
        if wait > 0 and self._error is not None:
            raise DiscoveryBackoff(self._plan.id, wait, self._error) from self._error

    def _sleep(self, error: BaseException) -> None:
        self._error = error
        self._failures += 1
        self._asleep_until = time.monotonic() + backoff(self._failures, error)

    def _awake(self) -> None:
        self._failures, self._asleep_until, self._error = 0, 0.0, None


async def _page(client: Client, *, cursor: str | None) -> ListToolsResult:
    return await client.list_tools(cursor=cursor, meta=trace_context())


def trace_context() -> Any:
    """Return the current trace context as a request's `_meta`; in-process servers are sent no other."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


def _cause(error: BaseException) -> BaseException:
    """Return the server's own error."""
    if isinstance(error, DiscoveryError):
        error = error.__cause__ or error
    return error.__cause__ or error if isinstance(error, Refused) else error


def _typed(failure: DiscoveryError, error: BaseException) -> DiscoveryError:
    """Take over what is known of the error that an answer or a connection came to."""
    if isinstance(error, Refused | ServerGone) or (isinstance(error, DiscoveryError) and error.error_type):
        failure.error_type = error.error_type
    failure.error_kind = kind_of(error)
    if isinstance(error, Refused | DiscoveryError):
        failure.status, failure.retry_after = error.status, error.retry_after
    return failure
