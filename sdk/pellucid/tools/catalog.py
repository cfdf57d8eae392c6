"""Checked catalogues: the tools of one provider, and the tools of one iteration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from pellucid.concurrency.computing import compute
from pellucid.errors import ConfigError, InvalidCatalog, ToolError, ToolNameCollision
from pellucid.failures import describe
from pellucid.messages import ProviderToolDefinition, ToolDefinition
from pellucid.text import excerpt
from pellucid.tools.catalog_cache import MOST, Remembered
from pellucid.tools.collisions import Binding, Collisions, Shadowed, resolve
from pellucid.tools.names import LOAD_SKILL, LONGEST, RESERVED, problem_of
from pellucid.tools.tool import BrokenTool, Builtin, MetaTool, Tool, ToolSource
from pellucid.types import JSONValue

if TYPE_CHECKING:
    from pellucid.telemetry.content import CapturedValue
    from pellucid.tools.hidden import HiddenText
    from pellucid.tools.search import SearchIndex

RegistryMode: TypeAlias = Literal["full", "lazy"]
"""Tools that a model is offered: all (`full`), or `tool_search` instead (`lazy`)."""


LARGE_CATALOG: Final = 250
"""Tools from which a catalogue is checked and merged in a worker thread: it takes milliseconds."""


MAX_DEFINITION: Final = 65_536
"""Most bytes of a tool's definition, as JSON: every request to a model has it, and each costs tokens."""


def check_mode(owner: str, mode: str) -> None:
    """Reject an unknown registry mode.

    Raises:
        ConfigError: the mode is unknown.
    """
    if mode not in get_args(RegistryMode):
        raise ConfigError(f"{owner}: unknown registry_mode {mode!r}; use 'full' or 'lazy'")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderCatalog:
    """Valid tools of one provider, in its order.

    Attributes:
        provider_id: Id of the provider.
        tools: The valid tools.
        quarantined: Names of the broken tools that were omitted, each with its problem.
        hidden: Texts of the tools with characters that people do not see, which models do not get.
        listed_digest: Hash of the tools as the provider listed them, with these characters and with annotations.
        captured: Captured summary of the tools, by capture policy.
    """

    provider_id: str
    tools: tuple[Tool, ...]
    quarantined: tuple[tuple[str, str], ...] = ()
    hidden: tuple[HiddenText, ...] = ()
    listed_digest: str = ""
    captured: dict[object, CapturedValue] = field(default_factory=dict, repr=False)

    def of(self, source: ToolSource | None) -> ProviderCatalog:
        """Return the same tools, with `source` in place of the default source `Builtin`."""
        if source is None or not any(isinstance(tool.source, Builtin) for tool in self.tools):
            return self
        tools = [tool.of(source) if isinstance(tool.source, Builtin) else tool for tool in self.tools]
        return replace(self, tools=tuple(tools))

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of these tools, including their order."""
        return _digest(tool.digest for tool in self.tools)

    @property
    def summary(self) -> JSONValue:
        """Recorded output of a discovery; `recorded` caches its recording."""
        return [{"name": tool.name, "description": tool.description} for tool in self.tools]


def _digest(digests: Iterable[bytes]) -> str:
    return blake2b(b"".join(digests), digest_size=16).hexdigest()


def as_sequence(provider_id: str, answer: object) -> Sequence[Any]:
    """Return the answer of a provider as a sequence.

    Raises:
        InvalidCatalog: the answer is not a sequence, or cannot be read.
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
    """Check each tool, and that names are distinct.

    Raises:
        InvalidCatalog: a tool is broken; with `quarantine` it is omitted and listed in `quarantined` instead.
    """
    good: dict[str, Tool] = {}
    listed: list[Tool] = []
    bad: list[tuple[str, str]] = []
    hidden: list[HiddenText] = []
    for item in tools:
        problem = _problem(item, good)
        if problem is None:
            good[item.name], found = _visible(item) if item.may_hide else (item, ())
            listed.append(item)
            hidden += found
        elif quarantine:
            bad.append((excerpt(getattr(item, "name", _kind(item)), LONGEST), problem))
        else:
            raise InvalidCatalog(provider_id, problem)
    return ProviderCatalog(
        provider_id=provider_id,
        tools=tuple(good.values()),
        quarantined=tuple(bad),
        hidden=tuple(hidden),
        listed_digest=_digest(tool.fingerprint for tool in listed),
    )


def _visible(tool: Tool) -> tuple[Tool, tuple[HiddenText, ...]]:
    """Return a tool as models may see it, and what was hidden in it."""
    from pellucid.tools.hidden import without_hidden

    return without_hidden(tool)


