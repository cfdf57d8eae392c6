"""The offer of a run: the tools that its model gets in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.messages import Message
from pellucid.offer.lazy import Offers
from pellucid.offer.permission import Permissions
from pellucid.offer.pins import Pins
from pellucid.telemetry import Boundary, Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Emitted, emit_shadowed


class Offering:
    """The offer of a run: narrows each catalogue to the tools that the model gets.

    Attributes:
        lazy: Offers of lazy tools, with their activation.
        pins: Definitions of the tools as the model was given them.
        names: Names of all tools offered so far, to distinguish removed tools from invented ones.
        digest: Digest of the catalogue that was offered last.
    """

    __slots__ = ("_denied", "_permissions", "_permitted", "_shadowed", "digest", "lazy", "names", "pins")

    def __init__(
        self, permissions: Permissions | None, *, max_discoveries: int, max_tokens: int | None, pin: bool
    ) -> None:
        self.lazy = Offers(max_discoveries, permissions, max_tokens)
        self.pins = Pins(self.lazy.activation, refuses=pin)
        self.names: set[str] = set()
        self.digest: str | None = None
        self._permissions = permissions
        self._permitted: tuple[Catalog, Catalog] | None = None
        self._denied: set[str] = set()
        self._shadowed: Emitted = frozenset()

    async def narrow(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return the tools of a catalogue to offer now: those that are permitted, not redefined, and active.

        Raises:
            ToolNameCollision: two providers list the same name, and the agent has `collisions="error"`.
            PolicyHalt: the permission policy ended the run.
        """
        catalog.check()
        for narrow in (self._permit, self._pin, self._activate):
            catalog = await narrow(scope, b, catalog, history)
        return catalog

    async def _permit(self, scope: Scope, b: Boundary, catalog: Catalog, _: Sequence[Message]) -> Catalog:
        """Remove the tools that the policy denies; each catalogue is checked once."""
        if self._permissions is None:
            return catalog
        if self._permitted is None or self._permitted[0] is not catalog:
            span = b.span.get_span_context()
            permitted = await self._permissions.offer(scope, span, catalog, self._denied, self.lazy.metas)
            self._permitted = (catalog, permitted)
        b.note(denied=len(self._permitted[1].denied))
        return self._permitted[1]

    async def _pin(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Remove the tools that were redefined since the model was given them, if the agent pins tools."""
        return self.pins.check(scope, b, catalog, history)

    async def _activate(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Remove the lazy tools that are not active."""
        return await self.lazy.offer(scope, b.span.get_span_context(), catalog, history)

    def add(self, catalog: Catalog) -> None:
        """Record that a catalogue was offered."""
        self.digest = catalog.digest
        self.names.update(catalog.bindings)

    def report_shadowed(self, scope: Scope, b: Boundary, catalog: Catalog) -> None:
        """Emit an event for each tool that shares a name with another one, once while that lasts."""
        if catalog.shadowed:
            b.note(shadowed=len(catalog.shadowed))
            self._shadowed = emit_shadowed(scope, b.span.get_span_context(), catalog.shadowed, self._shadowed)
