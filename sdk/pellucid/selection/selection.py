"""The selection of a run: the tools that its model gets in each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.trace import SpanContext

from pellucid.context import Limits
from pellucid.errors import ToolError
from pellucid.events import ToolsBudgetExceeded
from pellucid.messages import Message
from pellucid.telemetry import Boundary, Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding, Emitted, emit_shadowed
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH

if TYPE_CHECKING:
    from pellucid.selection.activation import Activation
    from pellucid.selection.permission import Permissions
    from pellucid.selection.pins import Pins


class _LazyOffer(NamedTuple):
    """The latest offer from a catalogue with lazy tools.

    Attributes:
        whole: Catalogue from which it was taken.
        metas: Its tools that discover others.
        active: Names of its active lazy tools.
        catalog: The offered tools.
    """

    whole: Catalog
    metas: Mapping[str, Binding]
    active: tuple[str, ...]
    catalog: Catalog


class Selection:
    """The selection of a run: narrows each catalogue to the tools that the model gets.

    A run whose catalogue has no lazy tools and stays the same has no activation and no pins, and does not load them.

    Attributes:
        names: Names of all tools offered so far, to distinguish removed tools from invented ones.
        digest: Digest of the catalogue that was offered last.
    """

    def __init__(self, scope: Scope, permissions: Permissions | None, limits: Limits, *, pin: bool) -> None:
        self.names: set[str] = set()
        self.digest: str | None = None
        self._scope = scope
        self._permissions = permissions
        self._limits = limits
        self._withholds = pin
        self._activation: Activation | None = None
        self._pins: Pins | None = None
        self._first: Catalog | None = None
        self._whole: Catalog | None = None  # a catalogue of which nothing is ever left out
        self._max_tokens = limits.max_tool_tokens
        self._permitted: tuple[Catalog, Catalog] | None = None
        self._denied: set[str] = set()
        self._lazy: _LazyOffer | None = None
        self._excess_reported = 0
        self._shadowed: Emitted = frozenset()

    @property
    def activation(self) -> Activation:
        """The active lazy tools."""
        if self._activation is None:
            from pellucid.selection.activation import Activation

            most = self._limits.max_discoveries
            most = 2 * self._limits.max_iterations if most is None else most
            self._activation = Activation(self._scope, self._permissions, most)
        return self._activation

    @property
    def pins(self) -> Pins:
        """Definitions of the tools as the model was given them."""
        if self._pins is None:
            from pellucid.selection.pins import Pins

            offered = self._first.eager if self._first is not None else {}
            self._pins = Pins(self._scope, self.activation, offered, withholds=self._withholds)
        return self._pins

    @property
    def discoveries(self) -> int:
        """Iterations that only discovered tools; they do not count against `Limits.max_iterations`."""
        return self._activation.iterations if self._activation is not None else 0

    def count(self, *, only_discovered: bool) -> None:
        """Count an iteration that only discovered tools, up to the maximum."""
        if only_discovered:
            self.activation.count()

    async def narrow(
        self, b: Boundary, catalog: Catalog, history: Sequence[Message], added: Binding | None = None
    ) -> Catalog:
        """Return the tools of a catalogue to offer now: those that are permitted, not redefined, and active.

        Args:
            b: Boundary of the phase.
            catalog: The catalogue.
            history: The conversation, from which active tools are restored.
            added: Built-in tool to offer after them.

        Raises:
            ToolNameCollision: two providers list the same name, and the agent has `collisions="error"`.
            PolicyHalt: the permission policy ended the run.
        """
        if catalog is self._whole and added is None and self._activation is None:
            return catalog
        catalog.check()
        permitted = await self._permit(b, catalog)
        pinned = self._pin(b, permitted, history)
        span = b.span.get_span_context()
        reserved = added.tool.tokens if added is not None else 0
        offered = await self._activate(span, pinned, history, reserved)
        if added is not None:
            offered = offered.narrowed({**offered.bindings, added.tool.name: added})
        if self._max_tokens is not None:
            self._report_excess(span, self._max_tokens, offered, pinned)
        elif offered is catalog and self._permissions is None and self._pins is None:
            self._whole = catalog
        return offered

    async def _permit(self, b: Boundary, catalog: Catalog) -> Catalog:
        """Remove the tools that the policy denies; each catalogue is checked once.

        If lazy tools remain, the policy also rules on the tools that discover them.
        """
        if self._permissions is None:
            return catalog
        if self._permitted is None or self._permitted[0] is not catalog:
            span = b.span.get_span_context()
            permitted = await self._permissions.offer(self._scope, span, catalog, catalog.bindings, self._denied)
            if permitted.lazy:
                metas = self._metas(permitted)
                permitted = await self._permissions.offer(self._scope, span, permitted, metas, self._denied)
            self._permitted = (catalog, permitted)
        b.note(denied=len(self._permitted[1].denied))
        return self._permitted[1]

    def _pin(self, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Pin the tools of a catalogue, and return it without the tools that were redefined and are withheld."""
        if self._pins is None and not catalog.lazy and (self._first is None or self._first is catalog):
            self._first = catalog
            return catalog
        return self.pins.check(b, catalog, history)

    def _metas(self, catalog: Catalog) -> Mapping[str, Binding]:
        """Return the tools that discover the lazy tools of a catalogue."""
        from pellucid.selection.meta import meta_tools

        return meta_tools(self.activation, catalog)

    async def _activate(
        self, span: SpanContext, catalog: Catalog, history: Sequence[Message], reserved: int
    ) -> Catalog:
        """Remove the lazy tools that are not active; `reserved` tokens of the budget are taken."""
        if not catalog.lazy and (self._activation is None or not self._activation.active):
            return catalog
        activation = self.activation
        await activation.restore(span, catalog, history)
        activation.revoke(span, catalog)
        if not catalog.lazy:
            return catalog
        latest = self._lazy if self._lazy is not None and self._lazy.whole is catalog else None
        metas = latest.metas if latest is not None else self._metas(catalog)
        if self._max_tokens is not None:
            # Including all tools that discover others: they are offered again once a tool is deactivated.
            fixed = catalog.eager_tokens + sum(meta.tool.tokens for meta in metas.values())
            activation.fit(span, catalog, self._max_tokens - fixed - reserved)
        active = tuple(name for name in activation.active if name in catalog.lazy)
        if latest is None or latest.active != active:
            latest = _LazyOffer(catalog, metas, active, _without_inactive(catalog, metas, active, activation))
        self._lazy = latest
        return latest.catalog

    def _report_excess(self, span: SpanContext, max_tokens: int, offered: Catalog, catalog: Catalog) -> None:
        """Emit an event for an offer above the token budget, once while its size stays the same."""
        tokens = offered.tokens
        if tokens > max_tokens and tokens != self._excess_reported:
            payload = {"tokens": tokens, "max_tokens": max_tokens, "eager_tokens": catalog.eager_tokens}
            self._scope.emit(ToolsBudgetExceeded, span, payload)
        self._excess_reported = tokens

    def add(self, catalog: Catalog) -> None:
        """Record that a catalogue was offered."""
        self.digest = catalog.digest
        self.names.update(catalog.bindings)

    def report_shadowed(self, b: Boundary, catalog: Catalog) -> None:
        """Emit an event for each tool that shares a name with another one, once while that lasts."""
        if catalog.shadowed:
            b.note(shadowed=len(catalog.shadowed))
            self._shadowed = emit_shadowed(self._scope, b.span.get_span_context(), catalog.shadowed, self._shadowed)