async def checked_catalog(provider_id: str, tools: Sequence[Any], *, quarantine: bool = False) -> ProviderCatalog:
    """Check tools as `check_catalog` does; many in a worker thread, so that other runs do not wait.

    Raises:
        InvalidCatalog: as for `check_catalog`.
    """
    check = partial(check_catalog, provider_id, tools, quarantine=quarantine)
    return check() if len(tools) < LARGE_CATALOG else await compute(check)


def _problem(item: Any, others: dict[str, Tool]) -> str | None:
    if not isinstance(item, Tool):
        return f"its list holds {_kind(item)} instead of a Tool"
    problem = item.problem if isinstance(item, BrokenTool) else problem_of(item.name)
    if problem is not None and not isinstance(item, MetaTool):
        return problem
    if item.name in others:
        return f"two tools are called {item.name!r}"
    return _problem_of_definition(item)


def _problem_of_definition(tool: Tool) -> str | None:
    problem = f"the definition of tool {tool.name!r} is not valid text"
    try:
        # The text first, because encoding what a hub sends takes time and memory.
        if len(tool.description or "") > MAX_DEFINITION or tool.size > MAX_DEFINITION:
            return (
                f"the definition of tool {tool.name!r} has more than {MAX_DEFINITION} bytes of JSON; "
                f"shorten its description and its schemas"
            )
        problem = f"the input schema of tool {tool.name!r} is broken"
        tool.validator  # noqa: B018  (evaluated to find a broken schema)
        if tool.output_schema is not None:
            problem = f"the output schema of tool {tool.name!r} is broken"
            tool.output_validator  # noqa: B018  (evaluated to find a broken schema)
    except ValueError as error:
        return f"{problem}: {excerpt(error)}"
    return None


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


class Denied(NamedTuple):
    """Tool that is listed but not offered.

    Attributes:
        binding: The tool.
        reason: Reason given by the policy.
    """

    binding: Binding
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """Immutable catalogue of one iteration: the tools that are advertised, and that calls are resolved against.

    A catalogue is narrowed by replacing its bindings: with the tools that the policy permits, those whose definitions
    are still the ones that the model was given, and the lazy tools that are active.

    Attributes:
        bindings: Tools by name, in the order in which they are advertised.
        callable: Tools that a call may name although they are not advertised; see `refusal`.
        refuse: Function of `refusal`; None if every known tool may be called.
        discovering: Names of the tools in `bindings` that discover other tools.
        denied: Tools that providers list and the policy denies, by name.
        shadowed: Collisions of names.
        collision: Error of two tools of one name, if the agent rejects collisions; `check()` raises it.
        is_lazy: Whether all tools are lazy except those that load skills.
        captured: Captured definitions, by capture policy.
    """

    bindings: Mapping[str, Binding]
    callable: Mapping[str, Binding] = field(default_factory=dict)
    refuse: Callable[[str], ToolError | None] | None = field(default=None, repr=False)
    discovering: frozenset[str] = frozenset()
    denied: Mapping[str, Denied] = field(default_factory=dict)
    shadowed: tuple[Shadowed, ...] = ()
    collision: ToolNameCollision | None = None
    is_lazy: bool = False
    captured: dict[object, CapturedValue] = field(default_factory=dict, repr=False)
    _indexing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _captured_of: dict[tuple[str, ...], dict[object, CapturedValue]] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def of(cls, parts: Sequence[ProviderCatalog], collisions: Collisions, *, is_lazy: bool = False) -> Catalog:
        """Merge the catalogues of providers into one."""
        listed = [Binding(tool, part.provider_id, tool.source) for part in parts for tool in part.tools]
        try:
            bindings, shadowed = resolve(listed, collisions, place=attrgetter("provider_id"), error=_collision)
        except ToolNameCollision as collision:
            return cls(bindings={}, collision=collision, is_lazy=is_lazy)
        return cls(bindings=bindings, shadowed=shadowed, is_lazy=is_lazy)

    def narrowed(self, bindings: Mapping[str, Binding], **changes: Any) -> Catalog:
        """Return this catalogue with other bindings, whose definitions are recorded separately."""
        return replace(self, bindings=bindings, captured=changes.pop("captured", {}), **changes)

    def check(self) -> None:
        """Reject a catalogue with two tools of one name, if the agent's policy is `error`.

        Raises:
            ToolNameCollision: two tools have the same name.
        """
        if self.collision is not None:
            # A new error for each run: one exception raised in many tasks would mix their tracebacks.
            raise ToolNameCollision(self.collision.tool_name, self.collision.first, self.collision.second)

    def prepare(self) -> None:
        """Compute what every request needs of the catalogue."""
        _ = self.digest, self.definitions, self.provider_tools, self.tokens, self.eager_tokens, self.searched

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools; equal content gives an equal digest."""
        return _digest(binding.tool.digest for binding in self.bindings.values())

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Definitions of the tools, as a model sees them."""
        return tuple(binding.tool.definition for binding in self.bindings.values())

    @cached_property
    def provider_tools(self) -> tuple[ProviderToolDefinition, ...]:
        """Definitions of the tools that the model's vendor runs."""
        return tuple(tool for tool in self.definitions if isinstance(tool, ProviderToolDefinition))

    @cached_property
    def tokens(self) -> int:
        """Approximate number of tokens of the definitions."""
        return sum(binding.tool.tokens for binding in self.bindings.values())

    def find(self, name: str) -> Binding | None:
        """Return the tool of a name, whether it may be called or not."""
        return self.bindings.get(name) or self.callable.get(name)

    def refusal(self, name: str) -> ToolError | None:
        """Return why a known tool may not be called now, as an error for the model, or None if it may."""
        return self.refuse(name) if self.refuse is not None else None

    def find_listed(self, name: str) -> Binding | None:
        """Return the tool of a name, also if the policy denies it."""
        denied = self.denied.get(name)
        return denied.binding if denied is not None else self.find(name)

    @cached_property
    def lazy(self) -> Mapping[str, Binding]:
        """Tools that are not offered before they are activated."""
        if self.is_lazy:
            loader = self.bindings.get(LOAD_SKILL)
            return {name: binding for name, binding in self.bindings.items() if not _is_eager(binding, loader)}
        return {name: binding for name, binding in self.bindings.items() if binding.tool.lazy}

    @cached_property
    def eager(self) -> Mapping[str, Binding]:
        """Tools that are offered from the first iteration, without activation."""
        return {name: binding for name, binding in self.bindings.items() if name not in self.lazy}

    @cached_property
    def eager_tokens(self) -> int:
        """Approximate number of tokens of the definitions of the eager tools."""
        return sum(binding.tool.tokens for binding in self.eager.values())

    @cached_property
    def named(self) -> Mapping[str, Binding]:
        """Lazy tools whose names the model knows from the start."""
        if self.is_lazy:
            return {}
        return {name: binding for name, binding in self.lazy.items() if binding.tool.lazy != "search"}

    @cached_property
    def searched(self) -> Mapping[str, Binding]:
        """Lazy tools that are found by searching."""
        return {name: binding for name, binding in self.lazy.items() if name not in self.named}

    @property
    def index(self) -> SearchIndex:
        """Search index of the `searched` tools; created once, even if several threads access it at the same time."""
        with self._indexing:
            return self._index

    @cached_property
    def _index(self) -> SearchIndex:
        from pellucid.tools.search import SearchIndex

        return SearchIndex(binding.tool for binding in self.searched.values())

    def captured_of(self, active: tuple[str, ...]) -> dict[object, CapturedValue]:
        """Return the recorded definitions that are offered while these tools are active."""
        if len(self._captured_of) > MOST:
            self._captured_of.clear()
        return self._captured_of.setdefault(active, {})


