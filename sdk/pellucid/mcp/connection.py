"""Connections to MCP servers: each is opened and closed by one task and shared by any number of others."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp_types import CONNECTION_CLOSED, ElicitRequestParams, ElicitResult, ErrorData
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import context as otel_context
from opentelemetry.trace import INVALID_SPAN_CONTEXT
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.single_flight import Flight
from pellucid.concurrency.tasks import call_soon
from pellucid.failures import describe, error_type_of, first_of
from pellucid.mcp.announcements import Announcements
from pellucid.mcp.credentials import HeadersFailed
from pellucid.mcp.elicitation import Elicitor, Questions
from pellucid.mcp.exchange import LISTING, ByteLimits, Exchange, Refused, ServerGone, SessionUnknown
from pellucid.mcp.handshake import Handshake, Negotiation
from pellucid.mcp.link import Link
from pellucid.mcp.metrics import Request, Session
from pellucid.mcp.transports import Target

T = TypeVar("T")

MAX_FAILURES: Final = 3
"""Consecutive failures after which a connection is replaced, in case its session is the cause."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds to close. The MCP SDK asks a server process to exit, then terminates it, then kills it."""


class Connection:
    """A session with a server.

    Requests run in the caller's task and context, so that their spans and the trace context in `_meta` are the
    caller's. Only opening, closing and the subscription to changes run in the owner task. The owner outlives the run
    that connected first, and does not inherit its context.

    Args:
        target: The way to the server.
        limits: Most bytes that the server may send.
        protocol: `legacy` opens a session of a protocol before 2026-07-28, although the server may have a newer one.
        elicitor: Answers the server's questions to a person; None declares no support for them.
        expire: Called when the listed tools may be out of date: with `changed=True` when the server announces a change,
            without arguments when it can no longer announce one.
        ended: Called when all resources are released.

    Attributes:
        lost: Whether the connection is closed or the server no longer knows the session.
    """

    __slots__ = (
        "_active",
        "_announcements",
        "_client",
        "_close_requested",
        "_closing",
        "_expire",
        "_failure",
        "_failures",
        "_handshake",
        "_link",
        "_loop",
        "_owner",
        "_questions",
        "_reason",
        "_requests",
        "_retired",
        "_session",
        "_settled",
        "_target",
        "lost",
    )

    def __init__(
        self,
        target: Target,
        *,
        limits: ByteLimits,
        elicitor: Elicitor | None = None,
        protocol: Negotiation = "auto",
        expire: Callable[..., None],
        ended: Callable[[Connection], None],
    ) -> None:
        self.lost = False
        self._target = target
        self._expire = expire
        self._link = Link(ended=self._end, limits=limits)
        self._handshake = Handshake(target, self._link, protocol)
        self._announcements = Announcements(changed=partial(expire, changed=True), ended=self.retire)
        self._session = Session()
        self._reason: str | None = None
        self._loop: EventLoopToken = current_token()
        self._client: Client | None = None
        self._failure: BaseException | None = None
        self._failures = 0
        self._active: set[Exchange] = set()
        self._questions = Questions(elicitor) if elicitor is not None else None
        self._requests = 0
        self._retired = False
        self._settled = anyio.Event()
        self._close_requested = anyio.Event()
        self._closing = anyio.CancelScope()
        self._owner = Flight[None](
            span=INVALID_SPAN_CONTEXT, timeout=None, held=True, settled=lambda _owner: ended(self)
        )

    @property
    def usable(self) -> bool:
        """True if the connection accepts new requests."""
        return self._client is not None and not self._retired

    @property
    def protocol_version(self) -> str:
        """The negotiated protocol version."""
        assert self._client is not None
        return self._client.protocol_version

    @property
    def modern(self) -> bool:
        """True if the server states the lifetime of its listings."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def notified(self) -> bool:
        """True if the server announces changes of its tools."""
        return self._announcements.are_expected

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Span attributes of requests over this connection, as far as they are known."""
        link = self._link
        attributes = {
            semconv.MCP_PROTOCOL_VERSION: self._client.protocol_version if self._client is not None else None,
            # Protocol 2026-07-28 and later have no sessions, whatever the header says.
            semconv.MCP_SESSION_ID: link.session_id if self._client is not None and not self.modern else None,
            semconv.NETWORK_PROTOCOL_VERSION: link.http_version,
        }
        return {name: value for name, value in attributes.items() if value is not None}

    @property
    def _labels(self) -> Mapping[str, AttributeValue]:
        return {**self._target.attributes, **self.attributes}

    async def open(self) -> None:
        """Connect. Errors are raised unchanged."""
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
        """True if the connection was retired because too many consecutive requests failed."""
        return self._failures >= MAX_FAILURES

    async def request(self, exchange: Exchange, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request in the caller's task. Cancelling it notifies the server.

        Raises:
            HeadersFailed: the application's function for headers failed.
            SessionUnknown: the server did not accept the request; reconnect and retry.
            ServerGone: the connection ended before the response arrived.
            Refused: the server returned an error.
            ResponseRefused: the response was not read to its end, because it is too large.
        """
        self._active.add(exchange)
        self._requests += 1
        try:
            await self._target.prepare(exchange)
        except BaseException:
            self._release(exchange)
            raise
        if (client := self._client) is None:
            self._release(exchange)
            raise ServerGone(self._closed_reason())
        request = Request(exchange)
        with request.measured(lambda: self._labels):
            result = await self._send(client, exchange, send)
            request.result = result
        return result

    async def _send(self, client: Client, exchange: Exchange, send: Callable[[Client], Awaitable[T]]) -> T:
        try:
            with exchange.observed():
                result = await send(client)
        except MCPError as error:
            if exchange.refusal is not None and exchange.status is None:
                raise exchange.refusal from None
            if error.code != CONNECTION_CLOSED or exchange.status is not None:
                raise self._refused(error, exchange) from error
            cause: Exception = error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            cause = error
        else:
            self._failures = 0
            return result
        finally:
            self._release(exchange)
        self._end()
        if self._link.refusal is not None:
            raise self._link.refusal.with_traceback(None) from None
        if self._link.over:
            with anyio.move_on_after(1):  # wait for the owner to record the reason
                await self._owner.wait()
        raise ServerGone(self._closed_reason()) from self._failure or cause

    def retire(self, reason: str | None = None) -> None:
        """Accept no new requests, and close once the active ones are done.

        Args:
            reason: `error.type` of the session, if it ends because of an error.
        """
        if not self._retired:
            self._retired = True
            self._reason = reason
            if self._settled.is_set():
                self._expire()
            self._close_if_idle()

    def close(self) -> None:
        """Close now, from any thread; active requests fail."""
        call_soon(self._loop, self._close)

    async def wait_closed(self) -> None:
        """Wait until all resources are released, in any event loop."""
        await self._owner.wait()

    def explain(self, error: BaseException) -> str:
        """Describe a failure to connect, with the last lines of the server's standard error."""
        if isinstance(error, Refused):
            return self._with_stderr(f"the server {error}")
        return self._with_stderr(str(error) if isinstance(error, ServerGone | HeadersFailed) else describe(error))

    def _close(self) -> None:
        self.retire()
        if self._settled.is_set():
            self._close_requested.set()
        else:
            self._closing.cancel()

    def _refused(self, error: MCPError, exchange: Exchange) -> Exception:
        """Convert an error of the server, and retire the connection if its session may be the cause."""
        if exchange.lost_session:
            self._lose(SessionUnknown.error_type)
            return SessionUnknown("the server no longer knows the session")
        refused = Refused(error, exchange)
        # JSON-RPC errors of tool calls do not count: a tool may refuse its arguments any number of times.
        if exchange.status is not None or exchange.method == LISTING:
            self._failures += 1
        if refused.is_about_session:
            self._lose(SessionUnknown.error_type)
        elif self.is_failing:
            self.retire("requests_failed")
        return refused

    def _end(self) -> None:
        """Record that the transport can receive nothing more."""
        refusal = self._link.refusal
        self._lose(ServerGone.error_type if refusal is None else refusal.error_type)

    def _lose(self, reason: str | None = None) -> None:
        self.lost = True
        self.retire(reason)

    def _release(self, exchange: Exchange) -> None:
        """Count a request as done."""
        self._active.discard(exchange)
        if self._questions is not None:
            self._questions.release(exchange)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._retired and not self._active:
            self._close_requested.set()

    def _closed_reason(self) -> str:
        return self._with_stderr(
            describe(self._failure) if isinstance(self._failure, Exception) else "the server closed the connection"
        )

    def _with_stderr(self, text: str) -> str:
        return f"{text}; its last output was: {' | '.join(self._link.stderr)}" if self._link.stderr else text

    async def _own(self, parent: otel_context.Context) -> None:
        """Open the connection, keep it open until it is to be closed, and close it; the owner task."""
        try:
            with self._closing:
                async with AsyncExitStack() as stack:
                    client = await self._handshake.open(
                        stack,
                        parent,
                        receive=self._announcements.receive,
                        answer=self._answer if self._questions is not None else None,
                    )
                    await self._announcements.subscribe(client, stack, pushes=self._target.pushes)
                    self._client = client
                    self._session.start({semconv.MCP_PROTOCOL_VERSION: client.protocol_version, **self._labels})
                    self._settled.set()
                    await self._wait_for_close()
                    self._closing.deadline = anyio.current_time() + CLOSE_TIMEOUT
        except BaseExceptionGroup as group:
            # A transport that breaks while the event loop shuts down raises a group with the loop's cancellation, which
            # must not escape the task: the loop would crash.
            self._failure = self._failure_of(first_of(group))
        except Exception as error:  # noqa: BLE001  (raised to the callers that wait)
            self._failure = self._failure_of(error)
        finally:
            if not self._settled.is_set() and self._failure is None:
                self._failure = ServerGone("the connection was closed before it was established")
            self._client = None
            self._lose(error_type_of(self._failure) if isinstance(self._failure, Exception) else None)
            self._session.end(self._reason)
            self._settled.set()

    def _failure_of(self, error: BaseException) -> BaseException:
        """Convert a failure to open the connection; a later one is returned unchanged."""
        return error if self._settled.is_set() else self._handshake.failure_of(error)

    async def _wait_for_close(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._announcements.follow)
            await self._wait_until_unused()
            tasks.cancel_scope.cancel()

    async def _wait_until_unused(self) -> None:
        """Wait until the connection is to be closed, or nobody has used it for a while."""
        while not self._close_requested.is_set():
            requests = self._requests
            with anyio.move_on_after(self._target.idle_timeout):
                await self._close_requested.wait()
            if not self._active and self._requests == requests:
                self.retire()

    async def _answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question for which the server holds a call open, as protocols before 2026-07-28 do."""
        assert self._questions is not None
        return await self._questions.answer(params, self._active)
