"""Tool providers outside of a run: listings and calls with the boundaries, checks and bounds of a run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, overload

from anyio.lowlevel import current_token
from opentelemetry.trace import get_current_span

from pellucid.concurrency.race import OutOfTime, race
from pellucid.context import DiscoveryContext, Identity, Limits, ToolContext
from pellucid.errors import PolicyHalt, ToolError
from pellucid.messages import ToolCall, ToolResult
from pellucid.offer import Policy
from pellucid.offer.permission import Permissions
from pellucid.offer.policy import Ruling
from pellucid.providers import ExplainContext, Lister, ToolProvider
from pellucid.providers.listing import audience_of
from pellucid.providers.provider import close
from pellucid.run.calls.approved import needs_approval
from pellucid.run.calls.call import read_arguments, unknown_tool
from pellucid.run.calls.core import function_of, observed_call, out_of_time, progress_of
from pellucid.run.tool_results import failure_of, result_of
from pellucid.telemetry import Boundary, Listeners, Observable, Pipeline, Scope, enter_scope, leave_scope
from pellucid.tools import Tool
from pellucid.tools.catalog import Catalog, Catalogs
from pellucid.tools.catalog_cache import Remembered
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool
from pellucid.types import DepsT, DepsT_contra, JSONObject

__all__ = ["ObservedProvider", "observe"]


class ObservedProvider(Observable, Generic[DepsT_contra]):
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
        self._permissions = Permissions(policy, limits.policy_timeout) if policy is not None else None
        self._own = Listeners()
        untyped: ToolProvider[Any] = inner
        self._lister = Lister(untyped)
        self._catalogs = Catalogs()
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
        binding = catalog.find_listed(name)
        with self._scope(identity) as scope, observed_call(scope, binding, request, scope.now()) as b:
            b.input(arguments)
            try:
                value = await self._perform(scope, b, catalog, binding, request, deps, approved=approved)
                result = await result_of(request, value, self.limits.max_result_bytes)
            except Exception as error:  # noqa: BLE001  (any exception of a tool is a result, as in a run)
                b.fail(error)
                result = failure_of(request, error, self.limits.max_result_bytes)
            b.output(result.to_dict()["response"])
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
            catalog = await self._catalogs.merged([listed])
            if self._permissions is not None:
                span = get_current_span().get_span_context()
                catalog = await self._permissions.offer(scope, span, catalog, catalog.bindings, set())
        self._listed.put(audience_of(ctx), catalog, len(catalog.bindings))
        return catalog

    async def _perform(
        self,
        scope: Scope,
        b: Boundary,
        catalog: Catalog,
        binding: Binding | None,
        request: ToolCall,
        deps: Any,
        *,
        approved: bool,
    ) -> Any:
        """Check a call, and run the tool within its timeout."""
        if binding is None:
            raise unknown_tool(request.name, catalog)
        tool, span = binding.tool, b.span.get_span_context()
        assert request.id is not None
        if request.name in catalog.denied and self._permissions is not None:
            b.note(permission="deny")
            ruling = Ruling("deny", catalog.denied[request.name].reason)
            self._permissions.check(scope, span, binding, request.id, ruling)
        if tool.execution is not None or isinstance(tool, MetaTool):
            raise ToolError(f"Tool {tool.name!r} works only in a run of an agent.", error_type="run_required")
        arguments, error = read_arguments(tool, request)
        if error is not None:
            raise error
        loop = current_token()
        ctx = ToolContext(
            tool_call_id=request.id,
            idempotency_key=str(uuid.uuid4()),
            identity=scope.identity,
            deps=deps,
            progress=progress_of(scope, span, loop, request),
        )
        must_ask = await self._permit(scope, b, binding, arguments, request.id)
        needed, fault = await needs_approval(tool, arguments, lambda: ctx)
        if (must_ask or needed) and not approved:
            raise ToolError(
                f"Not run: a person must approve calls of tool {tool.name!r}.", error_type="approval_required"
            ) from fault
        timeout = tool.timeout if tool.timeout is not None else self.limits.tool_timeout
        try:
            return await race(function_of(tool), arguments, ctx, within=timeout, token=loop, at_once=True)
        except OutOfTime:
            raise out_of_time(tool, timeout) from None

    async def _permit(
        self, scope: Scope, b: Boundary, binding: Binding, arguments: JSONObject, tool_call_id: str
    ) -> bool:
        """Check a call against the policy; return whether a person must approve it."""
        if self._permissions is None:
            return False
        b.note(permission="deny")  # replaced once the policy has decided
        ruling = await self._permissions.rule(scope, binding, arguments, tool_call_id)
        b.note(permission=ruling.permission)
        if ruling.permission == "ask":
            return True
        try:
            self._permissions.check(scope, b.span.get_span_context(), binding, tool_call_id, ruling)
        except PolicyHalt as halt:
            raise ToolError(f"Not run: {halt.reason}.", error_type=halt.error_type) from halt
        return False


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
