"""Pellucid's telemetry for agents that were not written with Pellucid, and for the MCP servers that agents call.

```python
from pellucid_instrumentation import ObservedHub, instrument

instrument(hubs={"mcp.example.com/*": ObservedHub("search", objective=0.5)})
```
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pellucid.module_names import module_getattr
from pellucid.telemetry import Pipeline
from pellucid_instrumentation.hubs import Endpoint, Hubs, ObservedHub

if TYPE_CHECKING:
    from pellucid_instrumentation.instrumentor import PellucidInstrumentor

    Hub: TypeAlias = ObservedHub
else:
    __getattr__ = module_getattr(__name__, deprecated={"Hub": (__name__, "ObservedHub")})

__all__ = [
    "Endpoint",
    "Hubs",
    "ObservedHub",
    "instrument",
    "instrument_server",
    "uninstrument",
    "uninstrument_server",
]

_lock: Final = threading.Lock()


def instrument(hubs: Hubs | None = None) -> None:
    """Observe all requests of the MCP SDK's client, in any framework, before or after these are imported.

    A further call, or one under `opentelemetry-instrument`, replaces the hubs.

    Args:
        hubs: Ids and objectives of hubs, by pattern of a server's name, place or URL (`*` matches anything); or a
            function that returns them for an endpoint. Without, the variable `PELLUCID_HUBS` is read, as JSON.

    Raises:
        ConfigError: a hub is invalid, the variable is, or the extra `instrumentation` is not installed.
    """
    with _lock:
        instrumentor = _instrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()
        instrumentor.instrument(hubs=hubs)


def uninstrument() -> None:
    """Restore the MCP SDK and the frameworks."""
    with _lock:
        _instrumentor().uninstrument()


def instrument_server(server: Any, objective: float | None = None, *, telemetry: Pipeline | None = None) -> None:
    """Observe all requests to an MCP server: spans, durations, sessions, and what is in flight.

    It needs no more than the package that the server is made with. A further call changes the objective.

    Args:
        server: A `Server`, `MCPServer` or `FastMCP` of the package `mcp` (1.x or 2.x), or a `FastMCP` of `fastmcp`.
        objective: Seconds that a request should take; exported for alerts, with the number of those that took longer.
        telemetry: Destination, such as what `configure(set_global=False)` returns; without, the default one.

    Raises:
        ConfigError: it is not such a server, or the objective is not positive.
    """
    from pellucid_instrumentation.servers.instrumenting import instrument as instrument_one

    instrument_one(server, objective, telemetry)


def uninstrument_server(server: Any) -> None:
    """Restore an MCP server; what is in flight is observed to its end.

    Args:
        server: As for `instrument_server`.

    Raises:
        ConfigError: it is not such a server.
    """
    from pellucid_instrumentation.servers.instrumenting import restore

    restore(server)


def _instrumentor() -> PellucidInstrumentor:
    from pellucid.errors import ConfigError

    try:
        from pellucid_instrumentation.instrumentor import PellucidInstrumentor
    except ModuleNotFoundError as error:
        raise ConfigError("instrument() needs more packages: pip install 'pellucid[instrumentation]'") from error
    return PellucidInstrumentor()
