"""Explanations of why a model is, or is not, offered a tool."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from pellucid.context import UNLIMITED, DiscoveryContext
from pellucid.errors import DiscoveryError, ToolNameCollision
from pellucid.failures import describe
from pellucid.providers.listing import Lister
from pellucid.providers.provider import ToolProvider
from pellucid.selection.activation import Activation
from pellucid.selection.meta import meta_tools
from pellucid.selection.permission import Permissions, request_for
from pellucid.selection.policy import PERMITTED, Ruling, Stage, ask
from pellucid.telemetry import Scope, TelemetryOptions, enter_scope, leave_scope
from pellucid.text import clean
from pellucid.tools.catalog import Catalog, Catalogs, ProviderCatalog
from pellucid.tools.collisions import Binding, reasons_of
from pellucid.tools.names import LAZY_DISCOVERY, LOAD_SKILL, TOOL_SEARCH
from pellucid.tools.tool import Tool

_NOWHERE: Final = TelemetryOptions(
    tracer_provider=NoOpTracerProvider(),
    meter_provider=NoOpMeterProvider(),
    log_sinks=(),
    listeners=(),
    catalog_sinks=(),
)
_OFFERED_WITH: Final[Mapping[str, str]] = {
    TOOL_SEARCH: "tools that are found by searching",
    LAZY_DISCOVERY: "lazy tools that are discovered by name",
    LOAD_SKILL: "skills",
}
"""Condition under which an agent offers each of Pellucid's own tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of why a model is, or is not, offered a tool; `str()` returns it as text.

    Attributes:
        visible: Whether the tool is offered from the start of a run.
        provider_id: Id of the tool's provider; None if no provider lists it, or if several do and a run would fail.
        reasons: One sentence for each provider, gate, skill, collision and policy involved.
        via: If the tool is lazy, the tool with which the model activates it: `tool_search` or
            `__lazy__tool__discovery__`.
    """

    tool_name: str
    visible: bool
    provider_id: str | None
    reasons: tuple[str, ...]
    via: str | None = None

    def __str__(self) -> str:
        reasons = "".join(f"\n- {reason}" for reason in self.reasons)
        return f"Tool {self.tool_name!r} is {'' if self.visible else 'not '}offered:{reasons}"


async def explain(
    agent: str,
    listers: Sequence[Lister],
    catalogs: Catalogs,
    permissions: Permissions | None,
    within: float | None,
    name: str,
    ctx: DiscoveryContext,
) -> Explanation:
    """Explain a tool from the providers' lists, each obtained within `within` seconds, and the policy's rulings."""
    ctx = replace(ctx, patience=UNLIMITED)
    scope = Scope(agent=agent, identity=ctx.identity, pipeline=_NOWHERE)  # no telemetry: this is not a run
    scope.iteration = ctx.iteration
    search = _Search(scope, name, ctx, permissions, within)
    scope_token = enter_scope(scope)
    try:
        parts = [part for lister in listers if (part := await search.ask(lister)) is not None]
    finally:
        leave_scope(scope_token)
    catalog, reasons = catalogs.of(parts), search.reasons
    try:
        catalog.check()
        binding = catalog.bindings.get(name)
        reasons += reasons_of(name, catalog.shadowed, f"collisions={catalogs.collisions!r}")
    except ToolNameCollision as error:
        binding = None
        reasons.append(
            f"{error.first!r} and {error.second!r} both list {error.tool_name!r}; with collisions='error' a run fails"
        )
    else:
        if binding is None and name in _OFFERED_WITH:
            binding = await search.meta(catalog)
        elif binding is None and not search.is_known:
            reasons.append(search.unknown([*search.names, *catalog.bindings]))
    visible, via = False, None
    if binding is not None:
        visible = await search.allows("offer", binding, "it")
        via = None if name not in catalog.lazy else LAZY_DISCOVERY if name in catalog.named else TOOL_SEARCH
    if binding is not None and via is not None:
        reasons.append(f"it is lazy: the model activates it with {via!r} before it can call it")
        if visible:
            await search.allows("offer", search.metas(catalog)[via], repr(via))
            await search.allows("activation", binding, "its activation")
    return Explanation(
        tool_name=name,
        visible=visible and via is None and not search.has_failed,
        provider_id=binding.provider_id if binding is not None else None,
        reasons=tuple(reasons),
        via=via,
    )


@dataclass(slots=True)
class _Search:
    """Search for one tool among an agent's providers.

    Attributes:
        name: Name of the tool.
        ctx: Context for the providers.
        within: Seconds that a provider may take.
        reasons: Reasons so far.
        names: Names of the tools seen so far.
        is_known: Whether any provider knows the tool.
        has_failed: Whether a provider failed whose failure would also fail a run.
    """

    scope: Scope
    name: str
    ctx: DiscoveryContext
    permissions: Permissions | None
    within: float | None
    reasons: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    is_known: bool = False
    has_failed: bool = False

    async def ask(self, lister: Lister) -> ProviderCatalog | None:
        """Return a provider's catalogue, and add why it does or does not have the tool."""
        answer = await self.list(lister)
        if answer.problem is not None:
            self.has_failed = True
            reason = f"provider {lister.provider.id!r} failed, and a run fails with it unless a rule helps"
            answer.add(f"{reason}: {answer.problem}", is_known=False)
        await answer.explain()
        return answer.catalog

    async def list(self, lister: Lister) -> _Answer:
        """Return a provider's catalogue, or its failure."""
        try:
            catalog = await lister.peek(self.ctx, self.within)
        except DiscoveryError as error:
            return _Answer(self, lister.provider, error.problem, None)
        self.names += [tool.name for tool in catalog.tools]
        return _Answer(self, lister.provider, None, catalog)

    def unknown(self, names: Sequence[str]) -> str:
        """Return the reason for a tool that no provider lists, with similar names."""
        variants = dict.fromkeys((self.name, self.name.rsplit("__", maxsplit=1)[-1]))  # a collision may add a prefix
        close = dict.fromkeys(match for item in variants for match in get_close_matches(item, sorted(set(names)), n=3))
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        which = " that responded" if self.has_failed else ""
        return f"no provider of agent {self.scope.agent!r}{which} lists a tool of this name{hint}"

    async def meta(self, catalog: Catalog) -> Binding | None:
        """Return the binding of the tool, one of Pellucid's own, if the agent offers it."""
        lazy = {TOOL_SEARCH: catalog.searched, LAZY_DISCOVERY: catalog.named}.get(self.name, {})
        if not lazy:
            condition = _OFFERED_WITH[self.name]
            self.reasons.append(f"it is offered to agents with {condition}; agent {self.scope.agent!r} has none")
            return None
        rulings = await self.rulings("offer", list(lazy.values()))
        permitted = sum(ruling.permission in PERMITTED for ruling in rulings)
        if permitted == 0:
            self.reasons.append(f"it is for {len(lazy)} lazy tools, none of which the policy allows")
            return None
        self.reasons.append(f"it is for {permitted} lazy tool{'s' if permitted > 1 else ''}")
        return self.metas(catalog)[self.name]

    def metas(self, catalog: Catalog) -> Mapping[str, Binding]:
        """Return the tools that discover the lazy ones of a catalogue."""
        return meta_tools(Activation(self.scope, None, 0), catalog)

    async def rulings(self, stage: Stage, bindings: Sequence[Binding]) -> Sequence[Ruling]:
        """Return the policy's rulings on tools, up to the first halt."""
        if self.permissions is None:
            return [Ruling("allow", "")] * len(bindings)
        requests = [request_for(self.scope, stage, binding) for binding in bindings]
        return await ask(self.permissions.policy, requests, self.permissions.within)

    async def allows(self, stage: Stage, binding: Binding, subject: str) -> bool:
        """Return whether the policy allows a tool, and add the reason."""
        if self.permissions is None:
            return True
        [ruling] = await self.rulings(stage, [binding])
        if ruling.permission in PERMITTED:
            suffix = " and leaves each call to a person" if ruling.permission == "ask" and stage == "offer" else ""
            self.reasons.append(f"the policy allows {subject}{suffix}")
            return True
        about = "" if subject == "it" else f" of {subject}"
        reason = ruling.reason if ruling.fault is None else f"{ruling.reason}: {describe(ruling.fault)}"
        self.reasons.append(f"the policy says {ruling.permission}{about}: {reason}")
        return False


