"""The configuration of an agent with stand-ins for its model, its providers and its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from pellucid import semconv
from pellucid.compaction import Context, Summarize
from pellucid.context import DiscoveryContext, ToolContext
from pellucid.models import Model
from pellucid.models.alternatives import candidates
from pellucid.models.fallback import FallbackModel
from pellucid.providers import ToolProvider
from pellucid.providers.listing import Lister
from pellucid.providers.skills import SkillProvider
from pellucid.providers.static import StaticTools
from pellucid.reliability import Reliability
from pellucid.run.outcomes import Suspended
from pellucid.run.pausing.state import pending
from pellucid.run.state import Configuration, Setup, current_run
from pellucid.run.subagent import agent_tool
from pellucid.telemetry import Listeners
from pellucid.tools import Tool
from pellucid.tools.catalog import Catalogs, check_catalog
from pellucid.tools.names import RESERVED
from pellucid.tools.provider_tool import ProviderTool
from pellucid.tools.tool import AgentTool
from pellucid.types import JSONObject
from pellucid_replay import contents
from pellucid_replay.playback import Playback
from pellucid_replay.stand_ins import TapeModel, TapeProvider
from pellucid_replay.tape import TapedSpan

_SEEN: Final = ("name", "description", "parameters", "output_schema")
"""Parts of a tool that a model sees."""

_UNLIMITED: Final = 2**40
"""Bytes; recorded results were cut when they were recorded."""


def staged(setup: Setup, playback: Playback) -> Setup:
    """Return the configuration for the replay of one run, which leaves that of the agent as it is."""
    live = playback.session.live
    agents = {tool.name: tool for tool in setup.tools if isinstance(tool, AgentTool)}
    limits = replace(setup.limits, timeout=None, approval_timeout=None, max_result_bytes=_UNLIMITED)
    if not live:
        limits = replace(limits, discovery_timeout=None, model_timeout=None, tool_timeout=None)
    return replace(
        setup,
        model=setup.model if "model" in live else _model(setup.model, playback),
        context=setup.context if "model" in live or setup.context is None else _context(setup.context, playback),
        reliability=_without_waiting(setup.reliability) if setup.reliability is not None else None,
        listers=tuple(_lister(lister, playback, agents) for lister in setup.listers),
        limits=limits,
        catalogs=Catalogs(setup.catalogs.collisions, is_lazy=setup.catalogs.is_lazy),
        listeners=Listeners(),
        captured={},
    )


def _model(model: Model, playback: Playback) -> Model:
    models = [TapeModel(playback, candidate) for candidate in candidates(model)]
    if isinstance(model, FallbackModel):
        return FallbackModel(*models, on=model._on)  # noqa: SLF001  (its twin)
    return models[0]


def _context(context: Context, playback: Playback) -> Context:
    """Return the option `context` with summaries from the tape."""
    strategies = [
        Summarize(_model(each.model, playback), max_tokens=each.max_tokens) if isinstance(each, Summarize) else each
        for each in context.strategies
    ]
    twin: Context = replace(context, strategies=strategies)
    return twin


def _without_waiting(reliability: Reliability) -> Reliability:
    """Return the rules with circuits of their own, and without waiting."""
    twin: Reliability = replace(reliability, sleep=_checkpoint)
    return twin


async def _checkpoint(_: float) -> None:
    await checkpoint()


def _lister(lister: Lister, playback: Playback, agents: dict[str, AgentTool]) -> Lister:
    provider = lister.provider
    if f"hub:{provider.id}" in playback.session.live:
        return lister
    if isinstance(provider, SkillProvider):
        return Lister(_StagedSkills(playback, provider, agents), serves_stale=False)
    if isinstance(provider, StaticTools):
        return Lister(_StagedTools(playback, provider, agents), serves_stale=False)
    return Lister(_StagedProvider(playback, provider, agents), serves_stale=False)


class _StagedProvider(TapeProvider):
    """Stand-in for a provider of an agent, some of whose tools are agents."""

    def __init__(self, playback: Playback, provider: ToolProvider, agents: dict[str, AgentTool]) -> None:
        super().__init__(playback, provider.id, [playback.taped.root], provider)
        self._agents = agents

    def _stand_in(self, tool: Tool) -> Tool:
        stand_in = super()._stand_in(tool)
        agent = self._agents.get(tool.name)
        if agent is None or f"tool:{tool.name}" in self._playback.session.live:
            return stand_in
        return replace(stand_in, run=partial(self._call_agent, agent, stand_in.run))

    async def _call_agent(self, agent: AgentTool, answer: Any, arguments: JSONObject, ctx: ToolContext) -> Any:
        """Replay the nested run of a call; without one, answer from the tape."""
        outer = self._playback
        span = outer.peek(agent.name, arguments, ctx)
        nested = outer.taped.nested.get(span.span_id) if span is not None else None
        if span is None or nested is None:
            return await answer(arguments, ctx)
        span = await outer.call(agent.name, arguments, ctx)
        if span is None:
            return await answer(arguments, ctx)
        inner = outer.inside(nested)
        setup, namespace = staged(agent.configured(), inner), inner.taped.namespace(ctx.idempotency_key)
        twin = agent_tool(lambda: Configuration(setup), agent.name, agent.description, None, namespace)
        try:
            value = await _before(inner.ended, partial(twin.run, arguments, replace(ctx, expires_at=None)))
        except Exception as error:
            raise error if span.outcome == semconv.COMPLETED else contents.tool_failure(span) from error
        if inner.ended.is_set():
            await outer.end_if_stopped(span)
        if span.outcome != semconv.COMPLETED:  # such as one that timed out
            if isinstance(value, Suspended) and (run := current_run()) is not None:
                for request in value.external:
                    pending(run).calls.nested.pop(request.result_id, None)  # nobody waits for them
            raise contents.tool_failure(span)
        return value


class _StagedTools(_StagedProvider):
    """Stand-in for the provider of an agent's own tools: they are the agent's, and answer from the tape."""

    def __init__(self, playback: Playback, provider: StaticTools, agents: dict[str, AgentTool]) -> None:
        super().__init__(playback, provider, agents)
        self._own = tuple(self._stand_in(tool) for tool in provider.tools)
        self._catalog = check_catalog(provider.id, self._own, quarantine=True)  # as a recorded run had it

    async def _listed(self, span: TapedSpan) -> Sequence[Tool]:
        """Return the agent's tools, if the model got the same ones."""
        recorded = span.get(semconv.CATALOG_DIGEST)
        if recorded != self._catalog.digest:
            catalog = self._playback.taped.tape.catalogs[str(recorded)]
            before, after = (
                [{name: tool.get(name) for name in _SEEN} for tool in tools]
                for tools in (catalog["tools"], [tool.definition.to_dict() for tool in self._catalog.tools])
            )
            await self._playback.differs(span, "catalogue", before, after)
        return self._own

    def _stand_in(self, tool: Tool) -> Tool:
        if f"tool:{tool.name}" in self._playback.session.live or isinstance(tool, ProviderTool):
            return tool
        return replace(
            super()._stand_in(tool),
            needs_approval=tool.needs_approval,
            mode="inline",
            timeout=None,
            expires_in=None,
            heartbeat=None,
        )


class _StagedSkills(_StagedProvider):
    """Stand-in for the provider of an agent's skills: they are the agent's, and their tools answer from the tape."""

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tool that loads skills, and those of active ones."""
        listed = await self._list_live(ctx)
        key = ",".join(ctx.active_skill_ids)
        if key not in self._tools:
            self._tools[key] = tuple(tool if tool.name in RESERVED else self._stand_in(tool) for tool in listed)
        return self._tools[key]


async def _before(ended: anyio.Event, work: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of work, or None if the event is set first, which cancels the work.

    Raises:
        Exception: the work failed.
    """
    results: list[Any] = []
    failures: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001  (raised below, outside of the task group)
            failures.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await ended.wait()
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0] if results else None
