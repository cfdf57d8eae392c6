"""Permission: what a policy lets a model see, and do."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from opentelemetry.trace import SpanContext

from pellucid.context import Identity
from pellucid.errors import PermissionDenied, PolicyHalt, describe, error_type_of
from pellucid.events import ToolDenied
from pellucid.telemetry import Scope
from pellucid.tools.activation import Activation
from pellucid.tools.catalog import Catalog, Denied, PermittedCatalog
from pellucid.tools.collisions import Binding
from pellucid.tools.lazy import metas_of
from pellucid.tools.remembered import Remembered
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject

Stage: TypeAlias = Literal["offer", "dispatch"]
Permission: TypeAlias = Literal["allow", "ask", "deny", "halt"]
PERMISSIONS: Final = get_args(Permission)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """What a policy is asked.

    Attributes:
        stage: `offer`: may the model see the tool? `dispatch`: may it make this call?
        tool: The tool.
        provider_id: Who lists it.
        agent: Name of the agent.
        run_id: The run.
        iteration: 1-based. An answer to `offer` holds for as long as the run's catalogue is the same.
        identity: On whose behalf the run happens.
        tool_call_id: The model's id of the call; None at `offer`.
        arguments: What the model sent, valid by the tool's schema; None at `offer`.
    """

    stage: Stage
    tool: Tool
    provider_id: str
    agent: str = ""
    run_id: str = ""
    iteration: int = 1
    identity: Identity | None = None
    tool_call_id: str | None = None
    arguments: JSONObject | None = None

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.tool.name


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy decides. Attributes: reason: told to the model, and shown in telemetry."""

    permission: Permission
    reason: str | None = None


Policy: TypeAlias = Callable[[PermissionRequest], str | Verdict | Awaitable[str | Verdict]]
"""Decides whether a model may see and call a tool; sync or async: `allow`, `ask`, `deny`, `halt`, or a `Verdict`. With
`ask` it may see the tool, and a person decides about the call. If it raises, or answers something else, it is a no."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What came of asking. Attributes: fault: what the policy raised, which is a no."""

    permission: Permission
    reason: str
    fault: Exception | None = None


async def ask(policy: Policy, request: PermissionRequest) -> Ruling:
    """Ask a policy. One that raises, or answers something else than a permission, denies."""
    try:
        answer: object = policy(request)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:  # noqa: BLE001  (the policy is the application's; its failure is a denial, and told)
        return Ruling("deny", "the policy failed", error)
    verdict = answer if isinstance(answer, Verdict) else Verdict(answer)  # type: ignore[arg-type]  # checked next
    if verdict.permission not in PERMISSIONS:
        fault = TypeError(
            f"the policy answered {type(answer).__name__} instead of 'allow', 'ask', 'deny', 'halt' or a Verdict"
        )
        return Ruling("deny", "the policy gave no valid answer", fault)
    default = "the policy does not allow it" if verdict.permission != "ask" else "the policy asks a person"
    return Ruling(verdict.permission, verdict.reason or default)


class Permissions:
    """A policy, and what it takes to hold runs to it.

    Attributes:
        policy: The policy.
    """

    __slots__ = ("_made", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._made: Remembered[PermittedCatalog] = Remembered()

    async def offer(self, scope: Scope, span: SpanContext, catalog: Catalog, told: set[str]) -> Catalog:
        """Return the catalogue without the tools that the policy denies; `told` are those that an event told of.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        denied = await self._denied(scope, span, catalog.bindings, told)
        permitted = self._without(catalog, denied) if denied else catalog
        # What discovers the tools that are left is a tool like any other.
        metas = await self._denied(scope, span, metas_of(Activation(0), permitted), told)
        return self._without(catalog, {**denied, **metas}) if metas else permitted

    async def _denied(
        self, scope: Scope, span: SpanContext, bindings: Mapping[str, Binding], told: set[str]
    ) -> dict[str, Denied]:
        """Return those of the tools that the policy denies."""
        denied: dict[str, Denied] = {}
        for name, binding in bindings.items():
            request = _request(scope, "offer", binding)
            ruling = await ask(self.policy, request)
            if ruling.permission in ("allow", "ask"):
                continue
            if ruling.permission == "halt" or name not in told:
                told.add(name)
                _tell(scope, span, request, ruling)
            if ruling.permission == "halt":
                raise PolicyHalt(name, "offer", ruling.reason)
            denied[name] = Denied(binding, ruling.reason)
        return denied

    async def rule(self, scope: Scope, binding: Binding, arguments: JSONObject, tool_call_id: str) -> Ruling:
        """Ask the policy about a call, without telling of it."""
        request = _request(scope, "dispatch", binding)
        return await ask(self.policy, replace(request, arguments=arguments, tool_call_id=tool_call_id))

    def check(self, scope: Scope, span: SpanContext, binding: Binding, tool_call_id: str, ruling: Ruling) -> None:
        """Check that a ruling lets a call be made.

        Raises:
            PermissionDenied: it does not.
            PolicyHalt: it does not, and ends the run.
        """
        if ruling.permission == "allow":
            return
        request = replace(_request(scope, "dispatch", binding), tool_call_id=tool_call_id)
        _tell(scope, span, request, ruling)
        if ruling.permission == "halt":
            raise PolicyHalt(binding.tool.name, "dispatch", ruling.reason)
        raise PermissionDenied(binding.tool.name, ruling.reason) from ruling.fault

    def refuse(self, scope: Scope, span: SpanContext, denied: Denied, tool_call_id: str) -> PermissionDenied:
        """Return the error for a call of a tool that was not offered."""
        request = replace(_request(scope, "dispatch", denied.binding), tool_call_id=tool_call_id)
        _tell(scope, span, request, Ruling("deny", denied.reason))
        return PermissionDenied(denied.binding.tool.name, denied.reason)

    def _without(self, catalog: Catalog, denied: Mapping[str, Denied]) -> Catalog:
        """Return the same catalogue for the same denials, so that work on it is done once and not by each run."""
        key = (id(catalog), frozenset((name, each.reason) for name, each in denied.items()))
        made = self._made.get(key)
        if made is None:
            # It keeps the whole catalogue, whose identity can then not be given to another one.
            made = PermittedCatalog(
                parts=catalog.parts,
                collisions=catalog.collisions,
                is_lazy=catalog.is_lazy,
                whole=catalog,
                denied=denied,
            )
            self._made.keep(key, made, len(catalog.bindings))
        return made


def _request(scope: Scope, stage: Stage, binding: Binding) -> PermissionRequest:
    return PermissionRequest(
        stage=stage,
        tool=binding.tool,
        provider_id=binding.provider_id,
        agent=scope.agent,
        run_id=scope.run_id,
        iteration=scope.iteration,
        identity=scope.identity,
    )


def _tell(scope: Scope, span: SpanContext, request: PermissionRequest, ruling: Ruling) -> None:
    if not scope.heard(ToolDenied.name):
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
