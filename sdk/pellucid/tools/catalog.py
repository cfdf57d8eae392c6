"""What a provider answered, checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError, InvalidCatalog, ToolError, ToolNameCollision
from pellucid.failures import describe
from pellucid.messages import ToolDefinition
from pellucid.telemetry import Recorded
from pellucid.text import excerpt
from pellucid.tools.catalog_cache import MOST, Remembered
from pellucid.tools.collisions import Binding, Collisions, Shadowed, resolve
from pellucid.tools.names import LOAD_SKILL, LONGEST, RESERVED, problem_of
from pellucid.tools.search import SearchIndex
from pellucid.tools.tool import BrokenTool, Builtin, MetaTool, Tool, ToolSource
from pellucid.types import JSONValue

RegistryMode: TypeAlias = Literal["full", "lazy"]
"""Whether all tools are offered, or `tool_search` in their place."""


def check_mode(owner: str, mode: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        ConfigError: there is no such mode.
    """
    if mode not in get_args(RegistryMode):
        raise ConfigError(f"{owner}: there is no registry_mode {mode!r}; known are 'full' and 'lazy'")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderCatalog:
    """The valid tools of one provider, in its order. Attributes: quarantined: what was left out, and why."""

    provider_id: str
    tools: tuple[Tool, ...]
    quarantined: tuple[tuple[str, str], ...] = ()
    recorded: dict[object, Recorded] = field(default_factory=dict, repr=False)
    """What is recorded of the list, by capture policy."""

    def of(self, source: ToolSource | None) -> ProviderCatalog:
        """Return the same tools from `source`, as far as they do not say themselves that they come from elsewhere."""
        if source is None or not any(isinstance(tool.source, Builtin) for tool in self.tools):
            return self
        tools = [tool.of(source) if isinstance(tool.source, Builtin) else tool for tool in self.tools]
        return replace(self, tools=tuple(tools))

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of these tools, order included."""
        return blake2b(b"".join(tool.digest for tool in self.tools), digest_size=16).hexdigest()

    @property
    def summary(self) -> JSONValue:
        """What is recorded as the output of a discovery; it is asked for once, and `recorded` then."""
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
            bad.append((excerpt(getattr(item, "name", _kind(item)), LONGEST), problem))
        else:
            raise InvalidCatalog(provider_id, problem)
    return ProviderCatalog(provider_id=provider_id, tools=tuple(good.values()), quarantined=tuple(bad))


def _problem(item: Any, others: dict[str, Tool]) -> str | None:
    if not isinstance(item, Tool):
        return f"its list holds {_kind(item)} instead of a Tool"
    problem = item.problem if isinstance(item, BrokenTool) else problem_of(item.name)
    if problem is not None and not isinstance(item, MetaTool):
        return problem
    if item.name in others:
        return f"two tools are called {item.name!r}"
    try:
        item.validator  # noqa: B018  (made here so that a broken schema is found here)
    except ValueError as error:
        return f"the input schema of tool {item.name!r} is broken: {excerpt(error)}"
    try:
        item.digest  # noqa: B018  (the same)
    except ValueError as error:
        return f"what tool {item.name!r} says of itself is no valid text: {excerpt(error)}"
    return None


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool that is listed, but not offered. Attributes: reason: what the policy said."""

    binding: Binding
    reason: str


