"""The instrumentor, which `opentelemetry-instrument` finds by its entry point."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # not in its `__all__`

from pellucid_instrumentation.faults import guarded
from pellucid_instrumentation.hubs import Endpoint, Hubs, ObservedHub, chooser_of
from pellucid_instrumentation.names import Names
from pellucid_instrumentation.patches import Patches
from pellucid_instrumentation.sessions import Sessions
from pellucid_instrumentation.transports import Transports

DEPENDENCIES: Final = ("mcp >= 1.20, < 3",)


class PellucidInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # which has no types
    """Observes the client of the MCP SDK, below all frameworks. There is one for each process."""

    _patches: Final = Patches()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what is instrumented."""
        return DEPENDENCIES

    def _instrument(self, **kwargs: Any) -> None:
        hubs: Hubs | None = kwargs.get("hubs")
        choose, names, patches = chooser_of(hubs), Names(), self._patches

        def locate(endpoint: Endpoint) -> tuple[Endpoint, ObservedHub]:
            named = names.named(endpoint)
            return named, guarded(choose, named) or ObservedHub(named.default_id)

        transports = Transports(locate)
        for part in (names, transports, Sessions(transports)):
            part.plan(patches)
        patches.start()

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.stop()
