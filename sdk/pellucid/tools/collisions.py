"""What happens when two tools have one name: never silent, and decided once for offer and dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from opentelemetry.trace import SpanContext

from pellucid.errors import ConfigError
from pellucid.events import ToolsShadowed
from pellucid.telemetry import Scope
from pellucid.telemetry.phases import PAYLOADS
from pellucid.tools.names import fit
from pellucid.tools.tool import Tool, ToolSource

Collisions: TypeAlias = Literal["error", "first", "last", "prefix"]
"""Refuse; keep the first or the last of them; or give the later ones another name, made of where they come from."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A name in a catalogue, and what it stands for."""

    tool: Tool
    provider_id: str
    source: ToolSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """One of two tools of one name.

    Attributes:
        name: The name that both have.
        winner: The one that is called by it.
        loser: The other one.
        offered_as: The name under which the other is offered; None if it is not.
    """

    name: str
    winner: Binding
    loser: Binding
    offered_as: str | None = None

    @property
    def facts(self) -> tuple[str | None, ...]:
        """What the event says of it."""
        winner, loser = self.winner, self.loser
        places = (winner.provider_id, str(winner.source), loser.provider_id, str(loser.source))
        return (self.name, *places, self.offered_as)


Told: TypeAlias = frozenset[tuple[str | None, ...]]
"""Collisions that were told already."""


def check_policy(owner: str, policy: str) -> None:
    """Refuse a policy that there is not.

    Raises:
        ConfigError: there is no such policy.
    """
    if policy not in get_args(Collisions):
        known = ", ".join(map(repr, get_args(Collisions)))
        raise ConfigError(f"{owner}: there is no collision policy {policy!r}; known are {known}")


def resolve(
    bindings: Iterable[Binding],
    policy: Collisions,
    *,
    place: Callable[[Binding], str],
    refuse: Callable[[Binding, Binding], Exception],
) -> tuple[dict[str, Binding], tuple[Shadowed, ...]]:
    """Return the tools by name, in their order, and which of them stand in the shadow of others.

    Args:
        bindings: All tools.
        policy: What to do about two of one name.
        place: Where a tool comes from, to make a name of with the policy `prefix`.
        refuse: Makes the error of the policy `error`.
    """
    found: dict[str, Binding] = {}
    doubles: list[Binding] = []
    shadowed: list[Shadowed] = []
    for binding in bindings:
        name = binding.tool.name
        other = found.get(name)
        if other is None:
            found[name] = binding
        elif policy == "error":
            raise refuse(other, binding)
        elif policy == "last":
            del found[name]  # so that it stands at its own place
            found[name] = binding
            shadowed.append(Shadowed(name=name, winner=binding, loser=other))
        else:
            doubles.append(binding)
    for binding in doubles:
        name = binding.tool.name
        offered_as = None
        if policy == "prefix":
            offered_as = fit(f"{place(binding)}__{name}", found)
            found[offered_as] = Binding(binding.tool.named(offered_as), binding.provider_id, binding.source)
        shadowed.append(Shadowed(name=name, winner=found[name], loser=binding, offered_as=offered_as))
    return found, tuple(shadowed)


def reasons_of(name: str, shadowed: Iterable[Shadowed], policy: str) -> list[str]:
    """Say which tool has a name, if it is the name of several, or was made for one of them."""
    reasons = []
    for collision in shadowed:
        winner, loser, offered_as = collision.winner, collision.loser, collision.offered_as
        first, second = repr(winner.provider_id), repr(loser.provider_id)
        if winner.provider_id == loser.provider_id:  # within a registry
            first, second = f"source '{winner.source}'", f"source '{loser.source}'"
        if name == collision.name:
            rest = f"the other is offered as {offered_as!r}" if offered_as else "the other is not offered"
            reasons.append(f"with {policy} the name is that of {first}, not of {second}; {rest}")
        elif name == offered_as:
            reasons.append(f"with {policy} it stands for {collision.name!r} of {second}, as {first} has that name")
    return reasons


def tell_shadowed(scope: Scope, span: SpanContext, shadowed: Iterable[Shadowed], told: Told = frozenset()) -> Told:
    """Emit an event for each tool that has the name of another, but for those of which was `told` already.

    Returns:
        What has been told now.
    """
    now = [each.facts for each in shadowed]
    for facts in now:
        if facts not in told:
            scope.emit(ToolsShadowed, span, dict(zip(PAYLOADS[ToolsShadowed], facts, strict=True)))
    return frozenset(now)
