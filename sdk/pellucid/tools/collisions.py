"""Collisions of tool names: never silent, and resolved once for offer and dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from opentelemetry.trace import SpanContext

from pellucid.errors import ConfigError
from pellucid.events import ToolsShadowed
from pellucid.telemetry import Scope
from pellucid.telemetry.phases import PAYLOADS
from pellucid.tools.names import fit
from pellucid.tools.tool import Tool, ToolSource

Collisions: TypeAlias = Literal["error", "first", "last", "prefix"]
"""Policy for tools of one name: reject, keep the first or the last, or rename the later ones with a prefix of their
source."""


@dataclass(frozen=True)
class Binding:
    """Tool of a name in a catalogue, with its provider and source."""

    tool: Tool
    provider_id: str
    source: ToolSource

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the tool's calls, as notes of their boundaries."""
        tool, source = self.tool, self.source
        facts: dict[str, Any] = {"tool_name": tool.name, "tool_type": "function", "provider_id": self.provider_id}
        facts |= {"dispatch_mode": tool.mode, "source": source.kind, "source_place": source.place}
        return facts if tool.execution is None else {**facts, "execution": tool.execution}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """Collision of two tools of one name.

    Attributes:
        name: The name of both.
        winner: The tool that has the name in the catalogue.
        loser: The other tool.
        offered_as: The name under which the loser is offered; None if it is not offered.
    """

    name: str
    winner: Binding
    loser: Binding
    offered_as: str | None = None

    @property
    def facts(self) -> tuple[str | None, ...]:
        """Values of the event's fields."""
        winner, loser = self.winner, self.loser
        places = (winner.provider_id, str(winner.source), loser.provider_id, str(loser.source))
        return (self.name, *places, self.offered_as)


Emitted: TypeAlias = frozenset[tuple[str | None, ...]]
"""Collisions whose events were emitted already."""


def check_policy(owner: str, policy: str) -> None:
    """Reject an unknown collision policy.

    Raises:
        ConfigError: the policy is unknown.
    """
    if policy not in get_args(Collisions):
        policies = ", ".join(map(repr, get_args(Collisions)))
        raise ConfigError(f"{owner}: unknown collision policy {policy!r}; use one of {policies}")


def resolve(
    bindings: Iterable[Binding],
    policy: Collisions,
    *,
    place: Callable[[Binding], str],
    error: Callable[[Binding, Binding], Exception],
) -> tuple[dict[str, Binding], tuple[Shadowed, ...]]:
    """Return the tools by name, in their order, and the collisions among them.

    Args:
        bindings: All tools.
        policy: Policy for two tools of one name.
        place: Returns the prefix of a tool's new name, for the policy `prefix`.
        error: Returns the error of two tools of one name, for the policy `error`.
    """
    by_name: dict[str, Binding] = {}
    duplicates: list[Binding] = []
    shadowed: list[Shadowed] = []
    for binding in bindings:
        name = binding.tool.name
        other = by_name.get(name)
        if other is None:
            by_name[name] = binding
        elif policy == "error":
            raise error(other, binding)
        elif policy == "last":
            del by_name[name]  # so that the new tool keeps its own position
            by_name[name] = binding
            shadowed.append(Shadowed(name=name, winner=binding, loser=other))
        else:
            duplicates.append(binding)
    for binding in duplicates:
        name = binding.tool.name
        offered_as = None
        if policy == "prefix":
            offered_as = fit(f"{place(binding)}__{name}", by_name)
            by_name[offered_as] = Binding(binding.tool.named(offered_as), binding.provider_id, binding.source)
        shadowed.append(Shadowed(name=name, winner=by_name[name], loser=binding, offered_as=offered_as))
    return by_name, tuple(shadowed)


def reasons_of(name: str, shadowed: Iterable[Shadowed], policy: str) -> list[str]:
    """Return explanations of which tool has a name that several tools have, or that a prefix was added to."""
    reasons = []
    for collision in shadowed:
        winner, loser, offered_as = collision.winner, collision.loser, collision.offered_as
        first, second = repr(winner.provider_id), repr(loser.provider_id)
        if winner.provider_id == loser.provider_id:  # within a registry
            first, second = f"source '{winner.source}'", f"source '{loser.source}'"
        if name == collision.name:
            outcome = f"the other is offered as {offered_as!r}" if offered_as else "the other is not offered"
            reasons.append(f"with {policy} the name belongs to {first}, not to {second}; {outcome}")
        elif name == offered_as:
            reasons.append(f"with {policy} it is {collision.name!r} of {second}, because {first} has that name")
    return reasons


def emit_shadowed(
    scope: Scope, span: SpanContext, shadowed: Iterable[Shadowed], emitted: Emitted = frozenset()
) -> Emitted:
    """Emit an event for each collision that is not in `emitted`.

    Returns:
        All collisions of `shadowed`.
    """
    collisions = [collision.facts for collision in shadowed]
    for facts in collisions:
        if facts not in emitted:
            scope.emit(ToolsShadowed, span, dict(zip(PAYLOADS[ToolsShadowed], facts, strict=True)))
    return frozenset(collisions)
