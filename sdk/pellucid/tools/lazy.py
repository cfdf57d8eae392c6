"""What is offered of a catalogue in which tools are lazy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Final

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.messages import Message, ToolCall
from pellucid.telemetry import Scope
from pellucid.tools.activation import Activation
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding, Shadowed
from pellucid.tools.meta import discovery_tool, search_tool
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.permission import Permissions
from pellucid.tools.tool import Builtin, Tool

PROVIDER: Final = "lazy"
"""Value of `pellucid.provider.id` for the tools that discover others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OfferedCatalog(Catalog):
    """What a run offers of a catalogue: its tools that are not lazy, what discovers the lazy ones, and the active ones.

    The active ones stand in the order of their activation, so that tools are added at the end.

    Attributes:
        whole: The catalogue.
        metas: The tools that discover others; all of them can be called.
        active: Names of the active tools at the moment of the offer.
        activation: Says which are active meanwhile.
    """

    whole: Catalog
    metas: Mapping[str, Binding]
    active: tuple[str, ...]
    activation: Activation = field(repr=False)

    @cached_property
    def _resolved(self) -> tuple[Mapping[str, Binding], tuple[Shadowed, ...]]:
        offered = {name: meta for name, meta in self.metas.items() if name == TOOL_SEARCH or self._has_more()}
        found = {**self.whole.eager, **offered, **{name: self.whole.lazy[name] for name in self.active}}
        return found, self.whole.shadowed

    def _has_more(self) -> bool:
        """Whether there are tools that `__lazy__tool__discovery__` has not discovered."""
        return bool(self.whole.named.keys() - set(self.active))

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a model sees of the tools."""
        return blake2b(b"".join(each.tool.digest for each in self.bindings.values()), digest_size=16).hexdigest()

    def find(self, name: str) -> Binding | None:
        """Return what a name stands for, whether it may be called or not."""
        return self.bindings.get(name) or self.metas.get(name) or self.whole.find(name)

    def refusal(self, name: str) -> ToolError | None:
        """Return why a tool may not be called now, and what to do; None if it may."""
        if name in self.activation.active or name not in self.whole.lazy:
            return self.whole.refusal(name)
        if (LAZY_DISCOVERY if name in self.whole.named else TOOL_SEARCH) not in self.metas:
            text = f"Error: Tool '{name}' is not active, and you may not activate it. Go on without it."
            return ToolError(text, error_type="tool_not_active")
        if name in self.whole.named:
            todo = f"discovered first. Call {LAZY_DISCOVERY} with toolNames: ['{name}'] to discover it."
        else:
            todo = f"activated first. Call {TOOL_SEARCH} with name: '{name}' to activate it."
        return ToolError(f"Error: Tool '{name}' must be {todo}", error_type="tool_not_active")

    def groups(self, calls: Sequence[ToolCall]) -> list[Sequence[ToolCall]]:
        """Return first the calls that discover tools, one by one, then all others: what is discovered can be called.

        One by one, because the order of activation is the order of the offer, which must not depend on chance.
        """
        first: list[Sequence[ToolCall]] = [[call] for call in calls if call.name in self.metas]
        then = [call for call in calls if call.name not in self.metas]
        return [*first, then] if then else first

    def only_discovers(self, calls: Sequence[ToolCall]) -> bool:
        """Whether calls do nothing but discover tools."""
        return all(call.name in self.metas for call in calls)


class Offers:
    """What one run is offered, iteration after iteration. Attributes: activation: the lazy tools that are active."""

    __slots__ = ("_latest", "activation")

    def __init__(self, max_discoveries: int, permissions: Permissions | None) -> None:
        self.activation = Activation(max_discoveries, permissions)
        self._latest: OfferedCatalog | None = None

    def metas(self, catalog: Catalog) -> Mapping[str, Binding]:
        """Return the tools that discover the lazy ones of a catalogue."""
        return _metas(self.activation, catalog)

    async def of(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return what is offered of a catalogue: the catalogue itself if nothing in it is lazy.

        Raises:
            PolicyHalt: the policy ends the run when it is asked about a tool of the history.
        """
        activation = self.activation
        if not catalog.lazy and not activation.active:
            return catalog
        await activation.restore(scope, span, catalog, history)
        activation.revoke(scope, span, catalog)
        if not catalog.lazy:
            return catalog
        active, latest = tuple(name for name in activation.active if name in catalog.lazy), self._latest
        if latest is not None and latest.whole is catalog and latest.active == active:
            return latest
        self._latest = OfferedCatalog(
            parts=catalog.parts,
            denied=catalog.denied,
            recorded=catalog.recorded_of(active),
            whole=catalog,
            metas={name: meta for name, meta in self.metas(catalog).items() if name not in catalog.denied},
            active=active,
            activation=activation,
        )
        return self._latest


def _metas(activation: Activation, catalog: Catalog) -> dict[str, Binding]:
    tools: list[Tool] = []
    if catalog.searched:
        tools.append(search_tool(activation, catalog))
    if catalog.named:
        tools.append(discovery_tool(activation, catalog))
    return {tool.name: Binding(tool, PROVIDER, Builtin()) for tool in tools}
