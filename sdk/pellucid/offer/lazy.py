"""The offer from a catalogue with lazy tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.events import ToolsBudgetExceeded
from pellucid.messages import Message
from pellucid.offer.activation import Activation
from pellucid.offer.meta import meta_tools
from pellucid.offer.permission import Permissions
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.tool import Builtin

PROVIDER: Final = "lazy"
"""Value of `pellucid.provider.id` for the tools that discover others."""


class _Offer(NamedTuple):
    """The latest offer.

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


class Offers:
    """Offers of one run, one for each iteration.

    Attributes:
        activation: The active lazy tools.
    """

    __slots__ = ("_latest", "_max_tokens", "_reported", "activation")

    def __init__(self, max_discoveries: int, permissions: Permissions | None, max_tokens: int | None = None) -> None:
        self.activation = Activation(max_discoveries, permissions)
        self._max_tokens = max_tokens
        self._latest: _Offer | None = None
        self._reported = 0

    def metas(self, catalog: Catalog) -> Mapping[str, Binding]:
        """Return the tools that discover the lazy ones of a catalogue, except those that the policy denies."""
        tools = meta_tools(self.activation, catalog)
        return {name: Binding(tool, PROVIDER, Builtin()) for name, tool in tools.items() if name not in catalog.denied}

    async def offer(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return the part of a catalogue to offer: the catalogue itself if no tool in it is lazy.

        Raises:
            PolicyHalt: the policy ends the run when a tool of the history is activated.
        """
        offered = await self._offer(scope, span, catalog, history)
        if self._max_tokens is not None:
            self._report_excess(scope, span, offered.tokens, self._max_tokens, catalog)
        return offered

    def _report_excess(self, scope: Scope, span: SpanContext, tokens: int, max_tokens: int, catalog: Catalog) -> None:
        """Emit an event for an offer above the token budget, once while its size stays the same."""
        if tokens > max_tokens and tokens != self._reported:
            payload = {"tokens": tokens, "max_tokens": max_tokens, "eager_tokens": catalog.eager_tokens}
            scope.emit(ToolsBudgetExceeded, span, payload)
        self._reported = tokens

    async def _offer(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> Catalog:
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
            # Including all tools that discover others: they are offered again once a tool is deactivated.
            fixed = catalog.eager_tokens + sum(meta.tool.tokens for meta in metas.values())
            activation.fit(scope, span, catalog, self._max_tokens - fixed)
        active = tuple(name for name in activation.active if name in catalog.lazy)
        if latest is None or latest.whole is not catalog or latest.active != active:
            latest = _Offer(catalog, metas, active, _offered(catalog, metas, active, activation))
        self._latest = latest
        return latest.catalog


def _offered(
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
            return catalog.refuse(name)
        is_named = name in catalog.named
        if (LAZY_DISCOVERY if is_named else TOOL_SEARCH) not in metas:
            text = f"Error: Tool '{name}' is not active, and you may not activate it. Continue without it."
        elif is_named:
            text = (
                f"Error: Tool '{name}' must be discovered first. "
                f"Call {LAZY_DISCOVERY} with toolNames: ['{name}'] to discover it."
            )
        else:
            text = (
                f"Error: Tool '{name}' must be activated first. Call {TOOL_SEARCH} with name: '{name}' to activate it."
            )
        return ToolError(text, error_type="tool_not_active")

    has_more = bool(catalog.named.keys() - set(active))
    discovering = {name: meta for name, meta in metas.items() if name == TOOL_SEARCH or has_more}
    return catalog.narrowed(
        {**catalog.eager, **discovering, **{name: catalog.lazy[name] for name in active}},
        callable={**catalog.callable, **catalog.lazy, **metas},
        refuse=refuse,
        discovering=frozenset(metas),
        recorded=catalog.recorded_of(active),
    )
