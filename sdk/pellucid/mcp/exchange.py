"""What is observed of one request and its answer, and the error that an answer can be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import ErrorKind
from pellucid.failures import error_kind_of, kind_of_status
from pellucid.models.http import retry_after
from pellucid.text import excerpt

SESSION_HEADER: Final = "mcp-session-id"

_READABLE: Final = ("application/json", "text/plain")
_PROCESSED: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
"""Errors of JSON-RPC that only a server that knows the session finds."""

_MENTIONED: Final = re.compile(r"session|not initialized", re.IGNORECASE)
_UNKNOWN: Final = re.compile(
    r"\b(unknown|invalid|expired|missing|no such|no valid)\b.{0,20}\bsession"
    r"|\bsession\b.{0,40}\b(not found|unknown|invalid|expired|terminated|not exist)\b"
    r"|\bnot initialized\b",
    re.IGNORECASE,
)


class ServerGone(Exception):
    """The connection ended before an answer arrived; whether the server did what was asked is not known."""

    error_type = "connection_lost"


class SessionUnknown(ServerGone):
    """The server does not know the session any longer, and therefore did nothing."""

    error_type = "session_unknown"


@dataclass(slots=True)
class Exchange:
    """One request, in the context of its caller.

    Attributes:
        method: Of the request; `tools/call` may lead to a `tools/list` of the MCP SDK's own, which is not observed.
        tell: Called with each attribute that becomes known.
        tool: That is called.
        status: HTTP status, if it means an error.
        delay: Seconds after which the server wants to be asked again.
        code: Code of the JSON-RPC error in an answer with such a status.
        text: What the server wrote there.
        is_in_session: Whether the request named a session.
    """

    method: str
    tell: Callable[[str, AttributeValue], object]
    tool: str | None = None
    status: int | None = None
    delay: float | None = None
    code: int | None = None
    text: str = ""
    is_in_session: bool = False

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe what the current context sends."""
        token = _EXCHANGE.set(self)
        try:
            yield
        finally:
            _EXCHANGE.reset(token)

    def sent(self, method: str, request_id: str) -> None:
        """Note that a request was written."""
        if method == self.method:
            self.tell(semconv.JSONRPC_REQUEST_ID, request_id)

    async def answered(self, response: httpx2.Response) -> None:
        """Note an HTTP response."""
        status = response.status_code
        self.is_in_session = SESSION_HEADER in response.request.headers
        self.status = status if status >= httpx2.codes.BAD_REQUEST else None
        self.delay, self.code, self.text = None, None, ""
        if self.status is None:
            return
        self.tell(semconv.HTTP_RESPONSE_STATUS_CODE, status)
        self.delay = retry_after(response.headers)
        if (header := response.headers.get("retry-after")) is not None:
            self.tell(semconv.HTTP_RETRY_AFTER, (header,))
        if response.headers.get("content-type", "").lower().startswith(_READABLE):
            await response.aread()
            self.code, self.text = _read(response.text)

    @property
    def lost_session(self) -> bool:
        """Whether the request was refused because the server does not know the session."""
        if not self.is_in_session or self.status is None or self.code in _PROCESSED:
            return False
        if self.status in (httpx2.codes.NOT_FOUND, httpx2.codes.GONE):
            return True
        refused = httpx2.codes.is_client_error(self.status) and self.status != httpx2.codes.TOO_MANY_REQUESTS
        return refused and _MENTIONED.search(self.text) is not None


_EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("pellucid_mcp_exchange", default=None)
current_exchange: Final = _EXCHANGE.get
"""Return the exchange that the current context belongs to; the MCP SDK sends in the context of the caller."""


class Refused(Exception):
    """The server answered with an error.

    Attributes:
        code: Of the JSON-RPC error, if there was one.
        status: HTTP status, if it means an error.
        retry_after: Seconds after which the server wants to be asked again.
        is_about_session: The error says that the session is unknown.
    """

    def __init__(self, error: MCPError, exchange: Exchange) -> None:
        self.status = exchange.status
        self.retry_after = exchange.delay
        # For an answer with an error status that holds no JSON-RPC, the MCP SDK makes up an error.
        self.code = error.code if exchange.status is None else exchange.code
        text = str(error) if exchange.status is None else exchange.text
        self.is_about_session = (
            exchange.is_in_session and self.code not in _PROCESSED and _UNKNOWN.search(text) is not None
        )
        super().__init__(_told(self.code, self.status, text))

    @property
    def error_type(self) -> str:
        """Value of `error.type`.

        The HTTP status if it says more than that the request is wrong; else the code, unless the server made it up:
        each would be a time series more.
        """
        if self.status is not None and (self.code is None or kind_of_status(self.status) != "invalid_request"):
            return str(self.status)
        code = self.code or 0
        known = -32768 <= code <= -32000 or 100 <= code <= 599  # noqa: PLR2004  (of JSON-RPC, and of HTTP)
        return str(code) if known else semconv.OTHER

    @property
    def error_kind(self) -> ErrorKind:
        """What it means, as far as the HTTP status says."""
        return "unknown" if self.status is None else kind_of_status(self.status)


def kind_of(error: BaseException) -> ErrorKind:
    """Return what a failure to connect or to get an answer means."""
    if isinstance(error, Refused):
        return error.error_kind
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    if isinstance(error, ServerGone | httpx2.TransportError):
        return "unavailable"
    return error_kind_of(error)


def _told(code: int | None, status: int | None, text: str) -> str:
    said = f"answered error {code}" if code is not None else "refused the request"
    if status is not None:
        phrase = httpx2.codes.get_reason_phrase(status)
        said += f" with HTTP status {status}{phrase and f' ({phrase})'}"
    return f"{said}: {excerpt(text)}" if text and status is not None else f"{said}: {text}" if text else said


def _read(body: str) -> tuple[int | None, str]:
    """Return code and message of a JSON-RPC error; of anything else its text."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return None, body.strip()
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        return error["code"], str(error.get("message", ""))
    return None, body.strip() if answer else ""
