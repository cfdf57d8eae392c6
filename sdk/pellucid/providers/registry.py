"""The tools of an application, by where they come from; itself a provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import trace

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError, ToolNameCollision
from pellucid.providers.provider import ExplainContext
from pellucid.telemetry import Scope, current_scope
from pellucid.tools.catalog import RegistryMode, check_mode
from pellucid.tools.collisions import Binding, Collisions, Shadowed, check_policy, reasons_of, resolve, tell_shadowed
from pellucid.tools.names import RESERVED, fit, problem_of
from pellucid.tools.tool import Mcp, Tool, ToolSource, tool
from pellucid.types import JSONObject

REMEMBERED: Final = 256
"""Runs of which is remembered what they were told."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What a registry lists at one moment."""

    listed: tuple[Tool, ...]
    shadowed: tuple[Shadowed, ...]


class ToolRegistry:
    """Tools that come and go while the application runs, each with a typed source. Safe to use from any thread.

    ```python
    registry = ToolRegistry([forecast])
    registry.register_mcp(search, "github")
    agent = Agent("assistant", model=model, providers=[registry])
    ```

    What is listed is sorted by name, so that equal content has an equal digest however it came to be. A run sees a
    change at its next iteration, and either all of it or nothing. A name that models do not accept is made to fit.

    Args:
        tools: Tools, or functions to make tools of.
        id: Value of `pellucid.provider.id`.
        collisions: What happens when two sources have tools of one name: `error` refuses the second when it is
            registered, `first` and `last` say which is listed, `prefix` lists the later one as `<source>__<name>`.
            Within one source the policy `prefix` refuses too.
        registry_mode: `full` offers all tools to the model. `lazy` offers `tool_search` in their place, with which it
            finds and activates them.

    Raises:
        ConfigError: an option makes no sense, or a tool has a name that is reserved.
        ToolNameCollision: two of the tools have one name.
    """

    kind = "registry"

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        id: str = "registry",  # noqa: A002  (a provider's attribute has this name)
        collisions: Collisions = "error",
        registry_mode: RegistryMode = "full",
    ) -> None:
        if not id:
            raise ConfigError.empty("ToolRegistry", "id", "it names the registry in traces and metrics")
        check_policy(f"ToolRegistry {id!r}", collisions)
        check_mode(f"ToolRegistry {id!r}", registry_mode)
        self.id = id
        self._mode: RegistryMode = registry_mode
        self._collisions: Collisions = collisions
        self._lock = threading.RLock()
        reset_in_child(self, _lock=threading.RLock)
        self._bindings: tuple[Binding, ...] = ()
        self._taken: dict[Hashable, Binding] = {}
        self._snapshot: _Snapshot | None = None
        self._told: BoundedMap[str, tuple[Shadowed, ...]] = BoundedMap(REMEMBERED)
        self._change((), [self._binding(each) for each in tools])

    def __repr__(self) -> str:
        return f"ToolRegistry({self.id!r}, tools={len(self._now().listed)})"

    def register(self, item: Tool | Callable[..., Any], *, source: ToolSource | None = None) -> Tool:
        """Add a tool, or a function to make one of, and return it.

        Args:
            item: The tool; or a function, so that this can be used as a decorator.
            source: Where it comes from; what the tool says itself if not given.

        Raises:
            ConfigError: its name is reserved.
            ToolNameCollision: its name is taken, and the policy does not say who gives way.
        """
        with self._lock:
            binding = self._binding(item, source)
            self._change(self._bindings, [binding])
            return binding.tool

    def register_mcp(self, item: Tool | Callable[..., Any], server: str) -> Tool:
        """Add a tool of an MCP server; as `register`."""
        return self.register(item, source=Mcp(server))

    def unregister(self, name: str) -> bool:
        """Remove the tool that is listed under `name`, and those it hides; return whether there was one.

        A name that models do not accept stands for the one that was made of it.
        """
        name = fit(name, ())
        with self._lock:
            renamed = {id(each.loser): each.offered_as for each in self._now().shadowed if each.offered_as}
            return bool(self._remove(lambda binding: renamed.get(id(binding), binding.tool.name) == name))

    def unregister_mcp(self, server: str | None = None) -> int:
        """Remove the tools of one MCP server, or of all; return how many there were."""
        with self._lock:
            return self._remove(
                lambda binding: isinstance(binding.source, Mcp) and server in (None, binding.source.server)
            )

    def replace_source(self, source: ToolSource, tools: Iterable[Tool | Callable[..., Any]]) -> None:
        """Put `tools` in the place of all that came from `source`, at one moment; nothing changes if that fails.

        Raises:
            ConfigError, ToolNameCollision: as for `register`.
        """
        new = [self._binding(each, source) for each in tools]
        with self._lock:
            self._change([binding for binding in self._bindings if binding.source != source], new)

    def clone_without_mcp(self) -> ToolRegistry:
        """Return a registry with the tools that come from no MCP server."""
        return self.clone_allowed_by(lambda each: not isinstance(each.source, Mcp))

    def clone_allowed_by(self, predicate: Callable[[Tool], bool]) -> ToolRegistry:
        """Return a registry with the tools for which `predicate(tool)` is true; what the predicate raises is raised.

        Later changes of one do not show in the other.
        """
        clone = ToolRegistry(id=self.id, collisions=self._collisions, registry_mode=self._mode)
        clone._change((), [binding for binding in self._bindings if predicate(binding.tool)])
        return clone

    def names(self) -> list[str]:
        """Return the names that are listed, sorted."""
        return [each.name for each in self._now().listed]

    @property
    def shadowed(self) -> Sequence[Shadowed]:
        """Tools that have the name of another one, of another source."""
        return self._now().shadowed

    def list_schemas(self) -> list[JSONObject]:
        """Return what there is as data, sorted by name: `name`, `description`, `parameters` and `source`.

        `source` is `builtin`, `mcp` (with `mcpServer`) or `hub` (with `providerId`).
        """
        return [_schema(each) for each in self._now().listed]

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tools of this moment, sorted by name; the same sequence as long as nothing changes."""
        now = self._now()
        if now.shadowed:
            self._tell(current_scope(), now.shadowed)
        return now.listed

    def explain(self, ctx: ExplainContext) -> None:
        """Say which source has the name, if several do."""
        for reason in reasons_of(ctx.tool_name, self.shadowed, f"the policy of {self.id!r}"):
            ctx.add(reason, is_known=False)

    def _tell(self, scope: Scope, shadowed: tuple[Shadowed, ...]) -> None:
        """Emit events of collisions, to each run once for each change."""
        if self._told.put(scope.run_id, shadowed) is not shadowed or not scope.run_id:
            tell_shadowed(scope, trace.get_current_span().get_span_context(), shadowed)

    def _binding(self, item: Tool | Callable[..., Any], source: ToolSource | None = None) -> Binding:
        made = item if isinstance(item, Tool) else tool(item)
        if (problem := problem_of(made.name)) is not None:
            given: object = made.name
            if not isinstance(given, str) or given in RESERVED:
                raise ConfigError(f"ToolRegistry {self.id!r}: {problem}")
            made = made.named(fit(made.name, ()))
        made = made.of(source if source is not None else made.source)
        made = made.searched() if self._mode == "lazy" else made
        return Binding(made, self.id, made.source)

    def _remove(self, goes: Callable[[Binding], bool]) -> int:
        kept = [binding for binding in self._bindings if not goes(binding)]
        removed = len(self._bindings) - len(kept)
        if removed:
            self._change(kept, [])
        return removed

    def _change(self, kept: Sequence[Binding], new: Sequence[Binding]) -> None:
        """Take other tools, if they go together; the caller holds the lock. Adding one costs the same however many."""
        taken = self._taken if kept is self._bindings else {self._key(binding): binding for binding in kept}
        added: dict[Hashable, Binding] = {}
        for binding in new:
            key = self._key(binding)
            if (other := taken.get(key) or added.get(key)) is not None:
                raise self._collision(other, binding)
            added[key] = binding
        taken.update(added)
        self._bindings, self._taken, self._snapshot = (*kept, *new), taken, None

    def _key(self, binding: Binding) -> Hashable:
        """Return what no two tools may share under the policy."""
        if self._collisions == "error":
            return binding.tool.name
        # A prefix made of the source would not tell two of one source apart.
        return (binding.tool.name, binding.source) if self._collisions == "prefix" else id(binding)

    def _now(self) -> _Snapshot:
        """Return what is listed, worked out once after each change."""
        with self._lock:
            if self._snapshot is None:
                found, shadowed = resolve(
                    self._bindings, self._collisions, place=lambda each: _place(each.source), refuse=self._collision
                )
                listed = tuple(found[name].tool for name in sorted(found))
                self._snapshot = _Snapshot(listed, shadowed)
            return self._snapshot

    def _collision(self, first: Binding, second: Binding) -> ToolNameCollision:
        during = f"registering a tool in {self.id!r}"
        return ToolNameCollision(first.tool.name, str(first.source), str(second.source), during=during)


def _place(source: ToolSource) -> str:
    return source.place or source.kind


def _schema(listed: Tool) -> JSONObject:
    schema: dict[str, Any] = {
        "name": listed.name,
        "description": listed.description,
        "parameters": deepcopy(listed.input_schema),
        "source": listed.source.kind,
    }
    if listed.source.place is not None:
        schema["mcpServer" if isinstance(listed.source, Mcp) else "providerId"] = listed.source.place
    return schema
