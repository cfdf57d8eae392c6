"""What a provider answered, checked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError, InvalidCatalog, ToolError, ToolNameCollision, describe
from pellucid.messages import ToolCall, ToolDefinition
from pellucid.telemetry import Recorded
from pellucid.text import excerpt
from pellucid.tools.collisions import Binding, Collisions, Shadowed, resolve
from pellucid.tools.names import LOAD_SKILL, LONGEST, RESERVED, problem_of
from pellucid.tools.remembered import MOST, Remembered
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """The tools of one iteration: what is advertised, and what calls are resolved against. It never changes."""

    parts: tuple[ProviderCatalog, ...]
    collisions: Collisions = "error"
    is_lazy: bool = False
    denied: Mapping[str, Denied] = field(default_factory=dict)
    """What the providers list and the policy does not let the model have."""
    recorded: dict[object, Recorded] = field(default_factory=dict, repr=False)
    """What is recorded of the definitions, by capture policy."""
    _indexing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools; equal content gives an equal digest."""
        # With the policy `error` there is no other order than this, and a collision is for `bindings` to tell.
        listed = (tool for part in self.parts for tool in part.tools)
        tools = listed if self.collisions == "error" else (binding.tool for binding in self.bindings.values())
        return blake2b(b"".join(tool.digest for tool in tools), digest_size=16).hexdigest()

    @cached_property
    def _resolved(self) -> tuple[Mapping[str, Binding], tuple[Shadowed, ...]]:
        listed = [Binding(tool, part.provider_id, tool.source) for part in self.parts for tool in part.tools]
        return resolve(listed, self.collisions, place=lambda binding: binding.provider_id, refuse=_collision)

    @property
    def bindings(self) -> Mapping[str, Binding]:
        """Tools by name.

        Raises:
            ToolNameCollision: two providers offer one name, and the policy is `error`.
        """
        return self._resolved[0]

    @property
    def shadowed(self) -> tuple[Shadowed, ...]:
        """Tools that have the name of another one."""
        return self._resolved[1]

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
        return sum(each.tool.tokens for name, each in self.bindings.items() if name not in self.lazy)

    @property
    def tokens(self) -> int:
        """About how many tokens the offered tools take."""
        return self.eager_tokens

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

    def find(self, name: str) -> Binding | None:
        """Return what a name stands for."""
        return self.bindings.get(name)

    def refusal(self, name: str) -> ToolError | None:
        """Return why a tool that is there may not be called now, for the model to read; None if it may."""
        return None

    def groups(self, calls: Sequence[ToolCall]) -> list[Sequence[ToolCall]]:
        """Return the calls of one message in groups that are run one after the other."""
        return [calls]

    def only_discovers(self, calls: Sequence[ToolCall]) -> bool:
        """Whether calls do nothing but discover tools."""
        return False

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
    def _resolved(self) -> tuple[Mapping[str, Binding], tuple[Shadowed, ...]]:
        given = {name: binding for name, binding in self.whole.bindings.items() if name not in self.denied}
        return given, self.whole.shadowed


def _is_asked_for(binding: Binding, loader: Binding | None) -> bool:
    """Whether a tool is offered where all others are lazy: `load_skill`, and what it brought."""
    if binding.tool.name in RESERVED:
        return True
    return loader is not None and binding.provider_id == loader.provider_id and not binding.tool.lazy


def _collision(first: Binding, second: Binding) -> ToolNameCollision:
    return ToolNameCollision(first.tool.name, first.provider_id, second.provider_id)


class Catalogs:
    """Catalogues put together of the same parts are one and the same, so that work on them is done once."""

    __slots__ = ("_collisions", "_is_lazy", "_made")

    def __init__(self, collisions: Collisions = "error", *, is_lazy: bool = False) -> None:
        self._collisions = collisions
        self._is_lazy = is_lazy
        self._made: Remembered[Catalog] = Remembered()

    def of(self, parts: Sequence[ProviderCatalog]) -> Catalog:
        """Return the catalogue of these parts."""
        key = tuple(map(id, parts))
        made = self._made.get(key)
        if made is None:
            made = Catalog(parts=tuple(parts), collisions=self._collisions, is_lazy=self._is_lazy)
            self._made.put(key, made, sum(len(part.tools) for part in parts))
        return made