def _collision(first: Binding, second: Binding) -> ToolNameCollision:
    return ToolNameCollision(first.tool.name, first.provider_id, second.provider_id)


def _is_eager(binding: Binding, loader: Binding | None) -> bool:
    """Return whether a tool is offered although all others are lazy: `load_skill`, and the tools of loaded skills."""
    if binding.tool.name in RESERVED:
        return True
    return loader is not None and binding.provider_id == loader.provider_id and not binding.tool.lazy


class Catalogs:
    """Cache of merged catalogues: the same parts give the same catalogue, so that work on it is done once."""

    def __init__(self, collisions: Collisions = "error", *, is_lazy: bool = False) -> None:
        self.collisions = collisions
        self.is_lazy = is_lazy
        self._merged: Remembered[tuple[Sequence[ProviderCatalog], Catalog]] = Remembered()

    async def merged(self, parts: Sequence[ProviderCatalog]) -> Catalog:
        """Return the catalogue of these parts as `of` does; merge many tools in a worker thread."""
        if (known := self._known(tuple(map(id, parts)))) is not None:
            return known
        if sum(len(part.tools) for part in parts) < LARGE_CATALOG:
            return self.of(parts)
        return await compute(partial(self.of, parts))

    def of(self, parts: Sequence[ProviderCatalog]) -> Catalog:
        """Return the catalogue of these parts."""
        key = tuple(map(id, parts))
        if (known := self._known(key)) is not None:
            return known
        catalog = Catalog.of(parts, self.collisions, is_lazy=self.is_lazy)
        catalog.prepare()
        # Keep a reference to the parts, so that their ids are not reused.
        self._merged.put(key, (parts, catalog), sum(len(part.tools) for part in parts))
        return catalog

    def _known(self, key: tuple[int, ...]) -> Catalog | None:
        """Return the catalogue of the parts with these ids, if it was merged before."""
        entry = self._merged.get(key)
        return entry[1] if entry is not None else None