@dataclass(frozen=True, slots=True)
class _Answer:
    """`ExplainContext` of one provider."""

    search: _Search
    provider: ToolProvider
    problem: str | None
    catalog: ProviderCatalog | None

    @property
    def tool_name(self) -> str:
        return self.search.name

    @property
    def discovery(self) -> DiscoveryContext:
        return self.search.ctx

    @property
    def is_listed(self) -> bool:
        return self.catalog is not None and any(tool.name == self.tool_name for tool in self.catalog.tools)

    def add(self, reason: str, *, is_known: bool = True) -> None:
        self.search.is_known |= is_known
        if reason not in self.search.reasons:
            self.search.reasons.append(reason)

    def is_among(self, tools: Sequence[Tool]) -> bool:
        names = [tool.name for tool in tools]
        self.search.names += names
        return self.tool_name in names

    async def ask(self, provider: ToolProvider) -> _Answer:
        return await self.search.list(Lister(provider))

    async def explain(self) -> None:
        """Add the provider's reasons, from its `explain` if it has one."""
        if self.is_listed:
            self.add(f"provider {self.provider.id!r} lists it")
        if (explain := getattr(self.provider, "explain", None)) is not None:
            try:
                pending = explain(self)
                if inspect.isawaitable(pending):
                    await pending
            except Exception as error:  # noqa: BLE001  (providers are the application's)
                self.add(f"provider {self.provider.id!r} cannot explain itself: {describe(error)}", is_known=False)
        for hidden in self.catalog.hidden if self.catalog is not None else ():
            if hidden.tool_name == self.tool_name:
                outcome = "removed" if hidden.removed else "kept, because calls repeat the text"
                self.add(f"its {hidden.place} has hidden characters, {outcome}: {clean(hidden.text)}")
        for name, why in getattr(self.catalog, "why", ()):
            if name == self.tool_name:
                self.add(f"provider {self.provider.id!r} lists it, but {why}")
        if self.catalog is not None and (problem := dict(self.catalog.quarantined).get(self.tool_name)) is not None:
            self.add(f"provider {self.provider.id!r} lists it, but it is invalid and left out: {problem}")
