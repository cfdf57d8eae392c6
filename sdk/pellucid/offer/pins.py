"""What tools were when they were offered, activated or approved, and what of them has changed since under its name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from pellucid.errors import ToolError
from pellucid.events import ToolsRedefined
from pellucid.messages import Message, ToolDefinition
from pellucid.offer.activation import Activation, discovered
from pellucid.telemetry import Boundary, Scope
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import digest_of

After: TypeAlias = Literal["offer", "activation", "approval"]
"""What a tool was pinned at."""

Pin: TypeAlias = Binding | str
"""What a tool was: itself, or the digits of its digest, and of that of where it comes from."""

_DIGITS: Final = 32
"""Hexadecimal digits of a digest; a pin as text has twice as many."""


class Pins:
    """What the tools of one run were when the model was given them.

    A tool is pinned when it is offered or activated, and when it was approved: `restore()`. With `refuses` what has
    changed since is kept from the model until it is again what it was.
    """

    __slots__ = ("_activation", "_after", "_checked", "_given", "_is_read", "_latest", "_pinned", "_refuses")

    def __init__(self, activation: Activation, *, refuses: bool) -> None:
        self._activation = activation
        self._refuses = refuses
        self._pinned: dict[str, Pin] = {}
        self._after: dict[str, After] = {}
        self._latest: dict[str, Binding] = {}
        self._is_read = False
        self._checked: Catalog | None = None
        self._given: tuple[Catalog, int] | None = None

    def to_dict(self) -> dict[str, str]:
        """Return what the model was given last, by name, as hexadecimal digits: of the definition and its place."""
        self._pin(self._activation.active, "activation")
        known = self._pinned if self._refuses else {**self._pinned, **self._latest}
        return {name: _mark(pin) if isinstance(pin, Binding) else pin for name, pin in known.items()}

    def restore(self, state: Mapping[str, str], after: After = "approval") -> None:
        """Pin tools as `to_dict()` of an earlier run gave them. What is no such text is not what any tool is."""
        self._pinned.update(state)
        self._after.update(dict.fromkeys(state, after))
        self._checked = None

    def check(self, scope: Scope, b: Boundary, catalog: Catalog, history: Sequence[Message]) -> Catalog:
        """Return what of a catalogue may be offered, and tell what has changed; the same one again costs nothing."""
        if self._given is None or catalog is not self._checked:
            self._pin(self._activation.active, "activation")
            self._read(catalog, history)
            changed = self._compare(scope, b, catalog)
            self._pin(catalog.eager, "offer")
            given = _without(catalog, changed) if changed and self._refuses else catalog
            self._checked, self._given = catalog, (given, len(changed))
        given, count = self._given
        if count:
            b.note(redefined=count)
        return given

    def _pin(self, pins: Mapping[str, Pin], after: After) -> None:
        """Pin what is not pinned already."""
        if after != "offer":
            self._after.update({name: after for name in pins if name not in self._pinned})
        self._pinned = {**pins, **self._pinned}

    def _read(self, catalog: Catalog, history: Iterable[Message]) -> None:
        """Pin what the model read of the tools that an earlier run of the conversation activated; once in a run.

        Of several texts about one tool any that is not true today counts: to forge one more unpins nothing.
        """
        if self._is_read or not catalog.lazy:
            return
        self._is_read = True
        read: dict[str, Pin] = {}
        for name, said in discovered(history):
            binding = catalog.lazy.get(name)
            if binding is not None and isinstance(read.get(name, binding), Binding):
                read[name] = _as_read(binding, said)
        self._pin(read, "activation")

    def _compare(self, scope: Scope, b: Boundary, catalog: Catalog) -> dict[str, Binding]:
        """Return what is not as it was pinned, and tell of what is not as it was before."""
        changed: dict[str, Binding] = {}
        for name, pin in self._pinned.items():
            now = catalog.bindings.get(name)
            if now is None:
                continue
            before = self._latest.get(name, pin)
            is_changed = not _same(pin, now)
            if is_changed:
                changed[name] = now
            if not _same(before, now):
                self._latest[name] = now
                told = {
                    "tool_name": name,
                    "provider_id": now.provider_id,
                    "digest": now.tool.digest.hex(),
                    "previous_digest": _mark(before)[:_DIGITS],
                    "after": self._after.get(name, "offer"),
                    "refused": is_changed and self._refuses,
                }
                scope.emit(ToolsRedefined, b.span.get_span_context(), told)
        return changed


def _without(catalog: Catalog, redefined: Mapping[str, Binding]) -> Catalog:
    """Return a catalogue without tools that have changed; calls of these are refused."""

    def refuse(name: str) -> ToolError | None:
        if name not in redefined:
            return catalog.refuse(name)
        return ToolError(
            f"Not run: tool {name!r} is no longer what it was when you were given it: its description, its parameters "
            f"or where it comes from has changed. Do not call it again; go on without it, and say so in your answer.",
            error_type="tool_redefined",
        )

    remaining = {name: binding for name, binding in catalog.bindings.items() if name not in redefined}
    return catalog.narrowed(remaining, callable={**catalog.callable, **redefined}, refuse=refuse)


def _same(pin: Pin, now: Binding) -> bool:
    if not isinstance(pin, Binding):
        return pin == _mark(now)
    return pin is now or (
        pin.tool.digest == now.tool.digest and pin.provider_id == now.provider_id and pin.source == now.source
    )


def _mark(pin: Pin) -> str:
    """Return the digits of a definition's digest, and as many of where it comes from."""
    if not isinstance(pin, Binding):
        return str(pin)
    return pin.tool.digest.hex() + _place(pin)


def _place(binding: Binding) -> str:
    place = f"{binding.provider_id}\0{binding.source}"
    return blake2b(place.encode("utf-8", "surrogatepass"), digest_size=_DIGITS // 2).hexdigest()


def _as_read(binding: Binding, said: Mapping[str, Any]) -> Pin:
    """Return the tool if it is what a result of a discovery says, and otherwise a pin of what that says."""
    read = ToolDefinition(
        name=binding.tool.name,
        description=said.get("description"),  # type: ignore[arg-type]  # whatever it is, it is only compared
        parameters=said.get("parameters", said.get("inputSchema")),
    )
    try:
        if _content(read) == _content(binding.tool.definition):
            return binding
        return digest_of(read).hex() + _place(binding)
    except Exception:  # noqa: BLE001  (a history is the caller's, and may be forged: what cannot be read is no tool)
        return ""


def _content(definition: ToolDefinition) -> str:
    """Return a definition as text; where a history is kept, the order of keys may have been lost."""
    return json.dumps(json.loads(to_json(definition.to_dict(), serialize_unknown=True)), sort_keys=True)
