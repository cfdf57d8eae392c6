"""Names of a module that are imported at their first use, or that are deprecated (PEP 562)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def load(module: str, name: str) -> Any:
    """Import a module and return one of its names."""
    return getattr(import_module(module), name)


def load_from(homes: Mapping[str, str]) -> Mapping[str, Callable[[], Any]]:
    """Return the loaders of names, by the modules that have them."""
    return {name: partial(load, home, name) for name, home in homes.items()}


def module_getattr(
    module: str, *, lazy: Mapping[str, Callable[[], Any]] = _NONE, deprecated: Mapping[str, tuple[str, str]] = _NONE
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    Args:
        module: Its `__name__`.
        lazy: Functions that load names at their first use.
        deprecated: Old names, each with the module and the name to import in its place.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807  (what it becomes)
        if name in lazy:
            return lazy[name]()
        if name not in deprecated:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, new = deprecated[name]
        remedy = f"use `from {home} import {new}`"
        warnings.warn(f"{module}.{name} is deprecated; {remedy}", DeprecationWarning, stacklevel=2)
        return load(home, new)

    return __getattr__
