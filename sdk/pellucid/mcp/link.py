"""Observed state of a connection's transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse

from pellucid.mcp.exchange import LISTING, ByteLimits, Exchange
from pellucid.response_limits import ResponseTooLarge

_STDERR_LINES: Final = 10


@dataclass(slots=True, kw_only=True)
class Link:
    """Observed state of one connection's transport.

    Attributes:
        ended: Called once, when the transport can receive nothing more.
        limits: Most bytes that the server may send.
        over: Whether `ended` was called.
        session_id: The session's id, from an HTTP header of the server.
        http_version: The HTTP version, such as `1.1`.
        protocol_version: The MCP version, once it is negotiated.
        listings: Active `tools/list` requests by their id.
        refusal: Reason for which the connection was closed, if a message was too large.
        stderr: The last lines that the server process wrote to its standard error.
    """

    ended: Callable[[], None]
    limits: ByteLimits
    over: bool = False
    session_id: str | None = None
    http_version: str | None = None
    protocol_version: str | None = None
    refusal: ResponseTooLarge | None = None
    listings: dict[str, Exchange | None] = field(default_factory=dict)
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))

    def end(self) -> None:
        """Record that the transport can receive nothing more."""
        if not self.over:
            self.over = True
            self.ended()

    def counted(self, message: JSONRPCMessage, size: int) -> JSONRPCMessage:
        """Return a message of this size, or an error if it is a page with which its listing is too large."""
        if not isinstance(message, JSONRPCResponse):
            return message
        exchange = self.listings.get(str(message.id))
        if exchange is None or exchange.method != LISTING:
            return message
        try:
            exchange.counter(self.limits).add(size)
        except ResponseTooLarge as error:
            exchange.refuse(error)
            problem = ErrorData(code=INTERNAL_ERROR, message=str(error))
            return JSONRPCError(jsonrpc="2.0", id=message.id, error=problem)
        return message
