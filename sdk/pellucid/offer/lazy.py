"""What is offered of a catalogue in which tools are lazy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Final

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.events import ToolsBudgetExceeded
from pellucid.messages import Message, ToolCall
from pellucid.offer.activation import Activation
from pellucid.offer.meta import meta_tools
from pellucid.offer.permission import Permissions
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding, Shadowed
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.tool import Builtin

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

    @cached_property
    def tokens(self) -> int:
        """About how many tokens the offered tools take."""
        others = self.bindings.keys() - self.whole.eager.keys()
        return self.whole.eager_tokens + sum(self.bindings[name].tool.tokens for name in others)

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

    __slots__ = ("_latest", "_max_tokens", "_told", "activation")

    def __init__(self, max_discoveries: int, permissions: Permissions | None, max_tokens: int | None = None) -> None:
        self.activation = Activation(max_discoveries, permissions)
        self._max_tokens = max_tokens
        self._latest: OfferedCatalog | None = None
        self._told = 0

    def metas(self, catalog: Catalog) -> Mapping[str, Binding]:
        """Return the tools that discover the lazy ones of a catalogue, but for those that the policy denies."""
        tools = meta_tools(self.activation, catalog)
        return {name: Binding(tool, PROVIDER, Builtin()) for name, tool in tools.items() if name not in catalog.denied}

    async def of(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return what is offered of a catalogue: the catalogue itself if nothing in it is lazy.

        Raises:
            PolicyHalt: the policy ends the run when it is asked about a tool of the history.
        """
        offered = await self._of(scope, span, catalog, history)
        if self._max_tokens is not None:
            self._tell(scope, span, offered.tokens, self._max_tokens, catalog)
        return offered

    def _tell(self, scope: Scope, span: SpanContext, tokens: int, most: int, catalog: Catalog) -> None:
        """Tell of an offer that takes more than it may, once for as long as it is the same."""
        if tokens > most and tokens != self._told:
            payload = {"tokens": tokens, "max_tokens": most, "eager_tokens": catalog.eager_tokens}
            scope.emit(ToolsBudgetExceeded, span, payload)
        self._told = tokens

    async def _of(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        activation = self.activation
        if not catalog.lazy and not activation.active:
            return catalog
        await activation.restore(scope, span, catalog, history)
        activation.revoke(scope, span, catalog)
        if not catalog.lazy:
            return catalog
        latest = self._latest
        metas = latest.metas if latest is not None and latest.whole is catalog else self.metas(catalog)
        if self._max_tokens is not None:
            # With all that discover others: they come back when something is deactivated.
            fixed = catalog.eager_tokens + sum(meta.tool.tokens for meta in metas.values())
            activation.fit(scope, span, catalog, self._max_tokens - fixed)
        active = tuple(name for name in activation.active if name in catalog.lazy)
        if latest is not None and latest.whole is catalog and latest.active == active:
            return latest
        self._latest = OfferedCatalog(
            parts=catalog.parts,
            denied=catalog.denied,
            recorded=catalog.recorded_of(active),
            whole=catalog,
            metas=metas,
            active=active,
            activation=activation,
        )
        return self._latest
