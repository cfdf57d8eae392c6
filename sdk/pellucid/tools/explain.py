"""Why a model is, or is not, offered a tool."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pellucid.context import DiscoveryContext
from pellucid.errors import describe
from pellucid.tools.collisions import Binding
from pellucid.tools.combined import Combined
from pellucid.tools.permission import PermissionRequest, Policy, ask
from pellucid.tools.provider import ToolProvider
from pellucid.tools.skills import SkillProvider, tools_of
from pellucid.tools.tool import Tool
from pellucid.tools.wrappers import GatedTools, SkillScopedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a model is, or is not, offered a tool; `str()` of it is a text to read.

    Attributes:
        visible: Whether it is offered.
        provider_id: Who lists it, if exactly one does.
        reasons: One sentence for each provider, gate, skill and policy that has a say in it.
    """

    tool_name: str
    visible: bool
    provider_id: str | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        reasons = "".join(f"\n- {reason}" for reason in self.reasons)
        return f"Tool {self.tool_name!r} is {'' if self.visible else 'not '}offered:{reasons}"


async def explain(
    agent: str, providers: Sequence[ToolProvider], policy: Policy | None, name: str, ctx: DiscoveryContext
) -> Explanation:
    """Ask the providers, and the policy about what they list."""
    search = _Search(name, ctx)
    bindings = [found for each in providers if (found := await search.ask(each)) is not None]
    reasons, visible = search.reasons, len(bindings) == 1
    if len(bindings) > 1:
        reasons.append(f"{' and '.join(repr(each.provider_id) for each in bindings)} list it: one name, two tools")
    if not search.mentioned:
        close = get_close_matches(name, search.seen, n=3)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        reasons.append(f"no provider of agent {agent!r} lists a tool of this name{hint}")
    if visible and policy is not None:
        binding = bindings[0]
        request = PermissionRequest(
            stage="offer",
            tool=binding.tool,
            provider_id=binding.provider_id,
            agent=agent,
            iteration=ctx.iteration,
            identity=ctx.identity,
        )
        [ruling] = await ask(policy, [request], None)
        visible = ruling.permission == "allow"
        why = ruling.reason if ruling.fault is None else f"{ruling.reason}: {describe(ruling.fault)}"
        reasons.append("the policy allows it" if visible else f"the policy says {ruling.permission}: {why}")
    return Explanation(
        tool_name=name,
        visible=visible,
        provider_id=bindings[0].provider_id if len(bindings) == 1 else None,
        reasons=tuple(reasons),
    )


class _Search:
    """Looks for one tool.

    Attributes:
        reasons: What was found out.
        seen: Names of other tools.
        mentioned: Whether any provider knows the tool, or failed so that it cannot be told.
    """

    def __init__(self, name: str, ctx: DiscoveryContext) -> None:
        self.name = name
        self.reasons: list[str] = []
        self.seen: list[str] = []
        self.mentioned = False
        self._ctx = ctx

    async def ask(self, provider: ToolProvider) -> Binding | None:
        """Return what the provider lists under the name, and say why it does or does not."""
        found = await self._list(provider)
        if found is not None:
            self._say(f"provider {provider.id!r} lists it")
            return Binding(found, provider.id, found.source)
        await self._missing(provider)
        return None

    async def _missing(self, provider: ToolProvider) -> None:
        """Say why a provider does not list the tool, if it knows it at all."""
        if isinstance(provider, GatedTools):
            if await self._list(provider.inner) is not None:
                self._say(f"provider {provider.inner.id!r} lists it, but {provider.id!r} keeps it back")
            else:
                await self._missing(provider.inner)
        elif isinstance(provider, Combined):
            for each in provider.providers:
                await self._missing(each)
        elif isinstance(provider, SkillScopedTools):
            self._inactive(provider.id, provider.skill_id, provider.tools)
        elif isinstance(provider, SkillProvider):
            for skill in provider.skills.values():
                self._inactive(provider.id, skill.id, tools_of(skill))

    def _inactive(self, provider_id: str, skill_id: str, tools: Sequence[Tool]) -> None:
        if any(tool.name == self.name for tool in tools):
            active = ", ".join(map(repr, self._ctx.active_skill_ids)) or "none"
            self._say(f"provider {provider_id!r} lists it only while skill {skill_id!r} is active; active: {active}")

    async def _list(self, provider: ToolProvider) -> Tool | None:
        try:
            listed = provider.list_tools(self._ctx)
            tools = await listed if inspect.isawaitable(listed) else listed
            self.seen += [tool.name for tool in tools]
            return next((tool for tool in tools if tool.name == self.name), None)
        except Exception as error:  # noqa: BLE001  (a provider that fails is an explanation too)
            self._say(f"provider {provider.id!r} failed, and a run with it would too: {describe(error)}")
            return None

    def _say(self, reason: str) -> None:
        self.mentioned = True
        if reason not in self.reasons:
            self.reasons.append(reason)
