"""What a provider answered, checked."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from pellucid.errors import InvalidCatalog, ToolNameCollision, describe
from pellucid.messages import ToolDefinition
from pellucid.telemetry import Recorded
from pellucid.tools.meta import RESERVED, MetaTool
from pellucid.tools.tool import Tool, ToolSource
from pellucid.types import JSONValue

REMEMBERED: Final = 256
"""Catalogues that are remembered, of each provider and of each agent."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderCatalog:
    """The valid tools of one provider, in its order. Attributes: quarantined: what was left out, and why."""

    provider_id: str
    tools: tuple[Tool, ...]
    quarantined: tuple[tuple[str, str], ...] = ()
    recorded: dict[object, Recorded] = field(default_factory=dict, repr=False)
    """What is recorded of the list, by capture policy."""

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of these tools, order included."""
        return blake2b(b"".join(tool.digest for tool in self.tools), digest_size=16).hexdigest()

    @cached_property
    def summary(self) -> JSONValue:
        """What is recorded as the output of a discovery."""
        return [{"name": tool.name, "description": tool.description} for tool in self.tools]


def as_sequence(provider_id: str, answer: object) -> Sequence[Any]:
    """Return what a provider answered if it is a sequence.

    Raises:
        InvalidCatalog: it is something else.
    """
    if isinstance(answer, str | bytes) or not isinstance(answer, Sequence):
        raise InvalidCatalog(
            provider_id, f"it returned {_kind(answer)} instead of a list of tools; return [] if there are none"
        )
    if isinstance(answer, list | tuple):
        return answer
    try:
        return tuple(answer)
    except Exception as error:
        raise InvalidCatalog(provider_id, f"its list cannot be read: {describe(error)}") from error


def check_catalog(provider_id: str, tools: Sequence[Any], *, quarantine: bool = False) -> ProviderCatalog:
    """Check each tool and that names are distinct.

    Raises:
        InvalidCatalog: something is wrong, unless `quarantine`; then what is wrong is left out and listed.
    """
    good: dict[str, Tool] = {}
    bad: list[tuple[str, str]] = []
    for item in tools:
        problem = _problem(item, good)
        if problem is None:
            good[item.name] = item
        elif quarantine:
            bad.append((str(getattr(item, "name", _kind(item)))[:64], problem))
        else:
            raise InvalidCatalog(provider_id, problem)
    return ProviderCatalog(provider_id=provider_id, tools=tuple(good.values()), quarantined=tuple(bad))


def _problem(item: Any, others: dict[str, Tool]) -> str | None:
    if not isinstance(item, Tool):
        return f"its list holds {_kind(item)} instead of a Tool"
    if (problem := _problem_of_name(item)) is not None:
        return problem
    if item.name in others:
        return f"two tools are called {item.name!r}"
    try:
        item.validator  # noqa: B018  (made here so that a broken schema is found here)
    except ValueError as error:
        return f"the input schema of tool {item.name!r} is broken: {error}"
    try:
        item.digest  # noqa: B018  (the same)
    except ValueError as error:
        return f"what tool {item.name!r} says of itself is no valid text: {error}"
    return None


def _problem_of_name(tool: Tool) -> str | None:
    name: object = tool.name
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return f"tool name {name!r} is not 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'"
    if name in RESERVED and not isinstance(tool, MetaTool):
        return f"tool name {name!r} is reserved for a tool of Pellucid's own; give the tool another name"
    return None


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Binding:
    """A name in a catalogue, and what it stands for."""

    tool: Tool
    provider_id: str
    source: ToolSource


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool that is listed, but not offered. Attributes: reason: what the policy said."""

    binding: Binding
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """The tools of one iteration: what is advertised, and what calls are resolved against. It never changes."""

    parts: tuple[ProviderCatalog, ...]
    denied: Mapping[str, Denied] = field(default_factory=dict)
    """What the providers list and the policy does not let the model have."""
    recorded: dict[object, Recorded] = field(default_factory=dict, repr=False)
    """What is recorded of the definitions, by capture policy."""

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools; equal content gives an equal digest."""
        return blake2b(b"".join(tool.digest for part in self.parts for tool in part.tools), digest_size=16).hexdigest()

    @cached_property
    def bindings(self) -> Mapping[str, Binding]:
        """Tools by name.

        Raises:
            ToolNameCollision: two providers offer one name.
        """
        found: dict[str, Binding] = {}
        for part in self.parts:
            for tool in part.tools:
                if (other := found.get(tool.name)) is not None:
                    raise ToolNameCollision(tool.name, other.provider_id, part.provider_id)
                found[tool.name] = Binding(tool, part.provider_id, tool.source)
        return found

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as a model sees them, in the order of the providers and of their lists."""
        return tuple(binding.tool.definition for binding in self.bindings.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class PermittedCatalog(Catalog):
    """A catalogue of which a model is not given everything. Attributes: whole: with what it is not given."""

    whole: Catalog

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools that it is given."""
        return blake2b(b"".join(each.tool.digest for each in self.bindings.values()), digest_size=16).hexdigest()

    @cached_property
    def bindings(self) -> Mapping[str, Binding]:
        """The tools that it is given, by name."""
        return {name: binding for name, binding in self.whole.bindings.items() if name not in self.denied}


class Catalogs:
    """Catalogues put together of the same parts are one and the same, so that work on them is done once."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[int, ...], Catalog] = OrderedDict()

    def of(self, parts: Sequence[ProviderCatalog]) -> Catalog:
        """Return the catalogue of these parts."""
        key = tuple(map(id, parts))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Catalog(parts=tuple(parts))
            if len(self._made) > REMEMBERED:
                self._made.popitem(last=False)
        return made
