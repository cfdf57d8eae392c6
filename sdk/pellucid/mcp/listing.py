"""The tool list of an MCP server: its pages, their lifetime, and the errors of a failed listing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from mcp import Client
from mcp_types import ListToolsResult
from mcp_types import Tool as ServerTool
from opentelemetry import propagate
from pydantic import ValidationError

from pellucid import semconv
from pellucid.concurrency.computing import compute
from pellucid.concurrency.race import OutOfTime
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError, DiscoveryError, DiscoveryTimeout, InvalidCatalog
from pellucid.failures import describe
from pellucid.mcp.connection import Connection
from pellucid.mcp.credentials import HeadersFailed
from pellucid.mcp.elicitation import Elicitor
from pellucid.mcp.exchange import LISTING, ByteLimits, Exchange, Refused, ServerGone, kind_of
from pellucid.mcp.handshake import Negotiation
from pellucid.mcp.invalid_tools import InvalidTool, first_problem, invalid_tools
from pellucid.mcp.transports import Target
from pellucid.providers.fetches import patience_of
from pellucid.providers.option_checks import check_not_negative
from pellucid.providers.provider import HubCatalog, Tools
from pellucid.response_limits import ResponseRefused
from pellucid.text import excerpt
from pellucid.tools.catalog import LARGE_CATALOG

MAX_PAGES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Seconds for which a listing is served, fresh or old; `MCPProvider` documents them."""

    ttl: float | None
    stale_if_error: float
    stale_while_revalidate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Options by which a provider connects and lists; `MCPProvider` documents the options.

    Attributes:
        protocol: `legacy` for a protocol before 2026-07-28.
        elicitor: Answers the server's questions to a person.
        build: Builds tools from the server's tools, and rejects an invalid list.

    Raises:
        ConfigError: there is no id, or a time is out of range.
    """

    id: str
    target: Target
    objective: float | None
    timeout: float | None
    call_timeout: float | None
    lifetimes: Lifetimes
    patience: float | None
    tell_model: bool
    limits: ByteLimits
    elicitor: Elicitor | None
    protocol: Negotiation
    build: Callable[[list[ServerTool | InvalidTool]], Tools]

    def __post_init__(self) -> None:
        if self.protocol not in ("auto", "legacy"):
            raise ConfigError(f"MCPProvider {self.id!r}: protocol={self.protocol!r} must be 'auto' or 'legacy'")
        if not self.id:
            raise ConfigError("MCPProvider(id=''): give the server a name; spans, metrics and tool names carry it")
        owner = f"MCPProvider {self.id!r}"
        for name in ("timeout", "call_timeout", "objective"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ConfigError(f"{owner}: {name}={value!r} must be a positive number of seconds")
        check_not_negative(owner, asdict(self.lifetimes))
        patience_of(owner, self.patience, tell_model=self.tell_model)


class ServerListing:
    """The tool list of a server, as a hub. Equal lists are returned as one object, so that each is checked only once.

    Args:
        plan: The provider's options.
        connect: Returns the open connection, or opens one.
        is_connected: Whether a connection is open.
    """

    def __init__(
        self, plan: Plan, connect: Callable[[], Awaitable[Connection]], is_connected: Callable[[], bool]
    ) -> None:
        self._plan = plan
        self._attributes = {semconv.MCP_METHOD_NAME: LISTING, **plan.target.attributes}
        self._connect = connect
        self._is_connected = is_connected
        self._listed: list[ServerTool | InvalidTool] | None = None
        self._tools: Tools = ()

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Tools | HubCatalog:
        """List the tools.

        Raises:
            DiscoveryError: the server cannot be reached, refused the request, or sent an invalid list.
        """
        is_reused = self._is_connected()
        try:
            try:
                return await self._list(ctx)
            except ServerGone:
                if not is_reused:
                    raise
                # The connection ended while it was idle; the server may be available.
                return await self._list(ctx)
        except DiscoveryError:
            raise
        except Exception as error:  # noqa: BLE001  (converted to a DiscoveryError)
            raise failure_of(self._plan, error) from cause_of(error)

    async def _list(self, ctx: DiscoveryContext) -> Tools | HubCatalog:
        connection = await self._connect()
        # Set early, because the round trip may be cancelled.
        ctx.describe({**self._attributes, **connection.attributes})
        try:
            listed, lifetime = await self._pages(connection, ctx)
        except Refused as error:
            if error.code is not None:
                ctx.describe({semconv.RPC_RESPONSE_STATUS_CODE: str(error.code)})
            raise
        if listed != self._listed:
            build = partial(self._plan.build, listed)
            self._tools = build() if len(listed) < LARGE_CATALOG else await compute(build)
            self._listed = listed
        if lifetime > 0:
            return HubCatalog(self._tools, lifetime)
        if self._plan.lifetimes.ttl is not None:
            return self._tools
        return HubCatalog(self._tools, float("inf") if connection.notified and not connection.modern else 0.0)

    async def _pages(
        self, connection: Connection, ctx: DiscoveryContext
    ) -> tuple[list[ServerTool | InvalidTool], float]:
        """Return the tools of all pages, and the shortest lifetime of a page in seconds."""
        provider_id = self._plan.id
        exchange = Exchange(LISTING, lambda name, value: ctx.describe({name: value}))
        tools: list[ServerTool | InvalidTool] = []
        lifetimes: list[int] = []
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await connection.request(exchange, partial(_page, cursor=cursor))
            except ValidationError as error:
                raise InvalidCatalog(
                    provider_id,
                    f"the server's tool list violates the protocol: {first_problem(error)}",
                ) from error
            tools += [*page.tools, *invalid_tools(page)]
            lifetimes.append(page.ttl_ms)
            cursor = page.next_cursor
            if not cursor:
                return tools, min(lifetimes) / 1000
            if cursor in cursors:
                raise InvalidCatalog(provider_id, f"the server's tool list repeats the cursor {excerpt(repr(cursor))}")
            cursors.add(cursor)
        raise InvalidCatalog(provider_id, f"the server's tool list has more than {MAX_PAGES} pages")


async def _page(client: Client, *, cursor: str | None) -> ListToolsResult:
    return await client.list_tools(cursor=cursor, meta=trace_context())


def trace_context() -> Any:
    """Return the current trace context as a request's `_meta`; it is the only one that in-process servers receive."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