def _without_inactive(
    catalog: Catalog, metas: Mapping[str, Binding], active: tuple[str, ...], activation: Activation
) -> Catalog:
    """Return the tools that are not lazy, those that discover the lazy ones, and the active ones.

    The active tools are in order of activation, so that new ones are added at the end.

    Args:
        catalog: Catalogue with all tools.
        metas: Tools that discover others; all of them can be called.
        active: Names of the active tools.
        activation: Activation of the run, which may change before a call is resolved.
    """

    def refuse(name: str) -> ToolError | None:
        if name in activation.active or name not in catalog.lazy:
            return catalog.refusal(name)
        is_named = name in catalog.named
        if (LAZY_DISCOVERY if is_named else TOOL_SEARCH) not in metas:
            remedy = "is not active, and you may not activate it. Continue without it."
        elif activation.is_over:
            remedy = f"is not active, and {activation.way_out}"
        elif is_named:
            remedy = f"must be discovered first. Call {LAZY_DISCOVERY} with toolNames: ['{name}'] to discover it."
        else:
            remedy = f"must be activated first. Call {TOOL_SEARCH} with name: '{name}' to activate it."
        return ToolError(f"Error: Tool '{name}' {remedy}", error_type="tool_not_active")

    has_more = bool(catalog.named.keys() - set(active))
    discovering = {name: meta for name, meta in metas.items() if name == TOOL_SEARCH or has_more}
    return catalog.narrowed(
        {**catalog.eager, **discovering, **{name: catalog.lazy[name] for name in active}},
        callable={**catalog.callable, **catalog.lazy, **metas},
        refuse=refuse,
        discovering=frozenset(metas),
        captured=catalog.captured_of(active),
    )
