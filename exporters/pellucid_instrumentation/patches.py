"""Patches of other modules, applied when these are imported and restored without a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeAlias

import wrapt

from pellucid_instrumentation.faults import guarded

Wrapper: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Receives the wrapped function, the instance, and the arguments, as `wrapt` passes them."""

_MISSING: Final = object()


class Patches:
    """Patches that are applied while they are on."""

    def __init__(self) -> None:
        self._planned: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._hooked: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        self._on = False

    def plan(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        """Plan a patch of a module."""
        self._planned.setdefault(module, []).append(patch)

    def start(self) -> None:
        """Apply the planned patches, now to modules that are imported, and later to the others."""
        self._on = True
        for name in self._planned:
            if name not in self._hooked:
                self._hooked.add(name)
                wrapt.register_post_import_hook(self._imported, name)  # called at once if the module is imported
            elif name in sys.modules:
                self._imported(sys.modules[name])

    def stop(self) -> None:
        """Restore everything, and plan nothing any more."""
        self._on = False
        self._planned = {}
        while self._undo:
            self._undo.pop()()

    def method(self, owner: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method of a class; an inherited one is wrapped in this class only."""
        original = vars(owner).get(name, _MISSING)
        setattr(owner, name, wrapt.FunctionWrapper(getattr(owner, name), wrapper))
        self._undo.append(lambda: delattr(owner, name) if original is _MISSING else setattr(owner, name, original))

    def generator_of(self, function: Any, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the generator function of an `@asynccontextmanager`, for all who have imported it.

        Modules import such functions by name, before or after this, so that wrapping the name would not reach them.
        """
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells["func"]
        original = cell.cell_contents
        cell.cell_contents = replacement(original)

        def undo() -> None:
            cell.cell_contents = original

        self._undo.append(undo)

    def _imported(self, module: ModuleType) -> None:
        if self._on:
            for patch in self._planned.get(module.__name__, ()):
                guarded(patch, module)
