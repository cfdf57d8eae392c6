"""What a run offers its model, iteration after iteration."""

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
    """What a run offers its model of each catalogue.

    Attributes:
        lazy: Which lazy tools are active.
        pins: What tools were when the model was given them.
        names: Names of all tools that were ever offered, to tell a removed one from an invented one.
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
        """Return what of a catalogue the model may have now: what is permitted, not redefined, and active.

        Raises:
            ToolNameCollision: two providers list one name, and the agent refuses that.
            PolicyHalt: the permission policy ended the run.
        """
        catalog.check()
        for narrow in (self._permit, self._pin, self._activate):
            catalog = await narrow(scope, b, catalog, history)
        return catalog

    async def _permit(self, scope: Scope, b: Boundary, catalog: Catalog, _: Sequence[Message]) -> Catalog:
        """Leave out what the policy denies; it is asked once about each catalogue."""
        if self._permissions is None:
            return catalog
        if self._permitted is None or self._permitted[0] is not catalog:
            span = b.span.get_span_context()
            permitted = await self._permissions.offer(scope, span, catalog, self._denied, self.lazy.metas)
            self._permitted = (catalog, permitted)
        b.note(denied=len(self._permitted[1].denied))
        return self._permitted[1]

    async def _pin(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Leave out what is no longer what the model was given, if the agent pins tools."""
        return self.pins.check(scope, b, catalog, history)

    async def _activate(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Leave out lazy tools that are not active."""
        return await self.lazy.of(scope, b.span.get_span_context(), catalog, history)

    def add(self, catalog: Catalog) -> None:
        """Note that a catalogue was offered."""
        self.digest = catalog.digest
        self.names.update(catalog.bindings)

    def report_shadowed(self, scope: Scope, b: Boundary, catalog: Catalog) -> None:
        """Emit an event for each tool with the name of another one, once for as long as that is so."""
        if catalog.shadowed:
            b.note(shadowed=len(catalog.shadowed))
            self._shadowed = emit_shadowed(scope, b.span.get_span_context(), catalog.shadowed, self._shadowed)
