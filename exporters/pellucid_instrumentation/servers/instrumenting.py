"""Instrumentation of a server object, of whatever package it is."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.telemetry import Pipeline
from pellucid_instrumentation.servers.legacy import Legacy
from pellucid_instrumentation.servers.modern import Modern
from pellucid_instrumentation.servers.observed import ObservedServer

_MARK: Final = "_pellucid_instrumentation"
"""Attribute of an instrumented low-level server."""

_WITHIN: Final = ("_lowlevel_server", "_mcp_server")
"""Attributes of MCPServer and of FastMCP that hold their low-level server."""

_lock: Final = threading.Lock()


def instrument(server: Any, objective: float | None, telemetry: Pipeline | None) -> None:
    """Instrument a server, or change its objective."""
    if objective is not None and not 0 < objective < math.inf:
        raise ConfigError(f"instrument_server(objective={objective!r}): must be a positive number of seconds")
    low = _low_level(server, "instrument_server()")
    with _lock:
        present: Modern | Legacy | None = getattr(low, _MARK, None)
        if present is None:
            present = _instrumented(server, low, telemetry)
            setattr(low, _MARK, present)
        present.observed.state.objective = None if objective is None else float(objective)


def restore(server: Any) -> None:
    """Restore a server; one that is not instrumented stays as it is."""
    low = _low_level(server, "uninstrument_server()")
    with _lock:
        present: Modern | Legacy | None = getattr(low, _MARK, None)
        if present is not None:
            delattr(low, _MARK)
            present.restore()


def _instrumented(server: Any, low: Any, telemetry: Pipeline | None) -> Modern | Legacy:
    version = getattr(low, "version", None)
    observed = ObservedServer(str(low.name), version, _handles(low), _has_tool(server, low), telemetry)
    if hasattr(low, "middleware"):
        return Modern(low, observed, _suppress(low))
    return Legacy(low, observed)


def _low_level(server: Any, function: str) -> Any:
    """Return the low-level server of the SDK in a server."""
    # A server was made with a module that is loaded; what is not a server needs none.
    module = sys.modules.get("mcp.server.lowlevel.server")
    kind = getattr(module, "Server", None)
    candidates = (server, *(getattr(server, name, None) for name in _WITHIN))
    if kind is not None and not isinstance(server, type):
        for candidate in candidates:
            if isinstance(candidate, kind):
                return candidate
    raise ConfigError(
        f"{function} takes a Server, MCPServer or FastMCP of the package mcp, or a FastMCP of the package fastmcp; "
        f"got {server.__name__ if isinstance(server, type) else type(server).__name__}"
    )


def _handles(low: Any) -> Callable[[str], bool]:
    """Return a function that tells the methods that the server has a handler for, beside those of the protocol."""
    if hasattr(low, "get_request_handler"):
        return lambda method: (
            low.get_request_handler(method) is not None or low.get_notification_handler(method) is not None
        )
    return lambda method: False  # 1.x refuses others before the server sees them


def _has_tool(server: Any, low: Any) -> Callable[[str], bool]:
    """Return a function that tells the tools that the server itself knows of."""

    def has_tool(name: str) -> bool:
        if name in getattr(low, "_tool_cache", ()):  # what a server of 1.x has listed
            return True
        return name in getattr(getattr(server, "_tool_manager", None), "_tools", ())

    return has_tool


def _suppress(low: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function whose block is without the spans of `fastmcp`, which would repeat ours."""
    if not type(low).__module__.startswith("fastmcp."):
        return nullcontext
    telemetry = sys.modules.get("fastmcp.telemetry")
    found: Callable[[], AbstractContextManager[Any]] = getattr(telemetry, "suppress_fastmcp_telemetry", nullcontext)
    return found
