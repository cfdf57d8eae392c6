"""Pins: definitions of tools when they were offered, activated or approved, and detection of redefined tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from pellucid.errors import ToolError
from pellucid.events import ToolsRedefined
from pellucid.messages import Message, ToolDefinition
from pellucid.selection.activation import Activation, discovered
from pellucid.telemetry import Boundary, Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import digest_of

After: TypeAlias = Literal["offer", "activation", "approval"]
"""Point at which a tool was pinned."""

Pin: TypeAlias = Binding | str
"""A pinned tool: its binding, or the digests of its definition and of its origin as hexadecimal digits."""

_DIGITS: Final = 32
"""Hexadecimal digits of a digest; a pin as text has twice as many."""


class Pins:
    """Pinned definitions of the tools of one run.

    A tool is pinned when it is offered, activated, or approved in a paused run (`restore()`). With `withholds`,
    redefined tools are withheld from the model until the redefinition is reverted.

    Args:
        scope: Telemetry of the run.
        activation: Its active lazy tools.
        offered: Tools that the model was already offered.
        withholds: Whether redefined tools are withheld.
    """

    def __init__(
        self, scope: Scope, activation: Activation, offered: Mapping[str, Binding], *, withholds: bool
    ) -> None:
        self._scope = scope
        self._activation = activation
        self._withholds = withholds
        self._pinned: dict[str, Pin] = dict(offered)
        self._after: dict[str, After] = {}
        self._latest: dict[str, Binding] = {}
        self._is_read = False
        self._checked: tuple[Catalog, Catalog, int] | None = None

    def to_dict(self) -> dict[str, str]:
        """Return the latest pins by name, as hexadecimal digits of the definition and the origin."""
        self._pin(self._activation.active, "activation")
        pins = self._pinned if self._withholds else {**self._pinned, **self._latest}
        return {name: _mark(pin) if isinstance(pin, Binding) else pin for name, pin in pins.items()}

    def restore(self, state: Mapping[str, str], after: After = "approval") -> None:
        """Pin tools from the `to_dict()` of an earlier run. A malformed pin matches no tool."""
        self._pinned.update(state)
        self._after.update(dict.fromkeys(state, after))
        self._checked = None

    def check(self, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return the catalogue without withheld tools, and emit redefinitions. Check each catalogue once."""
        if self._checked is None or self._checked[0] is not catalog:
            self._pin(self._activation.active, "activation")
            self._read(catalog, history)
            changed = self._compare(b, catalog)
            self._pin(catalog.eager, "offer")
            narrowed = _without(catalog, changed) if changed and self._withholds else catalog
            self._checked = (catalog, narrowed, len(changed))
        _, narrowed, count = self._checked
        if count:
            b.note(redefined=count)
        return narrowed

    def _pin(self, pins: Mapping[str, Pin], after: After) -> None:
        """Pin tools that are not pinned already."""
        if after != "offer":
            self._after.update({name: after for name in pins if name not in self._pinned})
        self._pinned = {**pins, **self._pinned}

    def _read(self, catalog: Catalog, history: Iterable[Message]) -> None:
        """Pin the definitions in the history that earlier runs of the conversation activated; once in a run.

        Of several definitions of one tool, one that differs from the current definition is pinned: forging another one
        unpins nothing.
        """
        if self._is_read or not catalog.lazy:
            return
        self._is_read = True
        pins: dict[str, Pin] = {}
        for name, definition in discovered(history):
            binding = catalog.lazy.get(name)
            if binding is not None and isinstance(pins.get(name, binding), Binding):
                pins[name] = _pin_from_history(binding, definition)
        self._pin(pins, "activation")

    def _compare(self, b: Boundary, catalog: Catalog) -> dict[str, Binding]:
        """Return the tools that differ from their pins, and emit an event for each change since the last check."""
        changed: dict[str, Binding] = {}
        for name, pin in self._pinned.items():
            current = catalog.bindings.get(name)
            if current is None:
                continue
            previous = self._latest.get(name, pin)
            is_changed = not _same(pin, current)
            if is_changed:
                changed[name] = current
            if not _same(previous, current):
                self._latest[name] = current
                payload = {
                    "tool_name": name,
                    "provider_id": current.provider_id,
                    "digest": current.tool.fingerprint.hex(),
                    "previous_digest": _mark(previous)[:_DIGITS],
                    "after": self._after.get(name, "offer"),
                    "refused": is_changed and self._withholds,
                }
                self._scope.emit(ToolsRedefined, b.span.get_span_context(), payload)
        return changed


def _without(catalog: Catalog, redefined: Mapping[str, Binding]) -> Catalog:
    """Return a catalogue without redefined tools; calls to them fail."""

    def refuse(name: str) -> ToolError | None:
        if name not in redefined:
            return catalog.refusal(name)
        return ToolError(
            f"Not run: tool {name!r} has changed since it was offered to you: its description, parameters or origin "
            f"is different. Do not call it again; continue without it, and say so in your answer.",
            error_type="tool_redefined",
        )

    remaining = {name: binding for name, binding in catalog.bindings.items() if name not in redefined}
    return catalog.narrowed(remaining, callable={**catalog.callable, **redefined}, refuse=refuse)


def _same(pin: Pin, current: Binding) -> bool:
    if not isinstance(pin, Binding):
        return pin == _mark(current)
    return pin is current or (
        pin.tool.fingerprint == current.tool.fingerprint
        and pin.provider_id == current.provider_id
        and pin.source == current.source
    )


def _mark(pin: Pin) -> str:
    """Return the hexadecimal digits of a pin: the digest of the definition, then the digest of its origin."""
    if not isinstance(pin, Binding):
        return str(pin)
    return pin.tool.fingerprint.hex() + _origin(pin)


def _origin(binding: Binding) -> str:
    origin = f"{binding.provider_id}\0{binding.source}"
    return blake2b(origin.encode("utf-8", "surrogatepass"), digest_size=_DIGITS // 2).hexdigest()


def _pin_from_history(binding: Binding, values: Mapping[str, Any]) -> Pin:
    """Return the binding if the definition in a discovery's result matches it, otherwise a pin of that definition."""
    definition = ToolDefinition(
        name=binding.tool.name,
        description=values.get("description"),  # type: ignore[arg-type]  # of any type; it is only compared
        parameters=values.get("parameters", values.get("inputSchema")),
        output_schema=binding.tool.output_schema,  # which results of discoveries do not have
    )
    try:
        if _content(definition) == _content(binding.tool.definition):
            return binding
        return digest_of(definition).hex() + _origin(binding)
    except Exception:  # noqa: BLE001  (a history may be forged; an unreadable definition matches no tool)
        return ""


def _content(definition: ToolDefinition) -> str:
    """Return a definition as text with sorted keys, because a stored history may have lost their order."""
    return json.dumps(json.loads(to_json(definition.to_dict(), serialize_unknown=True)), sort_keys=True)
