"""Provider that lists the tools of several others concurrently."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pellucid.context import DiscoveryContext, Patience
from pellucid.errors import ConfigError
from pellucid.providers.fetches import patience_of
from pellucid.providers.hub import DiscoveryProvider
from pellucid.providers.listing import Lister, audience_of, list_all
from pellucid.providers.provider import ExplainContext, ProviderFacts, ToolProvider, close
from pellucid.providers.wrappers import GatedTools
from pellucid.telemetry import current_scope
from pellucid.tools.tool import Tool
from pellucid.types import DepsT


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of `combined`."""

    providers: tuple[ToolProvider[Any], ...]
    on_error: Literal["fail", "skip"]
    patience: Patience | None = None
    kind: str = "combined"
    detached: bool = True
    measures_requests: bool = True
    timeout: float = math.inf  # each provider has its own
    listers: tuple[Lister, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "listers", tuple(map(Lister, self.providers)))

    @property
    def id(self) -> str:
        """Id made of the ids of the providers."""
        return f"combined({','.join(provider.id for provider in self.providers)})"

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """List the tools of all providers, each within a boundary of its own."""
        skip = self.on_error == "skip"
        if self.patience is not None and not ctx.waits:
            ctx = replace(ctx, patience=self.patience)
        catalogs = await list_all(self.listers, current_scope(), ctx, within=ctx.timeout, skip_failed=skip)
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


def combined(
    *providers: ToolProvider[DepsT],
    on_error: Literal["fail", "skip"] = "fail",
    patience: float | None = None,
    tell_model: bool = False,
) -> ToolProvider[DepsT]:
    """Return one provider that lists the tools of several, in their order, each within a boundary of its own.

    With `on_error="skip"` a provider that fails is skipped: its boundary fails with event, span and metric as usual,
    and its id is in `RunResult.degraded`.

    With `patience`, an iteration waits so many seconds for each provider that has no patience of its own; then the run
    goes on without its tools, or with the previous ones, and `tell_model` mentions that in the instructions. A listing
    of a provider with an `async def list_tools` may then be shared by runs of the same identity and skills.

    Raises:
        ConfigError: there is no provider, two have the same id, or an option is invalid.
    """
    ids = [provider.id for provider in providers]
    if not providers or len(set(ids)) < len(ids):
        raise ConfigError(f"combined: needs at least one provider, each with an id of its own; got {ids}")
    if on_error not in ("fail", "skip"):
        raise ConfigError(f"combined: on_error={on_error!r} is unknown; use 'fail' or 'skip'")
    allowed = patience_of("combined", patience, tell_model=tell_model)
    if allowed is not None:
        providers = tuple(map(_patient, providers))
    return Combined(providers, on_error, allowed)


class _Patient(DiscoveryProvider):
    """A provider whose listings can continue in the background."""

    def __init__(self, provider: ToolProvider[Any]) -> None:
        facts = ProviderFacts.of(provider)
        super().__init__(
            _Listings(provider),
            id=provider.id,
            ttl=0.0,
            key=audience_of,
            objective=facts.objective,
            timeout=DiscoveryProvider.timeout if facts.timeout is None else facts.timeout,
            on_invalid=facts.on_invalid,
        )
        self.kind = facts.kind
        self._is_hub = not facts.measures_requests
        self.source = facts.source
        self.slo, self.owner, self.runbook = facts.slo, facts.owner, facts.runbook
        self.server_address, self.server_port = facts.server_address, facts.server_port
        self._provider = provider

    async def explain(self, ctx: ExplainContext) -> None:
        """Add the provider's own reasons."""
        await (await ctx.ask(self._provider)).explain()


class _Listings:
    """The listings of a provider, as a hub."""

    def __init__(self, provider: ToolProvider[Any]) -> None:
        self._provider = provider

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """List the tools."""
        listed = self._provider.list_tools(ctx)
        return await listed if inspect.isawaitable(listed) else listed

    async def aclose(self) -> None:
        """Close the provider."""
        await close(self._provider)


def _patient(provider: ToolProvider[DepsT]) -> ToolProvider[DepsT]:
    """Return the provider, wrapped if it makes round trips and knows no patience; in wrappers, what they wrap is."""
    if isinstance(provider, Combined):
        return replace(provider, providers=tuple(map(_patient, provider.providers)))
    if isinstance(provider, GatedTools):
        return replace(provider, inner=_patient(provider.inner))
    is_async = inspect.iscoroutinefunction(getattr(provider, "list_tools", None))
    return _Patient(provider) if is_async and not hasattr(provider, "patience") else provider
