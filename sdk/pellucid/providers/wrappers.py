"""Providers that list tools under a condition: one behaviour each, composed by wrapping."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError
from pellucid.providers.provider import ExplainContext, Listing, ProviderFacts, ToolProvider, close
from pellucid.tools.catalog import as_sequence
from pellucid.tools.tool import Tool
from pellucid.types import DepsT

PATIENCE: Final = 1.0
"""Seconds that are added to the timeout of the wrapped provider."""

Predicate: TypeAlias = Callable[[Tool[Any], DiscoveryContext], bool | Awaitable[bool]]


def explain_inactive(ctx: ExplainContext, provider_id: str, skill_id: str, tools: Sequence[Tool]) -> None:
    """Add that a tool is listed only while a skill is active, if the tool belongs to the skill."""
    if not ctx.is_listed and ctx.is_among(tools):
        active = ", ".join(map(repr, ctx.discovery.active_skill_ids)) or "none"
        ctx.add(f"provider {provider_id!r} lists it only while skill {skill_id!r} is active; active: {active}")


@dataclass(frozen=True, slots=True)
class SkillScopedTools:
    """Result of `skill_scoped_tools`."""

    skill_id: str
    tools: tuple[Tool[Any], ...]
    kind: str = "skill"
    measures_requests: bool = True

    @property
    def id(self) -> str:
        """Id made of the id of the skill."""
        return f"skill-scoped:{self.skill_id}"

    def list_tools(self, ctx: DiscoveryContext) -> Listing:
        """Return the tools if the skill is active."""
        active = ctx.active_skill_id == self.skill_id or self.skill_id in ctx.active_skill_ids
        return self.tools if active else ()

    def explain(self, ctx: ExplainContext) -> None:
        """Add that the tool needs the skill."""
        explain_inactive(ctx, self.id, self.skill_id, self.tools)


def skill_scoped_tools(skill_id: str, tools: Iterable[Tool[DepsT]]) -> ToolProvider[DepsT]:
    """Return a provider that lists `tools` while a skill is active, and nothing otherwise.

    Raises:
        ConfigError: `skill_id` is empty.
    """
    if not skill_id.strip():
        raise ConfigError.empty("skill_scoped_tools", "skill_id", "give the id of the skill")
    return SkillScopedTools(skill_id, tuple(tools))


@dataclass(frozen=True)
class GatedTools:
    """Result of `gated_tools`, with the optional attributes of the wrapped provider."""

    inner: ToolProvider[Any]
    predicate: Predicate

    def __post_init__(self) -> None:
        facts = ProviderFacts.of(self.inner)
        # Longer than the timeout of the wrapped provider, so that a stale list of that provider still arrives.
        timeout = None if facts.timeout is None else facts.timeout + PATIENCE
        vars(self).update(facts._replace(kind="gated", detached=False, timeout=timeout)._asdict())

    @property
    def id(self) -> str:
        """Id made of the id of the wrapped provider."""
        return f"gated({self.inner.id})"

    def list_tools(self, ctx: DiscoveryContext) -> Listing:
        """Return the tools that the predicate allows."""
        # If anything is async, call nothing yet: a discovery that is cancelled at once would leave coroutines that are
        # never awaited.
        if inspect.iscoroutinefunction(self.predicate) or inspect.iscoroutinefunction(self.inner.list_tools):
            return self._filter(ctx)
        answer = self.inner.list_tools(ctx)
        if inspect.isawaitable(answer):
            return self._filter(ctx, answer)
        listed = as_sequence(self.inner.id, answer)
        verdicts: list[bool | Awaitable[bool]] = []
        for tool in listed:
            verdicts.append(self._evaluate(tool, ctx))
            if inspect.isawaitable(verdicts[-1]):
                return self._filter(ctx, listed, verdicts)
        return tuple(tool for tool, verdict in zip(listed, verdicts, strict=True) if verdict)

    async def _filter(
        self, ctx: DiscoveryContext, answer: Listing | None = None, verdicts: Sequence[bool | Awaitable[bool]] = ()
    ) -> Sequence[Tool]:
        """Return the tools that the predicate allows, given its verdicts on the first ones."""
        answer = self.inner.list_tools(ctx) if answer is None else answer
        allowed: list[Tool] = []
        listed = as_sequence(self.inner.id, await answer if inspect.isawaitable(answer) else answer)
        for index, tool in enumerate(listed):
            verdict = verdicts[index] if index < len(verdicts) else self._evaluate(tool, ctx)
            if await verdict if inspect.isawaitable(verdict) else verdict:
                allowed.append(tool)
        return tuple(allowed)

    def _evaluate(self, tool: Any, ctx: DiscoveryContext) -> bool | Awaitable[bool]:
        # Anything that is not a tool passes, so that the check of the catalogue rejects or quarantines it.
        return self.predicate(tool, ctx) if isinstance(tool, Tool) else True

    async def explain(self, ctx: ExplainContext) -> None:
        """Add that the predicate withholds the tool, or the wrapped provider's reasons why it does not list it."""
        if ctx.is_listed:
            return
        inner = await ctx.ask(self.inner)
        if not inner.is_listed:
            await inner.explain()
        else:
            verb = "withholds it" if ctx.problem is None else "failed"
            ctx.add(f"provider {self.inner.id!r} lists it, but {self.id!r} {verb}")

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await close(self.inner)


def gated_tools(inner: ToolProvider[DepsT], predicate: Predicate) -> ToolProvider[DepsT]:
    """Return a provider that lists the tools of `inner` for which `predicate(tool, ctx)` is true.

    The predicate may be sync or async; nothing is awaited if both the predicate and `inner` are sync. If the predicate
    raises, the discovery fails: the gate never opens on an error.
    """
    return GatedTools(inner, predicate)
