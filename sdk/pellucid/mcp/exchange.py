"""One request and its response as observed on the wire, and the errors of a response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import httpx2
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.approvals.elicitation import Listening
from pellucid.context import Identity
from pellucid.errors import ConfigError, ErrorKind
from pellucid.failures import error_kind_of, kind_of_status, type_of_code
from pellucid.models.http import retry_after
from pellucid.response_limits import Counter, Meter, ResponseRefused, is_event_stream
from pellucid.text import excerpt

SESSION_HEADER: Final = "mcp-session-id"

LISTING: Final = "tools/list"
"""Method of a listing, whose pages have one limit."""
_READABLE: Final = ("application/json", "text/plain")
_PROCESSED: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
"""JSON-RPC errors that imply that the server knows the session."""

_MENTIONS_SESSION: Final = re.compile(r"session|not initialized", re.IGNORECASE)
_SAYS_UNKNOWN: Final = re.compile(
    r"\b(unknown|invalid|expired|missing|no such|no valid)\b.{0,20}\bsession"
    r"|\bsession\b.{0,40}\b(not found|unknown|invalid|expired|terminated|not exist)\b"
    r"|\bnot initialized\b",
    re.IGNORECASE,
)


class Asking(NamedTuple):
    """A call whose server may ask a person for input.

    Attributes:
        listening: Reaction of its run to questions; None outside of a run.
        identity: Identity on whose behalf the run acts.
        span: Its span.
    """

    listening: Listening | None
    identity: Identity | None
    span: Span


class ServerGone(Exception):
    """The connection ended before a response arrived. The server may have processed the request."""

    error_type = "connection_lost"


class SessionUnknown(ServerGone):
    """The server no longer knows the session, and did not process the request."""

    error_type = "session_unknown"


class Unread(httpx2.SSEError, httpx2.StreamError):
    """A body that is not read to its end, as an error that the MCP SDK expects: the request fails, not the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteLimits:
    """Most bytes that a server may send, after decompression.

    Attributes:
        listing: Of a listing, with all its pages.
        result: Of any other message.
    """

    listing: int
    result: int

    @classmethod
    def of(cls, provider_id: str, *, listing: int, result: int) -> Self:
        """Return the limits of a provider.

        Raises:
            ConfigError: one is not positive.
        """
        for name, value in (("max_listing_bytes", listing), ("max_result_bytes", result)):
            if value < 1:
                raise ConfigError(f"MCPProvider {provider_id!r}: {name}={value!r} must be a positive number of bytes")
        return cls(listing=listing, result=result)

    @property
    def longest(self) -> Counter:
        """Counter of a message whose request is not known yet."""
        option = "listing" if self.listing > self.result else "result"
        remedy = f"let the server send less, or raise max_{option}_bytes of MCPProvider; the connection was closed"
        return Counter(subject="a message of the server", limit=max(self.listing, self.result), remedy=remedy)

    def counter(self, method: str | None) -> Counter:
        """Return a new counter for the answer to a request."""
        option, limit = ("listing", self.listing) if method == LISTING else ("result", self.result)
        subject = f"the answer to {method}" if method is not None else "a message"
        remedy = f"let the server send less, or raise max_{option}_bytes of MCPProvider"
        return Counter(subject=subject, limit=limit, remedy=remedy)


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, in the context of its caller.

    Attributes:
        method: The JSON-RPC method. The MCP SDK may send a `tools/list` of its own for a `tools/call`; that one is not
            observed.
        set_attribute: Called with the name and value of each span attribute.
        tool: The name of the tool in metrics, for `tools/call`.
        status: The HTTP status, if it is an error.
        delay: Seconds to wait before a retry, as the server requests.
        code: The code of the JSON-RPC error in a response with such a status.
        text: The message of that error, or the text of a response without one.
        is_in_session: Whether the request named a session.
        refusal: Reason for which the answer was not read to its end.
        headers: HTTP headers of the request, if they depend on its caller.
        explanation: Reason for which its authentication failed, if it is known.
        asking: Answers the server's questions about it, if anything does.
    """

    method: str
    set_attribute: Callable[[str, AttributeValue], object]
    tool: str | None = None
    status: int | None = None
    delay: float | None = None
    code: int | None = None
    text: str = ""
    is_in_session: bool = False
    refusal: ResponseRefused | None = None
    headers: Mapping[str, str] | None = None
    explanation: str = ""
    asking: Asking | None = None
    _listed: Counter | None = None

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the requests that the current context sends."""
        token = _EXCHANGE.set(self)
        try:
            yield
        finally:
            _EXCHANGE.reset(token)

    def record_request(self, method: str, request_id: str) -> None:
        """Record that a request was written."""
        if method == self.method:
            self.set_attribute(semconv.JSONRPC_REQUEST_ID, request_id)

    def counter(self, limits: ByteLimits) -> Counter:
        """Return the counter for the next answer; all pages of a listing have one."""
        if self.method != LISTING:
            return limits.counter(self.method)
        if self._listed is None:
            self._listed = limits.counter(self.method)
        return self._listed

    def refuse(self, refusal: ResponseRefused) -> Unread:
        """Record why an answer is not read to its end."""
        self.refusal = refusal
        return Unread(str(refusal))

    async def record_response(self, response: httpx2.Response) -> None:
        """Record an HTTP response."""
        status = response.status_code
        self.is_in_session = SESSION_HEADER in response.request.headers
        self.status = status if status >= httpx2.codes.BAD_REQUEST else None
        self.delay, self.code, self.text, self.refusal = None, None, "", None
        if self.status is None:
            self.explanation = ""
            return
        self.set_attribute(semconv.HTTP_RESPONSE_STATUS_CODE, status)
        self.delay = retry_after(response.headers)
        if (header := response.headers.get("retry-after")) is not None:
            self.set_attribute(semconv.HTTP_RETRY_AFTER, (header,))
        if response.headers.get("content-type", "").lower().startswith(_READABLE):
            with suppress(Unread):
                await response.aread()
                self.code, self.text = _read(response.text)

    @property
    def lost_session(self) -> bool:
        """True if the server refused the request because it does not know the session."""
        if not self.is_in_session or self.status is None or self.code in _PROCESSED:
            return False
        if self.status in (httpx2.codes.NOT_FOUND, httpx2.codes.GONE):
            return True
        refused = httpx2.codes.is_client_error(self.status) and self.status != httpx2.codes.TOO_MANY_REQUESTS
        return refused and _MENTIONS_SESSION.search(self.text) is not None


_EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("pellucid_mcp_exchange", default=None)
current_exchange: Final = _EXCHANGE.get
"""Return the exchange of the current context. The MCP SDK sends in the caller's context."""


def explain_refusal(explanation: str) -> None:
    """Record why the authentication of the current request failed."""
    if (exchange := current_exchange()) is not None:
        exchange.explanation = explanation


def meter(response: httpx2.Response, limits: ByteLimits) -> Meter:
    """Return the counters of a response in the current context.

    An event stream may stay open: each of its events has the limit, except for a listing, which ends.
    """
    exchange = current_exchange()  # also of a GET that resumes the stream of an answer
    method = exchange.method if exchange is not None else None
    counter = exchange.counter(limits) if exchange is not None else limits.counter(None)
    may_stay_open = is_event_stream(response) and method != LISTING
    return Meter(
        whole=None if may_stay_open else counter,
        event=counter if may_stay_open else None,
        refused=exchange.refuse if exchange is not None else _unread,
    )


def _unread(refusal: ResponseRefused) -> Unread:
    return Unread(str(refusal))


class Refused(Exception):
    """The server returned an error.

    Attributes:
        code: The code of the JSON-RPC error, if there is one.
        status: The HTTP status, if it is an error.
        retry_after: Seconds to wait before a retry, as the server requests.
        is_about_session: Whether the error says that the session is unknown.
    """

    def __init__(self, error: MCPError, exchange: Exchange) -> None:
        self.status = exchange.status
        self.retry_after = exchange.delay
        # The MCP SDK makes up a JSON-RPC error for a response with an error status and without JSON-RPC.
        self.code = error.code if exchange.status is None else exchange.code
        text = str(error) if exchange.status is None else exchange.text
        self.is_about_session = (
            exchange.is_in_session and self.code not in _PROCESSED and _SAYS_UNKNOWN.search(text) is not None
        )
        message = _message(self.code, self.status, text)
        super().__init__(f"{message}; {exchange.explanation}" if exchange.explanation else message)

    @property
    def error_type(self) -> str:
        """Value of `error.type`.

        The HTTP status, or the JSON-RPC code if there is one and the status only means that the request is invalid.
        """
        if self.status is not None and (self.code is None or kind_of_status(self.status) != "invalid_request"):
            return str(self.status)
        return type_of_code(self.code or 0)

    @property
    def error_kind(self) -> ErrorKind:
        """Kind of the failure, from the HTTP status; `unknown` without one."""
        return "unknown" if self.status is None else kind_of_status(self.status)


def kind_of(error: BaseException) -> ErrorKind:
    """Return the kind of a failure to connect or to get a response."""
    if isinstance(error, Refused):
        return error.error_kind
    if isinstance(error, ResponseRefused):
        return "invalid_response"
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    if isinstance(error, ServerGone | httpx2.TransportError):
        return "unavailable"
    return error_kind_of(error)


def _message(code: int | None, status: int | None, text: str) -> str:
    message = f"returned error {code}" if code is not None else "refused the request"
    if status is not None:
        phrase = httpx2.codes.get_reason_phrase(status)
        message += f" with HTTP status {status}{phrase and f' ({phrase})'}"
    return f"{message}: {excerpt(text)}" if text and status is not None else f"{message}: {text}" if text else message


def _read(body: str) -> tuple[int | None, str]:
    """Return the code and message of a JSON-RPC error, or None and the body's text."""
    try:
        response: Any = json.loads(body)
    except ValueError:
        return None, body.strip()
    error = response.get("error") if isinstance(response, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        return error["code"], str(error.get("message", ""))
    return None, body.strip() if response else ""
