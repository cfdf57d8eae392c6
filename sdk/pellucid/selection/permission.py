"""Permission: applies a policy to the offer, to activations and to calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.trace import SpanContext

from pellucid.errors import PermissionDenied, PolicyHalt
from pellucid.events import ToolDenied
from pellucid.failures import describe, error_type_of
from pellucid.selection.policy import PERMITTED, PermissionRequest, Policy, Ruling, Stage, ask
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

    def __init__(self, policy: Policy, within: float | None) -> None:
        self.policy = policy
        self.within = within
        self._narrowed: Remembered[tuple[Catalog, Catalog]] = Remembered()

    async def offer(
        self, scope: Scope, span: SpanContext, catalog: Catalog, bindings: Mapping[str, Binding], reported: set[str]
    ) -> Catalog:
        """Return the catalogue without the denied tools among `bindings`.

        Args:
            scope: Telemetry of the run.
            span: Span for the events.
            catalog: The catalogue.
            bindings: Tools to rule on.
            reported: Names of tools whose denial was emitted in this run.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        denied = await self.denied(scope, span, "offer", bindings.values(), reported=reported)
        return self._without(catalog, {**catalog.denied, **denied}) if denied else catalog

    async def denied(
        self,
        scope: Scope,
        span: SpanContext,
        stage: Stage,
        bindings: Iterable[Binding],
        tool_call_id: str | None = None,
        reported: set[str] | None = None,
    ) -> dict[str, Denied]:
        """Return the denied tools among `bindings`, and emit an event for each that is not `reported`.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        requests = [request_for(scope, stage, binding, tool_call_id) for binding in bindings]
        denied: dict[str, Denied] = {}
        # There are no rulings after the first halt.
        for request, ruling in zip(requests, await ask(self.policy, requests, self.within), strict=False):
            if ruling.permission in PERMITTED:
                continue
            name = request.tool.name
            if ruling.permission == "halt" or reported is None or name not in reported:
                _emit(scope, span, request, ruling)
            if ruling.permission == "halt":
                raise PolicyHalt(name, stage, ruling.reason)
            if reported is not None:
                reported.add(name)
            denied[name] = Denied(Binding(request.tool, request.provider_id, request.tool.source), ruling.reason)
        return denied

    async def rule(self, scope: Scope, binding: Binding, arguments: JSONObject, tool_call_id: str) -> Ruling:
        """Return the policy's ruling on a call, without emitting an event."""
        request = request_for(scope, "dispatch", binding, tool_call_id, arguments)
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
        _emit(scope, span, request_for(scope, "dispatch", binding, tool_call_id), ruling)
        if ruling.permission == "halt":
            raise PolicyHalt(binding.tool.name, "dispatch", ruling.reason)
        raise PermissionDenied(binding.tool.name, ruling.reason) from ruling.fault

    def _without(self, catalog: Catalog, denied: Mapping[str, Denied]) -> Catalog:
        """Return a catalogue without the denied tools: the same object for the same denials, shared by all runs."""
        key = (id(catalog), frozenset((name, denial.reason) for name, denial in denied.items()))
        entry = self._narrowed.get(key)
        if entry is None:
            permitted = {name: binding for name, binding in catalog.bindings.items() if name not in denied}
            # The entry holds the whole catalogue, so that its `id()` is not reused.
            entry = (catalog, catalog.narrowed(permitted, denied=denied))
            self._narrowed.put(key, entry, len(catalog.bindings))
        return entry[1]


def request_for(
    scope: Scope, stage: Stage, binding: Binding, tool_call_id: str | None = None, arguments: JSONObject | None = None
) -> PermissionRequest:
    """Return the request to the policy about a tool or a call."""
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
