"""Pellucid's telemetry for agents that were not written with Pellucid: the MCP client below their frameworks.

```python
from pellucid_instrumentation import ObservedHub, instrument

instrument(hubs={"mcp.example.com/*": ObservedHub("search", objective=0.5)})
```
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeAlias

from pellucid.module_names import module_getattr
from pellucid_instrumentation.hubs import Endpoint, Hubs, ObservedHub

if TYPE_CHECKING:
    from pellucid_instrumentation.instrumentor import PellucidInstrumentor

    Hub: TypeAlias = ObservedHub
else:
    __getattr__ = module_getattr(__name__, deprecated={"Hub": (__name__, "ObservedHub")})

__all__ = ["Endpoint", "Hubs", "ObservedHub", "instrument", "uninstrument"]

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


def _instrumentor() -> PellucidInstrumentor:
    from pellucid.errors import ConfigError

    try:
        from pellucid_instrumentation.instrumentor import PellucidInstrumentor
    except ModuleNotFoundError as error:
        raise ConfigError("instrument() needs more packages: pip install 'pellucid[instrumentation]'") from error
    return PellucidInstrumentor()
