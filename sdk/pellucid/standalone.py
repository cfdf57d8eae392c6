"""Tool providers outside of a run: listings and calls with the boundaries, checks and bounds of a run."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Generic, overload

from anyio.lowlevel import current_token
from opentelemetry.trace import get_current_span

from pellucid.context import DiscoveryContext, Identity, Limits
from pellucid.messages import ToolCall, ToolResult
from pellucid.models import ModelRequest, ModelResponse, PublishedPrices, StreamItem
from pellucid.providers import ExplainContext, Lister, ToolProvider
from pellucid.providers.listing import audience_of
from pellucid.providers.provider import close
from pellucid.run.dispatch import handle
from pellucid.run.state import CallerContext, Run, Setup
from pellucid.selection import Policy
from pellucid.selection.permission import Permissions
from pellucid.telemetry import Listeners, Pipeline, Scope, Subscribable, enter_scope, leave_scope
from pellucid.tools import Tool
from pellucid.tools.catalog import Catalog, Catalogs
from pellucid.tools.catalog_cache import Remembered
from pellucid.types import DepsT, DepsT_contra, JSONObject

__all__ = ["ObservedProvider", "observe"]


class ObservedProvider(Subscribable, Generic[DepsT_contra]):
    """Result of `observe`; also a provider with the id and the optional attributes of the wrapped one.

    Attributes:
        inner: The wrapped provider.
        limits: Bounds of listings and calls.
    """

    def __init__(
        self,
        inner: ToolProvider[DepsT_contra],
        *,
        telemetry: Pipeline | None,
        identity: Identity | None,
        limits: Limits,
        policy: Policy | None,
    ) -> None:
        self.inner = inner
        self.limits = limits
        self._telemetry = telemetry
        self._identity = identity
        self._own = Listeners()
        untyped: ToolProvider[Any] = inner
        self._lister = Lister(untyped)
        self._setup = Setup(
            name="",
            description=None,
            model=_NoModel(),
            instructions=None,
            output=None,
            settings={},
            parameters="",
            prices=PublishedPrices(),
            reliability=None,
            tools=(),
            listers=(self._lister,),
            limits=limits,
            catalogs=Catalogs(),
            listeners=self._own,
            skills={},
            permissions=Permissions(policy, limits.policy_timeout) if policy is not None else None,
            pin=False,
            is_standalone=True,
        )
        self._listed: Remembered[Catalog] = Remembered()
        vars(self).update(self._lister.facts._asdict())

    def __repr__(self) -> str:
        return f"observe({self.inner!r})"

    @property
    def id(self) -> str:
        """Id of the wrapped provider."""
        return self.inner.id

    @property
    def _listeners(self) -> Listeners:
        return self._own

    async def list_tools(self, ctx: DiscoveryContext | None = None) -> Sequence[Tool[DepsT_contra]]:
        """List the tools within a `discover_tools` boundary; in a run, the run's boundary is the only one.

        Raises:
            DiscoveryError: the provider failed, took longer than `Limits.discovery_timeout`, or did not return tools.
            PolicyHalt: the policy halted.
        """
        if ctx is None or not ctx.is_observed:
            catalog = await self._list(ctx or DiscoveryContext(identity=self._identity))
            return tuple(binding.tool for binding in catalog.bindings.values())
        answer = self.inner.list_tools(ctx)
        return await answer if isawaitable(answer) else answer

    @overload
    async def call_tool(
        self: ObservedProvider[None],
        name: str,
        arguments: JSONObject | str = "",
        *,
        deps: None = None,
        identity: Identity | None = None,
        approved: bool = False,
        tool_call_id: str | None = None,
    ) -> ToolResult: ...
    @overload
    async def call_tool(
        self,
        name: str,
        arguments: JSONObject | str = "",
        *,
        deps: DepsT_contra,
        identity: Identity | None = None,
        approved: bool = False,
        tool_call_id: str | None = None,
    ) -> ToolResult: ...
    async def call_tool(
        self,
        name: str,
        arguments: JSONObject | str = "",
        *,
        deps: Any = None,
        identity: Identity | None = None,
        approved: bool = False,
        tool_call_id: str | None = None,
    ) -> ToolResult:
        """Call a tool of the list that this identity got last, or of a new one, within an `execute_tool` boundary.

        Any failure of the call is a result with `is_error`: an unknown tool, arguments that do not fit its schema, a
        denial, a missing approval, a timeout, and an exception of the tool.

        Args:
            name: Name of the tool.
            arguments: Arguments, or the JSON text that a model wrote.
            deps: Value that the tool receives as `ctx.deps`.
            identity: Identity of the call; that of the provider by default.
            approved: Whether a person has approved this call, if it needs that.
            tool_call_id: Id of the call; a new one by default.

        Raises:
            DiscoveryError: the tools had to be listed first, and that failed.
        """
        identity = identity or self._identity
        ctx = DiscoveryContext(identity=identity)
        catalog = self._listed.get(audience_of(ctx)) or await self._list(ctx)
        request = ToolCall(name, arguments, tool_call_id or f"call_{uuid.uuid4().hex}")
        with self._scope(identity) as scope:
            caller = CallerContext(identity=None, signal=None, deps=deps, namespace=uuid.uuid4())
            run = Run(self._setup, (), caller, scope)
            run.token = current_token()
            run.limits = replace(self.limits, max_tool_calls=None)  # each call is on its own
            result = await handle(run, catalog, request, {} if approved else None)
        assert isinstance(result, ToolResult)  # nothing waits outside of a run
        return result

    def listed_tool(self, name: str) -> Tool[DepsT_contra] | None:
        """Return a tool of the list that the provider's identity got last; None if it is not in it."""
        catalog = self._listed.get(audience_of(DiscoveryContext(identity=self._identity)))
        binding = catalog.find_listed(name) if catalog is not None else None
        return binding.tool if binding is not None else None

    async def explain(self, ctx: ExplainContext) -> None:
        """Add the wrapped provider's reasons."""
        await (await ctx.ask(self.inner)).explain()

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await close(self.inner)

    @contextmanager
    def _scope(self, identity: Identity | None) -> Iterator[Scope]:
        """Enter a scope that belongs to no run."""
        scope = Scope(identity=identity, pipeline=self._telemetry, listeners=(self._own,))
        token = enter_scope(scope)
        try:
            yield scope
        finally:
            leave_scope(token)

    async def _list(self, ctx: DiscoveryContext) -> Catalog:
        with self._scope(ctx.identity) as scope:
            listed = await self._lister.list(scope, ctx, self.limits.discovery_timeout)
            catalog = await self._setup.catalogs.merged([listed])
            if (permissions := self._setup.permissions) is not None:
                span = get_current_span().get_span_context()
                catalog = await permissions.offer(scope, span, catalog, catalog.bindings, set())
        self._listed.put(audience_of(ctx), catalog, len(catalog.bindings))
        return catalog


