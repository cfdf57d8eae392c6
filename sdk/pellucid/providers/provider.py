"""Protocols of tool providers and hubs, and a provider's optional attributes."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from pellucid import semconv
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.tools.tool import Tool, ToolSource
from pellucid.types import DepsT_contra

Listing: TypeAlias = Sequence[Tool] | Awaitable[Sequence[Tool]]
Tools: TypeAlias = tuple[Tool, ...]
OnInvalid: TypeAlias = Literal["fail", "quarantine"]


@runtime_checkable
class ToolProvider(Protocol[DepsT_contra]):
    """Source of tools; called once per iteration and never cached by the runtime.

    Many runs may share a provider at the same time. A provider that cannot list its tools raises; it never returns `[]`
    instead. These optional attributes are read:

    - `kind`: a value of `pellucid.provider.kind`;
    - `objective`: latency objective of a round trip in seconds, exported for alerts;
    - `slo`: share of the round trips that should meet the objective, such as 0.99, exported for alerts;
    - `owner`, `runbook`: who owns the hub, and the address of its runbook, exported for alerts;
    - `timeout`: seconds, instead of `Limits.discovery_timeout`;
    - `server_address`, `server_port`: the hub's host and port;
    - `source`: source of those of its tools that have the default source `builtin`;
    - `on_invalid`: `"quarantine"` omits broken tools, with an event, instead of failing;
    - `detached`: true if a cancelled `list_tools` returns at once whatever the hub does, and the provider applies its
      `timeout`, if it has one, itself;
    - `measures_requests`: true if the provider makes no requests, or measures them itself; otherwise each call of
      `list_tools` that reports no cached list is measured as a request to a hub;
    - `aclose()`: releases resources;
    - `explain(ctx)`: sync or async; gives `agent.explain` the reasons why a tool is not listed, see `ExplainContext`.
    """

    @property
    def id(self) -> str:
        """Value of `pellucid.provider.id`."""

    def list_tools(
        self, ctx: DiscoveryContext
    ) -> Sequence[Tool[DepsT_contra]] | Awaitable[Sequence[Tool[DepsT_contra]]]:
        """Return the current tools, or an awaitable of them."""


@dataclass(frozen=True)  # with slots, Python 3.11 cannot call `HubCatalog[Deps](...)`
class HubCatalog(Generic[DepsT_contra]):
    """Tools of a hub with a lifetime in seconds, which replaces `ttl`.

    Attributes:
        tools: The tools.
        lifetime: Seconds for which the tools are fresh.
    """

    tools: tuple[Tool[DepsT_contra], ...]
    lifetime: float


class ExplainContext(Protocol):
    """Tool that `agent.explain` asks a provider about; the argument of the provider's `explain(ctx)`.

    A wrapper explains itself, and delegates to the provider that it wraps:

    ```python
    async def explain(self, ctx: ExplainContext) -> None:
        if not ctx.is_listed:
            inner = await ctx.ask(self.inner)
            if inner.is_listed:
                ctx.add(f"provider {self.inner.id!r} lists it, but {self.id!r} is only for employees")
            else:
                await inner.explain()
    ```
    """

    @property
    def tool_name(self) -> str:
        """Name of the tool."""

    @property
    def discovery(self) -> DiscoveryContext:
        """Context of the listing."""

    @property
    def is_listed(self) -> bool:
        """True if the provider lists the tool."""

    @property
    def problem(self) -> str | None:
        """Error of the provider, if it failed."""

    def add(self, reason: str, *, is_known: bool = True) -> None:
        """Add a reason, once.

        Args:
            reason: A sentence without a capital letter and a full stop.
            is_known: Whether the provider knows the tool, so that its name is not misspelled.
        """

    def is_among(self, tools: Sequence[Tool[Any]]) -> bool:
        """Return whether the tool is among `tools`; their names are suggested for a misspelled one."""

    async def ask(self, provider: ToolProvider[Any]) -> ExplainContext:
        """List the tools of another provider, and return the context for its explanation."""

    async def explain(self) -> None:
        """Add the reasons of the provider of this context."""


class ToolHub(Protocol[DepsT_contra]):
    """Remote catalogue that `DiscoveryProvider` fetches."""

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool[DepsT_contra]] | HubCatalog[DepsT_contra]:
        """Make a round trip and return the tools."""


class ProviderFacts(NamedTuple):
    """Optional attributes of a provider, read once."""

    kind: str = "custom"
    objective: float | None = None
    slo: float | None = None
    owner: str | None = None
    runbook: str | None = None
    server_address: str | None = None
    server_port: int | None = None
    source: ToolSource | None = None
    on_invalid: OnInvalid = "fail"
    detached: bool = False
    timeout: float | None = None
    measures_requests: bool = False

    def notes(self) -> dict[str, Any]:
        """Return the facts of the provider's listings, as notes of their boundaries."""
        notes = {"provider_kind": self.kind, "objective": self.objective}
        return {**notes, "server_address": self.server_address, "server_port": self.server_port}

    def values(self) -> dict[str, float]:
        """Return the declared values of gauges, by instrument."""
        values = {semconv.DISCOVERY_OBJECTIVE.name: self.objective, semconv.HUB_SLO.name: self.slo}
        return {name: value for name, value in values.items() if value is not None}

    def info(self) -> dict[str, Any]:
        """Return what is declared about the hub, by label of `pellucid.hub.info`."""
        owned = {semconv.HUB_OWNER: self.owner, semconv.HUB_RUNBOOK: self.runbook}
        labels = {**owned, semconv.SERVER_ADDRESS: self.server_address, semconv.SERVER_PORT: self.server_port}
        return {name: value for name, value in labels.items() if value is not None}

    @classmethod
    def of(cls, provider: ToolProvider[Any]) -> ProviderFacts:
        """Read a provider's attributes.

        Raises:
            ConfigError: the object is not a provider, or an attribute is invalid.
        """
        untyped: Any = provider
        has_id = isinstance(getattr(untyped, "id", None), str) and untyped.id
        if not has_id or not callable(getattr(untyped, "list_tools", None)):
            raise ConfigError(
                f"{untyped!r} is not a tool provider: it needs a non-empty `id` and `list_tools(ctx)`; "
                f"plain tools go to Agent(tools=...) or static_tools()"
            )
        facts = cls(**{name: getattr(untyped, name) for name in cls._fields if hasattr(untyped, name)})
        objective, slo = cast("tuple[Any, Any]", (facts.objective, facts.slo))
        if objective is not None and not (isinstance(objective, int | float) and objective > 0):
            raise ConfigError(f"provider {untyped.id!r}: objective={objective!r} must be a positive number of seconds")
        if slo is not None and not (objective is not None and isinstance(slo, float) and 0 < slo < 1):
            raise ConfigError(f"provider {untyped.id!r}: slo={slo!r} must be a share below 1 beside an objective")
        return facts


async def close(resource: object) -> None:
    """Close a provider or hub, if it has `aclose`."""
    if (aclose := getattr(resource, "aclose", None)) is not None:
        await aclose()