def _never(name: str) -> None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """The tools of one iteration: what is advertised, and what calls are resolved against. It never changes.

    A catalogue is narrowed by replacing its bindings: by what the policy permits, what is still what the model was
    given, and what of lazy tools is active.

    Attributes:
        bindings: Tools by name, in the order in which they are advertised.
        callable: Tools that a call may name although they are not advertised: `refuse` says what about them.
        refuse: Returns why a tool that is known may not be called now, for the model to read; None if it may.
        discovering: The tools among these that discover others.
        denied: Tools that providers list and the policy does not let the model have.
        shadowed: Tools that have the name of another one.
        collision: Two tools of one name, if the agent refuses that; `check()` raises it.
        is_lazy: Whether all tools are lazy but those that load skills.
        recorded: What is recorded of the definitions, by capture policy.
    """

    bindings: Mapping[str, Binding]
    callable: Mapping[str, Binding] = field(default_factory=dict)
    refuse: Callable[[str], ToolError | None] = field(default=_never, repr=False)
    discovering: frozenset[str] = frozenset()
    denied: Mapping[str, Denied] = field(default_factory=dict)
    shadowed: tuple[Shadowed, ...] = ()
    collision: ToolNameCollision | None = None
    is_lazy: bool = False
    recorded: dict[object, Recorded] = field(default_factory=dict, repr=False)
    _indexing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def of(cls, parts: Sequence[ProviderCatalog], collisions: Collisions, *, is_lazy: bool = False) -> Catalog:
        """Return what providers list as one catalogue."""
        listed = [Binding(tool, part.provider_id, tool.source) for part in parts for tool in part.tools]
        try:
            bindings, shadowed = resolve(
                listed, collisions, place=lambda binding: binding.provider_id, refuse=_collision
            )
        except ToolNameCollision as collision:
            return cls(bindings={}, collision=collision, is_lazy=is_lazy)
        return cls(bindings=bindings, shadowed=shadowed, is_lazy=is_lazy)

    def narrowed(self, bindings: Mapping[str, Binding], **changes: Any) -> Catalog:
        """Return this catalogue with other bindings, recorded by itself."""
        return replace(self, bindings=bindings, recorded=changes.pop("recorded", {}), **changes)

    def check(self) -> None:
        """Refuse a catalogue with two tools of one name, if the agent does.

        Raises:
            ToolNameCollision: it has them.
        """
        if self.collision is not None:
            # A new error for each run: one exception raised in many tasks mixes up their tracebacks.
            raise ToolNameCollision(self.collision.tool_name, self.collision.first, self.collision.second)

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools; equal content gives an equal digest."""
        return blake2b(b"".join(each.tool.digest for each in self.bindings.values()), digest_size=16).hexdigest()

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as a model sees them."""
        return tuple(binding.tool.definition for binding in self.bindings.values())

    @cached_property
    def tokens(self) -> int:
        """About how many tokens the definitions take."""
        return sum(binding.tool.tokens for binding in self.bindings.values())

    def find(self, name: str) -> Binding | None:
        """Return what a name stands for, whether it may be called or not."""
        return self.bindings.get(name) or self.callable.get(name)

    @cached_property
    def lazy(self) -> Mapping[str, Binding]:
        """Tools that are not offered before they are activated."""
        if self.is_lazy:
            loader = self.bindings.get(LOAD_SKILL)
            return {name: each for name, each in self.bindings.items() if not _is_asked_for(each, loader)}
        return {name: each for name, each in self.bindings.items() if each.tool.lazy}

    @cached_property
    def eager(self) -> Mapping[str, Binding]:
        """The others."""
        return {name: each for name, each in self.bindings.items() if name not in self.lazy}

    @cached_property
    def eager_tokens(self) -> int:
        """About how many tokens the tools take that are offered whatever is active."""
        return sum(each.tool.tokens for each in self.eager.values())

    @cached_property
    def named(self) -> Mapping[str, Binding]:
        """Lazy tools of which a model knows the names from the beginning."""
        return {name: each for name, each in self.lazy.items() if not self.is_lazy and each.tool.lazy != "search"}

    @cached_property
    def searched(self) -> Mapping[str, Binding]:
        """Lazy tools that are found by searching."""
        return {name: each for name, each in self.lazy.items() if name not in self.named}

    @property
    def index(self) -> SearchIndex:
        """Finds the tools that are `searched`; made once, however many threads ask for it at the same time."""
        with self._indexing:
            return self._index

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex(each.tool for each in self.searched.values())

    def recorded_of(self, active: tuple[str, ...]) -> dict[object, Recorded]:
        """Return what is recorded of the definitions that are offered while these tools are active."""
        if len(self._recorded_of) > MOST:
            self._recorded_of.clear()
        return self._recorded_of.setdefault(active, {})

    @cached_property
    def _recorded_of(self) -> dict[tuple[str, ...], dict[object, Recorded]]:
        return {}


def _collision(first: Binding, second: Binding) -> ToolNameCollision:
    return ToolNameCollision(first.tool.name, first.provider_id, second.provider_id)


def _is_asked_for(binding: Binding, loader: Binding | None) -> bool:
    """Whether a tool is offered where all others are lazy: `load_skill`, and what it brought."""
    if binding.tool.name in RESERVED:
        return True
    return loader is not None and binding.provider_id == loader.provider_id and not binding.tool.lazy


class Catalogs:
    """Catalogues put together of the same parts are one and the same, so that work on them is done once."""

    __slots__ = ("_is_lazy", "_made", "collisions")

    def __init__(self, collisions: Collisions = "error", *, is_lazy: bool = False) -> None:
        self.collisions = collisions
        self._is_lazy = is_lazy
        self._made: Remembered[tuple[Sequence[ProviderCatalog], Catalog]] = Remembered()

    def of(self, parts: Sequence[ProviderCatalog]) -> Catalog:
        """Return the catalogue of these parts."""
        key = tuple(map(id, parts))
        made = self._made.get(key)
        if made is None:
            # It keeps the parts, whose identities can then not be given to others.
            made = (parts, Catalog.of(parts, self.collisions, is_lazy=self._is_lazy))
            self._made.put(key, made, sum(len(part.tools) for part in parts))
        return made[1]
