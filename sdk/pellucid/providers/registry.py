"""Provider of an application's tools, by source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Final, Generic, NamedTuple, overload

from opentelemetry import trace

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError, ToolNameCollision
from pellucid.providers.provider import ExplainContext
from pellucid.telemetry import current_scope
from pellucid.tools.catalog import RegistryMode, check_mode
from pellucid.tools.collisions import Binding, Collisions, Shadowed, check_policy, emit_shadowed, reasons_of, resolve
from pellucid.tools.names import RESERVED, fit, problem_of
from pellucid.tools.tool import NO_TOOLS, FunctionTool, Mcp, Params, PlainFunction, ResultT, Tool, ToolSource, tool
from pellucid.types import DepsT, JSONObject

MAX_RUNS: Final = 256
"""Maximum number of runs whose emitted collisions are kept."""


class _Snapshot(NamedTuple):
    """Listed tools and collisions of a registry at one moment."""

    listed: tuple[Tool, ...]
    shadowed: tuple[Shadowed, ...]


class ToolRegistry(Generic[DepsT]):
    """Tools that are added and removed at run time, each with a typed source. Safe to use from any thread.

    ```python
    registry = ToolRegistry([forecast])
    registry.register_mcp(search, "github")
    agent = Agent("assistant", model=model, providers=[registry])
    ```

    Tools are listed sorted by name, so that equal content has an equal digest, whatever the order of changes. A run
    sees a change at its next iteration, and always the whole of it. A name that models do not accept is converted to
    one that they do.

    Args:
        tools: Tools, or functions to convert to tools.
        id: Value of `pellucid.provider.id`.
        collisions: Policy for tools of different sources with the same name: `error` rejects the second one when it is
            registered, `first` and `last` list that one, `prefix` lists the later one as `<source>__<name>`. Within one
            source, `prefix` rejects the second one too.
        registry_mode: `full` offers all tools to the model. `lazy` offers `tool_search` instead, with which the model
            finds and activates tools.

    Raises:
        ConfigError: an option is invalid, or the name of a tool is reserved.
        ToolNameCollision: two of the tools have the same name.
    """

    kind = "registry"
    measures_requests = True

    def __init__(
        self,
        tools: Iterable[Tool[DepsT] | PlainFunction[..., object]] = NO_TOOLS,
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
        self._by_key: dict[Hashable, Binding] = {}
        self._snapshot: _Snapshot | None = None
        self._emitted: BoundedMap[str, tuple[Shadowed, ...]] = BoundedMap(MAX_RUNS)
        self._change((), [self._binding(item) for item in tools])

    def __repr__(self) -> str:
        return f"ToolRegistry({self.id!r}, tools={len(self._now().listed)})"

    @overload
    def register(self, item: Tool[DepsT], *, source: ToolSource | None = None) -> Tool[DepsT]: ...
    @overload
    def register(
        self, item: PlainFunction[Params, ResultT], *, source: ToolSource | None = None
    ) -> FunctionTool[Callable[Params, ResultT]]: ...
    def register(self, item: Tool[Any] | Callable[..., Any], *, source: ToolSource | None = None) -> Any:
        """Add a tool, or a function to convert to a tool, and return the tool.

        Args:
            item: The tool; or a function, so that this method can be used as a decorator.
            source: Source of the tool; `item.source` by default.

        Raises:
            ConfigError: the name is reserved.
            ToolNameCollision: the name is taken, and the policy does not resolve the collision.
        """
        with self._lock:
            binding = self._binding(item, source)
            self._change(self._bindings, [binding])
            return binding.tool

    def register_mcp(self, item: Tool[DepsT] | PlainFunction[..., object], server: str) -> Tool[DepsT]:
        """Add a tool of an MCP server, as `register` does."""
        return self.register(item, source=Mcp(server))

    def unregister(self, name: str) -> bool:
        """Remove the tool listed under `name`, and those that it shadows; return whether there was one.

        A name that models do not accept refers to the one that it was converted to.
        """
        name = fit(name, ())
        with self._lock:
            renamed = {id(pair.loser): pair.offered_as for pair in self._now().shadowed if pair.offered_as}
            return bool(self._remove(lambda binding: renamed.get(id(binding), binding.tool.name) == name))

    def unregister_mcp(self, server: str | None = None) -> int:
        """Remove the tools of one MCP server, or of all MCP servers; return the number of removed tools."""
        with self._lock:
            return self._remove(
                lambda binding: isinstance(binding.source, Mcp) and server in (None, binding.source.server)
            )

    def replace_source(self, source: ToolSource, tools: Iterable[Tool[DepsT] | PlainFunction[..., object]]) -> None:
        """Replace all tools of `source` with `tools` atomically; nothing changes if that fails.

        Raises:
            ConfigError: as for `register`.
            ToolNameCollision: as for `register`.
        """
        new = [self._binding(item, source) for item in tools]
        with self._lock:
            self._change([binding for binding in self._bindings if binding.source != source], new)

    def clone_without_mcp(self) -> ToolRegistry[DepsT]:
        """Return a copy of the registry without the tools of MCP servers."""
        return self.clone_allowed_by(lambda tool: not isinstance(tool.source, Mcp))

    def clone_allowed_by(self, predicate: Callable[[Tool], bool]) -> ToolRegistry[DepsT]:
        """Return a copy of the registry with the tools for which `predicate(tool)` is true.

        Later changes of one registry do not affect the other. Errors of the predicate are raised unchanged.
        """
        clone = ToolRegistry[DepsT](id=self.id, collisions=self._collisions, registry_mode=self._mode)
        clone._change((), [binding for binding in self._bindings if predicate(binding.tool)])
        return clone

    def names(self) -> list[str]:
        """Return the listed names, sorted."""
        return [tool.name for tool in self._now().listed]

    @property
    def shadowed(self) -> Sequence[Shadowed]:
        """Tools with the same name as a tool of another source."""
        return self._now().shadowed

    def list_schemas(self) -> list[JSONObject]:
        """Return the listed tools as JSON objects, sorted by name.

        Each has `name`, `description`, `parameters` and `source`, which is `builtin`, `mcp` (with `mcpServer`) or `hub`
        (with `providerId`), and `outputSchema` if the tool has one.
        """
        return [_schema(tool) for tool in self._now().listed]

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool[DepsT]]:
        """Return the current tools, sorted by name; the same sequence as long as nothing changes."""
        now = self._now()
        if now.shadowed:
            scope = current_scope()
            # Once per run and change.
            if self._emitted.put(scope.run_id, now.shadowed) is not now.shadowed or not scope.run_id:
                emit_shadowed(scope, trace.get_current_span().get_span_context(), now.shadowed)
        return now.listed

    def explain(self, ctx: ExplainContext) -> None:
        """Add which source's tool has the name, if several sources have one."""
        for reason in reasons_of(ctx.tool_name, self.shadowed, f"the policy of {self.id!r}"):
            ctx.add(reason, is_known=False)

    def _binding(self, item: Tool[Any] | Callable[..., Any], source: ToolSource | None = None) -> Binding:
        added = item if isinstance(item, Tool) else tool(item)
        if (problem := problem_of(added.name)) is not None:
            name: object = added.name
            if not isinstance(name, str) or name in RESERVED:
                raise ConfigError(f"ToolRegistry {self.id!r}: {problem}")
            added = added.named(fit(added.name, ()))
        added = added.of(source if source is not None else added.source)
        added = added.searched() if self._mode == "lazy" else added
        return Binding(added, self.id, added.source)

    def _remove(self, is_removed: Callable[[Binding], bool]) -> int:
        remaining = [binding for binding in self._bindings if not is_removed(binding)]
        removed = len(self._bindings) - len(remaining)
        if removed:
            self._change(remaining, [])
        return removed

    def _change(self, remaining: Sequence[Binding], new: Sequence[Binding]) -> None:
        """Set the tools if their names do not collide. Call with the lock held. Adding one takes constant time."""
        by_key = self._by_key if remaining is self._bindings else {self._key(binding): binding for binding in remaining}
        added: dict[Hashable, Binding] = {}
        for binding in new:
            key = self._key(binding)
            if (other := by_key.get(key) or added.get(key)) is not None:
                raise self._collision(other, binding)
            added[key] = binding
        by_key.update(added)
        self._bindings, self._by_key, self._snapshot = (*remaining, *new), by_key, None

    def _key(self, binding: Binding) -> Hashable:
        """Return the key that must be unique among the tools under the policy."""
        if self._collisions == "error":
            return binding.tool.name
        # Two tools of one source would get the same prefix.
        return (binding.tool.name, binding.source) if self._collisions == "prefix" else id(binding)

    def _now(self) -> _Snapshot:
        """Return the current snapshot, computed once after each change."""
        with self._lock:
            if self._snapshot is None:
                bindings, shadowed = resolve(self._bindings, self._collisions, place=_place, error=self._collision)
                listed = tuple(bindings[name].tool for name in sorted(bindings))
                self._snapshot = _Snapshot(listed, shadowed)
            return self._snapshot

    def _collision(self, first: Binding, second: Binding) -> ToolNameCollision:
        during = f"registering a tool in {self.id!r}"
        return ToolNameCollision(first.tool.name, str(first.source), str(second.source), during=during)


def _place(binding: Binding) -> str:
    return binding.source.place or binding.source.kind


def _schema(listed: Tool) -> JSONObject:
    schema: dict[str, Any] = {
        "name": listed.name,
        "description": listed.description,
        "parameters": deepcopy(listed.input_schema),
        "source": listed.source.kind,
    }
    if listed.output_schema is not None:
        schema["outputSchema"] = deepcopy(listed.output_schema)
    if listed.source.place is not None:
        schema["mcpServer" if isinstance(listed.source, Mcp) else "providerId"] = listed.source.place
    return schema
