"""One session with a server: opened and closed by one task, used by any number of others."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import Subscription, SubscriptionLost
from mcp_types import CONNECTION_CLOSED, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import context as otel_context
from opentelemetry.trace import INVALID_SPAN_CONTEXT
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.single_flight import Flight
from pellucid.concurrency.tasks import call_soon
from pellucid.failures import describe, error_type_of, first_of
from pellucid.mcp.exchange import Exchange, Refused, ServerGone, SessionUnknown
from pellucid.mcp.metrics import Request, Session
from pellucid.mcp.transports import Link, Target
from pellucid.version import __version__

T = TypeVar("T")

LISTEN_PATIENCE: Final = 5.0
FAILURES: Final = 3
"""Failures in a row after which a connection is replaced: the session may be what is wrong."""
CLOSE_PATIENCE: Final = 10.0
"""Seconds to close in; the MCP SDK asks a server process to end, then terminates it, then kills it."""


class Connection:
    """A session with a server.

    Requests run in the task and context of whoever makes them, so that their spans and their trace context in `_meta`
    are the caller's; only opening, closing and listening for changes belong to the owner task. The owner does not
    inherit the context of the run that happened to connect first: it outlives it.

    Args:
        target: The way to the server.
        expire: Called when the tools that were listed may be out of date: with `changed=True` when the server says so,
            otherwise when it can no longer say so.
        ended: Called when everything is released.

    Attributes:
        lost: Nothing can be sent any longer, or the server forgot the session.
        notified: The server tells when its tools change.
    """

    __slots__ = (
        "_client",
        "_closing",
        "_expire",
        "_failure",
        "_failures",
        "_link",
        "_loop",
        "_opening",
        "_over",
        "_owner",
        "_reason",
        "_retired",
        "_session",
        "_settled",
        "_target",
        "_uses",
        "lost",
        "notified",
    )

    def __init__(self, target: Target, *, expire: Callable[..., None], ended: Callable[[Connection], None]) -> None:
        self.lost = False
        self.notified = False
        self._target = target
        self._expire = expire
        self._link = Link(ended=partial(self._lose, "connection_lost"))
        self._session = Session()
        self._reason: str | None = None
        self._loop: EventLoopToken = current_token()
        self._client: Client | None = None
        self._failure: BaseException | None = None
        self._failures = 0
        self._opening = Exchange("initialize", _ignored)
        self._uses = 0
        self._retired = False
        self._settled = anyio.Event()
        self._over = anyio.Event()
        self._closing = anyio.CancelScope()
        self._owner = Flight[None](
            span=INVALID_SPAN_CONTEXT, timeout=None, held=True, settled=lambda _owner: ended(self)
        )

    @property
    def usable(self) -> bool:
        """Whether new requests may be made."""
        return self._client is not None and not self._retired

    @property
    def protocol_version(self) -> str:
        """The negotiated version of the protocol."""
        assert self._client is not None
        return self._client.protocol_version

    @property
    def modern(self) -> bool:
        """Whether listings say how long they are good for."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """What the conventions want on spans of requests over this connection, as far as it is known by now."""
        link = self._link
        known = {
            semconv.MCP_PROTOCOL_VERSION: self._client.protocol_version if self._client is not None else None,
            # Since protocol 2026-07-28 there are no sessions, whatever a server puts into the header.
            semconv.MCP_SESSION_ID: link.session_id if self._client is not None and not self.modern else None,
            semconv.NETWORK_PROTOCOL_VERSION: link.http_version,
        }
        return {name: value for name, value in known.items() if value is not None}

    @property
    def _labels(self) -> Mapping[str, AttributeValue]:
        return {**self._target.attributes, **self.attributes}

    async def open(self) -> None:
        """Connect. Whatever went wrong is raised as it is."""
        contextvars.Context().run(self._owner.start, partial(self._own, otel_context.get_current()))
        try:
            await self._settled.wait()
        except BaseException:
            self._closing.cancel()
            raise
        if self._client is None:
            await self._owner.wait()
            assert self._failure is not None
            raise self._failure

    @property
    def is_failing(self) -> bool:
        """Whether so many requests failed in a row that the connection was given up."""
        return self._failures >= FAILURES

    async def request(self, exchange: Exchange, send: Callable[[Client], Awaitable[T]]) -> T:
        """Make a request in the caller's own task; cancelling it tells the server.

        Raises:
            SessionUnknown: the request was not accepted; connect again and repeat it.
            ServerGone: the connection ended meanwhile.
            Refused: the server answered with an error.
        """
        client = self._client
        if client is None:
            raise ServerGone(self._last_words())
        request = Request(exchange)
        with request.measured(lambda: self._labels):
            result = await self._send(client, exchange, send)
            request.result = result
        return result

    async def _send(self, client: Client, exchange: Exchange, send: Callable[[Client], Awaitable[T]]) -> T:
        self._uses += 1
        try:
            with exchange.observed():
                result = await send(client)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED or exchange.status is not None:
                raise self._refused(error, exchange) from error
            cause: Exception = error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            cause = error
        else:
            self._failures = 0
            return result
        finally:
            self._uses -= 1
            self._rest()
        self._lose(ServerGone.error_type)
        if self._link.over:
            with anyio.move_on_after(1):  # the owner learns why
                await self._owner.wait()
        raise ServerGone(self._last_words()) from self._failure or cause

    def retire(self, reason: str | None = None) -> None:
        """Take no new requests, and close when those under way are done.

        Args:
            reason: `error.type` of the session, if this is not as it should be.
        """
        if not self._retired:
            self._retired = True
            self._reason = reason
            if self._settled.is_set():
                self._expire()
            self._rest()

    def close(self) -> None:
        """Close now, from any thread; requests under way fail."""
        call_soon(self._loop, self._close)

    async def wait_closed(self) -> None:
        """Wait until everything is released, in any event loop."""
        await self._owner.wait()

    def explain(self, error: BaseException) -> str:
        """Return what is known of a failure to connect."""
        if isinstance(error, Refused):
            return self._with_words(f"the server {error}")
        return self._with_words(str(error) if isinstance(error, ServerGone) else describe(error))

    def _close(self) -> None:
        self.retire()
        if self._settled.is_set():
            self._over.set()
        else:
            self._closing.cancel()

    def _refused(self, error: MCPError, exchange: Exchange) -> Exception:
        """Return what an error of the server means, and give the connection up if it may be the reason."""
        if exchange.lost_session:
            self._lose(SessionUnknown.error_type)
            return SessionUnknown("the server does not know the session any longer")
        refused = Refused(error, exchange)
        # A tool may refuse its arguments any number of times; a list is asked for without any.
        if exchange.status is not None or exchange.method == "tools/list":
            self._failures += 1
        if refused.is_about_session:
            self._lose(SessionUnknown.error_type)
        elif self.is_failing:
            self.retire("requests_failed")
        return refused

    def _lose(self, reason: str | None = None) -> None:
        self.lost = True
        self.retire(reason)

    def _rest(self) -> None:
        if self._retired and not self._uses:
            self._over.set()

    def _last_words(self) -> str:
        return self._with_words(
            describe(self._failure) if isinstance(self._failure, Exception) else "the server closed the connection"
        )

    def _with_words(self, text: str) -> str:
        return f"{text}; it wrote: {' | '.join(self._link.words)}" if self._link.words else text

    async def _own(self, parent: otel_context.Context) -> None:
        """Open, stay, close: the life of the owner task."""
        try:
            with self._closing:
                async with AsyncExitStack() as stack:
                    client = await self._connect(stack, parent)
                    self._link.protocol_version = client.protocol_version
                    subscription = await self._subscribe(stack, client)
                    self._client = client
                    self._session.begin({semconv.MCP_PROTOCOL_VERSION: client.protocol_version, **self._labels})
                    self._settled.set()
                    await self._stay(subscription)
                    self._closing.deadline = anyio.current_time() + CLOSE_PATIENCE
        except BaseExceptionGroup as group:
            # A transport that breaks while the event loop shuts down gives a group of both, which would be the loop's
            # crash if it left the task.
            self._failure = self._named(first_of(group))
        except Exception as error:  # noqa: BLE001  (told to those who wait for it)
            self._failure = self._named(error)
        finally:
            if not self._settled.is_set() and self._failure is None:
                self._failure = ServerGone("the connection was closed before it was opened")
            self._client = None
            self._lose(error_type_of(self._failure) if isinstance(self._failure, Exception) else None)
            self._session.end(self._reason)
            self._settled.set()

    def _named(self, error: BaseException) -> BaseException:
        """Return the failure to open as what the server answered, if it did."""
        if self._settled.is_set() or not isinstance(error, MCPError):
            return error
        is_answer = error.code != CONNECTION_CLOSED or self._opening.status is not None
        named = Refused(error, self._opening) if is_answer else ServerGone("the server closed the connection")
        named.__cause__ = error
        return named

    async def _connect(self, stack: AsyncExitStack, parent: otel_context.Context) -> Client:
        token = otel_context.attach(parent)
        try:
            client = Client(
                self._target.reach(self._link),
                cache=None,  # what is kept, and for how long, is the provider's business: it is on its spans
                message_handler=self._hear,
                client_info=Implementation(name="pellucid", version=__version__),
            )
            with self._opening.observed():
                return await stack.enter_async_context(client)
        finally:
            otel_context.detach(token)

    async def _subscribe(self, stack: AsyncExitStack, client: Client) -> Subscription | None:
        """Ask to be told of changes, if the server offers it. Not being told only means to ask more often."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self.notified = self._target.pushes
            return None
        try:
            with anyio.move_on_after(LISTEN_PATIENCE):
                subscription = await stack.enter_async_context(client.listen(tools_list_changed=True))
                self.notified = bool(subscription.honored.tools_list_changed)
                return subscription
        except (MCPError, SubscriptionLost):
            return None
        return None

    async def _stay(self, subscription: Subscription | None) -> None:
        async with anyio.create_task_group() as tasks:
            if subscription is not None:
                tasks.start_soon(self._follow, subscription)
            await self._over.wait()
            tasks.cancel_scope.cancel()

    async def _follow(self, subscription: Subscription) -> None:
        try:
            async for _event in subscription:
                self._expire(changed=True)
        except SubscriptionLost:
            pass  # lost or ended by the server, it is the same to us: changes are not told of any longer
        self.notified = False
        self.retire()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._expire(changed=True)


def _ignored(_name: str, _value: AttributeValue) -> None:
    """Drop what becomes known while connecting: it belongs to no span."""
