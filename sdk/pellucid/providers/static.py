"""Provider that always lists the same tools, such as the agent's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pellucid.context import DiscoveryContext
from pellucid.providers.provider import Listing, ToolProvider
from pellucid.tools.tool import Tool
from pellucid.types import DepsT


@dataclass(frozen=True, slots=True)
class StaticTools:
    """Result of `static_tools`."""

    tools: tuple[Tool[Any], ...]
    id: str = "static"
    kind: str = "static"
    measures_requests: bool = True

    def list_tools(self, ctx: DiscoveryContext) -> Listing:
        """Return the tools."""
        return self.tools


def static_tools(tools: Iterable[Tool[DepsT]]) -> ToolProvider[DepsT]:
    """Return a provider with the id `static` that always lists `tools`, copied at the call."""
    return StaticTools(tuple(tools))