def failure_of(plan: Plan, error: BaseException) -> DiscoveryError:
    """Convert an error to a `DiscoveryError`; a new one for each caller, to keep the tracebacks of tasks apart."""
    if isinstance(error, OutOfTime):
        return DiscoveryTimeout(plan.id, f"{plan.target.title} did not answer within {plan.timeout:g} s")
    if isinstance(error, DiscoveryError):
        return with_details(type(error)(plan.id, error.problem), error)
    if isinstance(error, Refused):
        return with_details(DiscoveryError(plan.id, f"{plan.target.title} {error}"), error)
    problem = str(error) if isinstance(error, ServerGone | ResponseRefused | HeadersFailed) else describe(error)
    return with_details(DiscoveryError(plan.id, problem), error)


def cause_of(error: BaseException) -> BaseException:
    """Return the error that the server or its transport raised."""
    if isinstance(error, DiscoveryError):
        error = error.__cause__ or error
    return error.__cause__ or error if isinstance(error, Refused) else error


def with_details(failure: DiscoveryError, error: BaseException) -> DiscoveryError:
    """Copy the type, kind, status and delay of `error` to `failure`, and return it."""
    if isinstance(error, Refused | ServerGone | ResponseRefused | HeadersFailed) or (
        isinstance(error, DiscoveryError) and error.error_type
    ):
        failure.error_type = error.error_type
    failure.error_kind = kind_of(error)
    if isinstance(error, Refused | DiscoveryError):
        failure.status, failure.retry_after = error.status, error.retry_after
    return failure
