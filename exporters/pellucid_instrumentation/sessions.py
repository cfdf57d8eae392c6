"""Sessions with MCP servers, as their requests show them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from anyio import get_current_task
from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.telemetry import Scope, shared_scope
from pellucid_instrumentation import messages
from pellucid_instrumentation.contexts import attached
from pellucid_instrumentation.exchanges import Exchange, Listing, Page, call_of
from pellucid_instrumentation.failures import error_type_of
from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.patches import Patches
from pellucid_instrumentation.transports import Link, Transports, is_own

MOST_WAITING: Final = 32
"""Maximum number of listings of a session that wait for a next page."""

MAX_TEXT: Final = 256
"""Maximum characters of what a server says about itself, which each of its spans has."""

_calling: Final[ContextVar[object]] = ContextVar("pellucid_mcp_calling", default=None)
"""Session whose `call_tool` runs in this context."""

_sending: Final[ContextVar[Exchange | None]] = ContextVar("pellucid_mcp_sending", default=None)
"""Observation of the request that this context sends."""


class Session:
    """State of a session.

    Attributes:
        link: Its connection.
        attributes: Span attributes of requests.
        waiting: Listings whose next page has not been requested; there may be several, of concurrent tasks.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.attributes: dict[str, AttributeValue] = link.attributes
        self.waiting: list[Listing] = []
        self._scope: Scope = shared_scope()
        self._start: int | None = None

    def connecting(self) -> None:
        """Note that a handshake starts."""
        self.link.connect()

    def connected(self, version: str | None, info: Any) -> None:
        """Note that the handshake has succeeded."""
        known = {
            semconv.MCP_PROTOCOL_VERSION: version,
            semconv.MCP_SERVER_NAME: getattr(info, "name", None),
            semconv.MCP_SERVER_VERSION: getattr(info, "version", None),
        }
        told: dict[str, AttributeValue] = {
            name: value[:MAX_TEXT] for name, value in known.items() if isinstance(value, str)
        }
        self.attributes = self.link.attributes | told
        self.link.connected()
        if self._start is None:
            self._start = self._scope.now()

    def exchange(self, method: str, params: Any, *, is_validation: bool) -> Exchange:
        """Return the observation of a request, before which a session without a handshake is connected."""
        self.link.connected()
        listing = self._continued(getattr(params, "cursor", None)) if method == "tools/list" else None
        self._abandon()
        if method == "tools/list":
            return Page(self, listing or Listing(self, is_validation=is_validation))
        return call_of(self, params) if method == "tools/call" else Exchange(self, method)

    def close(self, error: BaseException | None) -> None:
        """Record the end of the session."""
        while self.waiting:
            self.waiting.pop().abandon()
        self.link.close()
        if self._start is None:
            return
        labels = dict(self.attributes)
        if error is not None:
            labels[semconv.ERROR_TYPE] = error_type_of(error)
        self._scope.measure(semconv.MCP_SESSION_DURATION, self._start, labels, Context())  # no span lasts as long
        self._start = None

    def _continued(self, cursor: str | None) -> Listing | None:
        """Return the listing that waits for a page, of this task if there are several."""
        found = [listing for listing in self.waiting if listing.cursor == cursor]
        if not found:
            return None
        task = get_current_task().id
        listing = next((listing for listing in found if listing.task == task), found[0])
        self.waiting.remove(listing)
        return listing

    def _abandon(self) -> None:
        """End the listings whose task has gone on to something else, and the oldest if there are too many."""
        if not self.waiting:
            return
        task = get_current_task().id
        excess = self.waiting[:-MOST_WAITING]
        for listing in [listing for listing in self.waiting if listing.task == task or listing in excess]:
            self.waiting.remove(listing)
            listing.abandon()


class Sessions:
    """Sessions of this process."""

    def __init__(self, transports: Transports) -> None:
        self._transports = transports
        self._sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()

    def plan(self, patches: Patches) -> None:
        """Plan the patches of the client of the MCP SDK."""

        def apply(module: ModuleType) -> None:
            client = module.ClientSession
            patches.method(client, "send_request", self._send_request)
            patches.method(client, "call_tool", self._call_tool)
            patches.method(client, "__aexit__", self._exit)
            if hasattr(client, "send_discover"):  # mcp 2.x, where it does not pass `send_request`
                patches.method(client, "send_discover", self._send_discover)
                patches.method(client, "adopt", self._adopt)

        def apply_ids(module: ModuleType) -> None:
            dispatcher: Any = getattr(module, "JSONRPCDispatcher", None)
            if hasattr(dispatcher, "_allocate_id"):  # mcp 2.x; otherwise spans have no ids of requests
                patches.method(dispatcher, "_allocate_id", self._allocate_id)

        patches.plan("mcp.client.session", apply)
        patches.plan("mcp.shared.jsonrpc_dispatcher", apply_ids)

    def _of(self, session: Any) -> Session:
        if (known := self._sessions.get(session)) is None:
            known = self._sessions[session] = Session(self._transports.link_of(session))
        return known

    async def _send_request(
        self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        request = args[0] if args else kwargs.get("request")
        if is_own():
            return await wrapped(*args, **kwargs)
        method = guarded(messages.method_of, request)
        if method is not None and method[0] == "initialize":
            return await self._initialize(wrapped, session, args, kwargs)
        exchange = guarded(self._start, session, *method) if method is not None else None
        if exchange is None:
            return await wrapped(*args, **kwargs)
        with attached(exchange.context, exchange.failed, (_sending, exchange)):
            result = await wrapped(*args, **kwargs)
        guarded(exchange.succeeded, result)
        return result

    def _allocate_id(
        self, wrapped: Callable[..., Any], dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        request_id = wrapped(*args, **kwargs)
        if (exchange := _sending.get()) is not None:
            guarded(exchange.identified, request_id)
        return request_id

    def _start(self, session: Any, method: str, params: Any) -> Exchange:
        return self._of(session).exchange(method, params, is_validation=_calling.get() is session)

    async def _initialize(
        self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = guarded(self._connecting, session)
        if known is None:
            return await wrapped(*args, **kwargs)
        try:
            with known.link.waiting():
                result = await wrapped(*args, **kwargs)
        except BaseException as error:
            guarded(known.link.connected, error)
            raise
        guarded(lambda: known.connected(messages.protocol_version(result), messages.server_info(result)))
        return result

    async def _send_discover(
        self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = guarded(self._connecting, session) if not is_own() else None
        if known is None:
            return await wrapped(*args, **kwargs)
        try:
            with known.link.waiting():
                return await wrapped(*args, **kwargs)
        except BaseException as error:
            guarded(known.link.refused, error)
            raise

    def _adopt(self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        if not is_own():
            guarded(lambda: self._of(session).connected(session.protocol_version, session.server_info))
        return result

    async def _call_tool(
        self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        token = _calling.set(session)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            with suppress(ValueError):  # collected, in another context
                _calling.reset(token)

    async def _exit(
        self, wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = self._sessions.get(session)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            if known is not None:
                guarded(known.close, args[1] if len(args) > 1 else None)

    def _connecting(self, session: Any) -> Session:
        known = self._of(session)
        known.connecting()
        return known
