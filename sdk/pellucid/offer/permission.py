"""Permission: what a policy lets a model see, and do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.trace import SpanContext

from pellucid.errors import PermissionDenied, PolicyHalt
from pellucid.events import ToolDenied
from pellucid.failures import describe, error_type_of
from pellucid.offer.policy import PERMITTED, PermissionRequest, Policy, Ruling, Stage, ask
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.catalog_cache import Remembered
from pellucid.tools.collisions import Binding
from pellucid.types import JSONObject


class Permissions:
    """A policy, and what it takes to hold runs to it.

    Attributes:
        policy: The policy.
        within: Seconds that it may take to answer; None for no bound.
    """

    __slots__ = ("_made", "policy", "within")

    def __init__(self, policy: Policy, within: float | None) -> None:
        self.policy = policy
        self.within = within
        self._made: Remembered[tuple[Catalog, Catalog]] = Remembered()

    async def offer(
        self,
        scope: Scope,
        span: SpanContext,
        catalog: Catalog,
        told: set[str],
        metas: Callable[[Catalog], Mapping[str, Binding]],
    ) -> Catalog:
        """Return the catalogue without the tools that the policy denies; `told` are those that an event told of.

        Then it is asked about `metas`, the tools that discover the lazy ones among those that are left.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        requests = [_request(scope, "offer", binding) for binding in catalog.bindings.values()]
        denied = await self._denied(scope, span, requests, told)
        offered = self._without(catalog, denied)
        if not offered.lazy:
            return offered
        requests = [_request(scope, "offer", binding) for binding in metas(offered).values()]
        return self._without(catalog, denied | await self._denied(scope, span, requests, told))

    async def activation(
        self, scope: Scope, span: SpanContext, bindings: Iterable[Binding], tool_call_id: str | None
    ) -> Mapping[str, Denied]:
        """Return which of some lazy tools may not be activated.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        requests = [_request(scope, "activation", binding, tool_call_id) for binding in bindings]
        return await self._denied(scope, span, requests)

    async def _denied(
        self, scope: Scope, span: SpanContext, requests: Sequence[PermissionRequest], told: set[str] | None = None
    ) -> dict[str, Denied]:
        """Ask, tell of what is denied unless that was `told`, and return it."""
        denied: dict[str, Denied] = {}
        # As many rulings as there are up to the first halt.
        for request, ruling in zip(requests, await ask(self.policy, requests, self.within), strict=False):
            if ruling.permission in PERMITTED:
                continue
            name = request.tool.name
            if ruling.permission == "halt" or told is None or name not in told:
                _tell(scope, span, request, ruling)
            if ruling.permission == "halt":
                raise PolicyHalt(name, request.stage, ruling.reason)
            if told is not None:
                told.add(name)
            denied[name] = Denied(Binding(request.tool, request.provider_id, request.tool.source), ruling.reason)
        return denied

    async def rule(self, scope: Scope, binding: Binding, arguments: JSONObject, tool_call_id: str) -> Ruling:
        """Ask the policy about a call, without telling of it."""
        request = _request(scope, "dispatch", binding, tool_call_id, arguments)
        [ruling] = await ask(self.policy, [request], self.within)
        return ruling

    def check(self, scope: Scope, span: SpanContext, binding: Binding, tool_call_id: str, ruling: Ruling) -> None:
        """Check that a ruling lets a call be made.

        Raises:
            PermissionDenied: it does not.
            PolicyHalt: it does not, and ends the run.
        """
        if ruling.permission == "allow":
            return
        request = _request(scope, "dispatch", binding, tool_call_id)
        _tell(scope, span, request, ruling)
        if ruling.permission == "halt":
            raise PolicyHalt(binding.tool.name, "dispatch", ruling.reason)
        raise PermissionDenied(binding.tool.name, ruling.reason) from ruling.fault

    def refuse(self, scope: Scope, span: SpanContext, denied: Denied, tool_call_id: str) -> PermissionDenied:
        """Return the error for a call of a tool that was not offered."""
        request = _request(scope, "dispatch", denied.binding, tool_call_id)
        _tell(scope, span, request, Ruling("deny", denied.reason))
        return PermissionDenied(denied.binding.tool.name, denied.reason)

    def _without(self, catalog: Catalog, denied: Mapping[str, Denied]) -> Catalog:
        """Return the same catalogue for the same denials, so that work on it is done once and not by each run."""
        if not denied:
            return catalog
        key = (id(catalog), frozenset((name, each.reason) for name, each in denied.items()))
        made = self._made.get(key)
        if made is None:
            permitted = {name: binding for name, binding in catalog.bindings.items() if name not in denied}
            # It keeps the whole catalogue, whose identity can then not be given to another one.
            made = (catalog, catalog.narrowed(permitted, denied=denied))
            self._made.put(key, made, len(catalog.bindings))
        return made[1]


def _request(
    scope: Scope,
    stage: Stage,
    binding: Binding,
    tool_call_id: str | None = None,
    arguments: JSONObject | None = None,
) -> PermissionRequest:
    return PermissionRequest(
        stage=stage,
        tool=binding.tool,
        provider_id=binding.provider_id,
        agent=scope.agent,
        run_id=scope.run_id,
        iteration=scope.iteration,
        identity=scope.identity,
        tool_call_id=tool_call_id,
        arguments=arguments,
    )


def _tell(scope: Scope, span: SpanContext, request: PermissionRequest, ruling: Ruling) -> None:
    if not scope.has_listener(ToolDenied.name):
        return
    reason = ruling.reason if ruling.fault is None else f"{ruling.reason}: {describe(ruling.fault)}"
    told = {
        "tool_name": request.tool.name,
        "provider_id": request.provider_id,
        "tool_call_id": request.tool_call_id,
        "stage": request.stage,
        "permission": ruling.permission,
        "reason": scope.text(reason),
        "error_type": error_type_of(ruling.fault) if ruling.fault is not None else None,
    }
    scope.emit(ToolDenied, span, told)