class _NoModel:
    """Stand-in for the model of a setup that has no runs."""

    name = provider_name = ""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Fail: nobody asks it."""
        raise NotImplementedError

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Fail: nobody asks it."""
        raise NotImplementedError


def observe(
    provider: ToolProvider[DepsT],
    *,
    telemetry: Pipeline | None = None,
    identity: Identity | None = None,
    limits: Limits | None = None,
    policy: Policy | None = None,
) -> ObservedProvider[DepsT]:
    """Return a provider that can be asked outside of a run, with the telemetry, checks and bounds of a run.

    ```python
    catalogue = observe(DiscoveryProvider(hub, id="catalogue", objective=0.2))
    tools = await catalogue.list_tools()
    result = await catalogue.call_tool("rooms", {"floor": 2})
    ```

    Each listing is one `discover_tools` span and each call one `execute_tool` span below the current span, with
    metrics, events and log lines. They belong to no run: they have no run id, and reliability rules, pins, lazy tools
    and the other options of agents do not apply. Tools that run in the background or in another process are refused.

    Args:
        provider: The provider. It may be a provider of agents too, and so may the result.
        telemetry: Destination of the telemetry, as for `Agent`.
        identity: Identity of listings and calls that have none of their own.
        limits: Bounds: `discovery_timeout`, `tool_timeout`, `policy_timeout` and `max_result_bytes`.
        policy: Permission policy: decides which tools are listed, and which calls are made.

    Raises:
        ConfigError: the object is not a provider, or one of its attributes is invalid.
    """
    return ObservedProvider(provider, telemetry=telemetry, identity=identity, limits=limits or Limits(), policy=policy)
