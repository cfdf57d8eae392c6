"""Provider that lists the tools of several others concurrently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.providers.listing import Lister, list_all
from pellucid.providers.provider import ExplainContext, ToolProvider, close
from pellucid.telemetry import current_scope
from pellucid.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of `combined`."""

    providers: tuple[ToolProvider, ...]
    on_error: Literal["fail", "skip"]
    kind: str = "combined"
    detached: bool = True
    timeout: float = math.inf  # each provider has its own
    _listers: tuple[Lister, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_listers", tuple(map(Lister, self.providers)))

    @property
    def id(self) -> str:
        """Id made of the ids of the providers."""
        return f"combined({','.join(provider.id for provider in self.providers)})"

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """List the tools of all providers, each within a boundary of its own."""
        skip = self.on_error == "skip"
        catalogs = await list_all(self._listers, current_scope(), ctx, within=ctx.timeout, skip_failed=skip)
        return tuple(tool for catalog in catalogs for tool in catalog.tools)

    async def explain(self, ctx: ExplainContext) -> None:
        """Add each provider's reasons why it does not list the tool."""
        if ctx.is_listed:
            return
        for provider in self.providers:
            part = await ctx.ask(provider)
            if part.problem is not None and self.on_error == "skip":
                reason = f"provider {provider.id!r} failed, and {self.id!r} continues without it: {part.problem}"
                ctx.add(reason, is_known=False)
            await part.explain()

    async def aclose(self) -> None:
        """Close all providers."""
        for provider in self.providers:
            await close(provider)


def combined(*providers: ToolProvider, on_error: Literal["fail", "skip"] = "fail") -> ToolProvider:
    """Return one provider that lists the tools of several, in their order, each within a boundary of its own.

    With `on_error="skip"` a provider that fails is skipped: its boundary fails with event, span and metric as usual,
    and its id is in `RunResult.degraded`.

    Raises:
        ConfigError: there is no provider, two have the same id, or `on_error` is unknown.
    """
    ids = [provider.id for provider in providers]
    if not providers or len(set(ids)) < len(ids):
        raise ConfigError(f"combined: needs at least one provider, each with an id of its own; got {ids}")
    if on_error not in ("fail", "skip"):
        raise ConfigError(f"combined: on_error={on_error!r} is unknown; use 'fail' or 'skip'")
    return Combined(providers, on_error)
