"""Errors of MCP requests, as Pellucid's own provider reports them."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid.errors import DiscoveryError, DiscoveryTimeout, ToolError
from pellucid.failures import describe, type_of_code
from pellucid.failures import error_type_of as type_of

CANCELLED: Final = "cancelled"
"""Value of `error.type` of a request that was cancelled, by a timeout or because its caller ended."""

_TIMEOUTS: Final = frozenset({408, -32001})
"""Codes of the MCP SDK for a request without an answer: of 1.x and of 2.x."""
_CLOSED: Final = -32000


def code_of(error: BaseException) -> int | None:
    """Return the code of a JSON-RPC error."""
    code: Any = getattr(getattr(error, "error", None), "code", None)
    return code if isinstance(code, int) else None


def error_type_of(error: BaseException) -> str:
    """Return the value of `error.type`: `timeout`, `connection_lost`, the code of JSON-RPC, or the exception's type."""
    code = code_of(error)
    if code is None:
        return type_of(error) if isinstance(error, Exception) else CANCELLED
    if code in _TIMEOUTS:
        return semconv.TIMEOUT
    if code == _CLOSED:
        return "connection_lost"
    return type_of_code(code)


def failed_listing(hub: str, error: BaseException) -> BaseException:
    """Return the error of a listing; cancellations stay as they are."""
    if code_of(error) is None:
        return error
    kind = error_type_of(error)
    failure = (DiscoveryTimeout if kind == semconv.TIMEOUT else DiscoveryError)(hub, describe(error))
    failure.error_type = kind
    failure.__cause__ = error
    return failure


def failed_call(error: BaseException) -> BaseException:
    """Return the error of a tool call; cancellations stay as they are."""
    if code_of(error) is None:
        return error
    failure = ToolError(describe(error), error_type=error_type_of(error))
    failure.__cause__ = error
    return failure
