"""What lists tools, and what may be said about it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.tools.tool import Tool, ToolSource

Listing: TypeAlias = Sequence[Tool] | Awaitable[Sequence[Tool]]
Tools: TypeAlias = tuple[Tool, ...]
OnInvalid: TypeAlias = Literal["fail", "quarantine"]


@runtime_checkable
class ToolProvider(Protocol):
    """Something that lists tools; asked once per iteration and never cached by the runtime.

    It may be shared by many runs at the same time. It raises when it cannot tell what its tools are, and never answers
    `[]` instead. These attributes are read if they are there:

    - `kind`: a value of `pellucid.provider.kind`;
    - `objective`: seconds that a round trip should take, exported for alerts;
    - `timeout`: seconds, instead of `Limits.discovery_timeout`;
    - `server_address`, `server_port`;
    - `source`: where its tools come from, if they do not say that they are from elsewhere than the application;
    - `on_invalid`: `"quarantine"` leaves broken tools out, with an event, instead of failing;
    - `detached`: true if it leaves at once when it is cancelled, whatever its hub does, counts its fetches itself, and
      keeps to its `timeout` itself if it has one;
    - `aclose()`;
    - `explain(ctx)`: sync or async; gives `agent.explain` the reasons why a tool is not listed, see `ExplainContext`.
    """

    @property
    def id(self) -> str:
        """Value of `pellucid.provider.id`."""
        ...

    def list_tools(self, ctx: DiscoveryContext) -> Listing:
        """Return the tools of this moment, or an awaitable of them."""
        ...


@dataclass(frozen=True, slots=True)
class HubCatalog:
    """Tools of a hub that says for how many seconds they are good; otherwise `ttl` says so."""

    tools: Tools
    lifetime: float


class ExplainContext(Protocol):
    """The tool that `agent.explain` asks a provider about, as the provider's `explain(ctx)` receives it.

    A wrapper explains itself, and lets the provider behind it do the same:

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
        ...

    @property
    def discovery(self) -> DiscoveryContext:
        """Context of the listing."""
        ...

    @property
    def is_listed(self) -> bool:
        """Whether the provider lists the tool."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the provider failed, if it did."""
        ...

    def add(self, reason: str, *, is_known: bool = True) -> None:
        """Add a reason, once.

        Args:
            reason: A sentence without a capital letter and a full stop.
            is_known: The provider knows the tool, so that its name is not misspelled.
        """
        ...

    def is_among(self, tools: Sequence[Tool]) -> bool:
        """Whether the tool is among `tools`; their names are suggested for one that is misspelled."""
        ...

    async def ask(self, provider: ToolProvider) -> ExplainContext:
        """List the tools of another provider, and return the context of its explanation."""
        ...

    async def explain(self) -> None:
        """Add the reasons of the provider that this context is about."""
        ...


class ToolHub(Protocol):
    """A remote catalogue, as `DiscoveryProvider` asks it."""

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool] | HubCatalog:
        """Make a round trip and return the tools."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """The optional attributes of a provider, read once."""

    kind: str
    objective: float | None
    server_address: str | None
    server_port: int | None
    source: ToolSource | None
    on_invalid: OnInvalid
    detached: bool
    timeout: float | None

    @classmethod
    def of(cls, provider: ToolProvider) -> ProviderFacts:
        """Read a provider's attributes.

        Raises:
            ConfigError: it is not a provider, or an attribute makes no sense.
        """
        given: Any = provider
        named = isinstance(getattr(given, "id", None), str) and given.id
        if not named or not callable(getattr(given, "list_tools", None)):
            raise ConfigError(
                f"{given!r} is not a tool provider: it needs a non-empty `id` and `list_tools(ctx)`; "
                f"plain tools go to Agent(tools=...) or static_tools()"
            )
        objective = getattr(given, "objective", None)
        if objective is not None and not objective > 0:
            raise ConfigError(f"provider {given.id!r}: objective={objective!r} must be a positive number of seconds")
        return cls(
            kind=getattr(given, "kind", "custom"),
            objective=objective,
            server_address=getattr(given, "server_address", None),
            server_port=getattr(given, "server_port", None),
            source=getattr(given, "source", None),
            on_invalid=getattr(given, "on_invalid", "fail"),
            detached=getattr(given, "detached", False),
            timeout=getattr(given, "timeout", None),
        )
