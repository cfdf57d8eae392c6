"""Permission: applies a policy to the offer, to activations and to calls."""

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
    """The permission policy of an agent, as applied to its runs.

    Attributes:
        policy: The policy.
        within: Seconds that the policy may take to decide; None for no bound.
    """

    __slots__ = ("_narrowed", "policy", "within")

    def __init__(self, policy: Policy, within: float | None) -> None:
        self.policy = policy
        self.within = within
        self._narrowed: Remembered[tuple[Catalog, Catalog]] = Remembered()

    async def offer(
        self,
        scope: Scope,
        span: SpanContext,
        catalog: Catalog,
        reported: set[str],
        metas: Callable[[Catalog], Mapping[str, Binding]],
    ) -> Catalog:
        """Return the catalogue without the denied tools; `reported` has the names that already had an event.

        If lazy tools remain, the policy also rules on `metas`, the tools that discover them.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        requests = [_request(scope, "offer", binding) for binding in catalog.bindings.values()]
        denied = await self._denied(scope, span, requests, reported)
        offered = self._without(catalog, denied)
        if not offered.lazy:
            return offered
        requests = [_request(scope, "offer", binding) for binding in metas(offered).values()]
        return self._without(catalog, denied | await self._denied(scope, span, requests, reported))

    async def activation(
        self, scope: Scope, span: SpanContext, bindings: Iterable[Binding], tool_call_id: str | None
    ) -> Mapping[str, Denied]:
        """Return the lazy tools among `bindings` that may not be activated.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        requests = [_request(scope, "activation", binding, tool_call_id) for binding in bindings]
        return await self._denied(scope, span, requests)

    async def _denied(
        self, scope: Scope, span: SpanContext, requests: Sequence[PermissionRequest], reported: set[str] | None = None
    ) -> dict[str, Denied]:
        """Ask the policy, emit an event for each denial that is not `reported`, and return the denials."""
        denied: dict[str, Denied] = {}
        # There are no rulings after the first halt.
        for request, ruling in zip(requests, await ask(self.policy, requests, self.within), strict=False):
            if ruling.permission in PERMITTED:
                continue
            name = request.tool.name
            if ruling.permission == "halt" or reported is None or name not in reported:
                _emit(scope, span, request, ruling)
            if ruling.permission == "halt":
                raise PolicyHalt(name, request.stage, ruling.reason)
            if reported is not None:
                reported.add(name)
            denied[name] = Denied(Binding(request.tool, request.provider_id, request.tool.source), ruling.reason)
        return denied

    async def rule(self, scope: Scope, binding: Binding, arguments: JSONObject, tool_call_id: str) -> Ruling:
        """Return the policy's ruling on a call, without emitting an event."""
        request = _request(scope, "dispatch", binding, tool_call_id, arguments)
        [ruling] = await ask(self.policy, [request], self.within)
        return ruling

    def check(self, scope: Scope, span: SpanContext, binding: Binding, tool_call_id: str, ruling: Ruling) -> None:
        """Check that a ruling allows a call.

        Raises:
            PermissionDenied: it denies the call.
            PolicyHalt: it ends the run.
        """
        if ruling.permission == "allow":
            return
        request = _request(scope, "dispatch", binding, tool_call_id)
        _emit(scope, span, request, ruling)
        if ruling.permission == "halt":
            raise PolicyHalt(binding.tool.name, "dispatch", ruling.reason)
        raise PermissionDenied(binding.tool.name, ruling.reason) from ruling.fault

    def refuse(self, scope: Scope, span: SpanContext, denied: Denied, tool_call_id: str) -> PermissionDenied:
        """Emit the denial of a call to a denied tool, and return its error."""
        request = _request(scope, "dispatch", denied.binding, tool_call_id)
        _emit(scope, span, request, Ruling("deny", denied.reason))
        return PermissionDenied(denied.binding.tool.name, denied.reason)

    def _without(self, catalog: Catalog, denied: Mapping[str, Denied]) -> Catalog:
        """Return a catalogue without the denied tools: the same object for the same denials, shared by all runs."""
        if not denied:
            return catalog
        key = (id(catalog), frozenset((name, denial.reason) for name, denial in denied.items()))
        entry = self._narrowed.get(key)
        if entry is None:
            permitted = {name: binding for name, binding in catalog.bindings.items() if name not in denied}
            # The entry holds the whole catalogue, so that its `id()` is not reused.
            entry = (catalog, catalog.narrowed(permitted, denied=denied))
            self._narrowed.put(key, entry, len(catalog.bindings))
        return entry[1]


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


def _emit(scope: Scope, span: SpanContext, request: PermissionRequest, ruling: Ruling) -> None:
    if not scope.has_listener(ToolDenied.name):
        return
    reason = ruling.reason if ruling.fault is None else f"{ruling.reason}: {describe(ruling.fault)}"
    payload = {
        "tool_name": request.tool.name,
        "provider_id": request.provider_id,
        "tool_call_id": request.tool_call_id,
        "stage": request.stage,
        "permission": ruling.permission,
        "reason": scope.text(reason),
        "error_type": error_type_of(ruling.fault) if ruling.fault is not None else None,
    }
    scope.emit(ToolDenied, span, payload)
