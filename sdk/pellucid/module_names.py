"""Lazily imported names of modules (PEP 562), and deprecated names of modules, arguments and attributes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def load(module: str, name: str) -> Any:
    """Import a module and return one of its attributes."""
    return getattr(import_module(module), name)


def load_from(modules: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    """Return a loader for each name, given the module that defines it."""
    return {name: partial(load, module, name) for name, module in modules.items()}


def load_within(package: str, names: Mapping[str, Iterable[str]]) -> dict[str, Callable[[], Any]]:
    """Return a loader for each name, given the names that each module of a package defines."""
    return load_from({name: f"{package}.{module}" for module, defined in names.items() for name in defined})


def module_dir(module: str) -> Callable[[], list[str]]:
    """Return `__dir__` of a module: its names, also those of `__all__` that are not loaded yet."""

    def listed() -> list[str]:
        namespace = vars(sys.modules[module])
        return sorted({*namespace, *namespace["__all__"]})

    return listed


def module_getattr(
    module: str, *, lazy: Mapping[str, Callable[[], Any]] = _NONE, deprecated: Mapping[str, tuple[str, str]] = _NONE
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    Args:
        module: `__name__` of the module.
        lazy: Functions that load names at their first use.
        deprecated: Old names, each with the module and the name to import instead.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807  (the name that PEP 562 requires)
        if name in lazy:
            value = lazy[name]()
            setattr(sys.modules[module], name, value)  # so that this is called once
            return value
        if name not in deprecated:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_module, new_name = deprecated[name]
        remedy = f"use `from {new_module} import {new_name}`"
        warnings.warn(f"{module}.{name} is deprecated; {remedy}", DeprecationWarning, stacklevel=2)
        return load(new_module, new_name)

    return __getattr__


def renamed(**names: str) -> Callable[[_T], _T]:
    """Let a function accept old names of keyword arguments, and a class those of attributes, too; they warn.

    A subclass with an `__init__` of its own, as a dataclass has, accepts the arguments if it is decorated itself.

    Args:
        **names: New names by the old ones; `pellucid.renamed` converts values that have changed with their names.
    """

    def decorate(target: Any) -> Any:
        function = vars(target)["__init__"] if isinstance(target, type) else target

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.keys().isdisjoint(names):
                kwargs = load("pellucid.renamed", "translated")(target, names, kwargs)
            return function(*args, **kwargs)

        if function is target:
            return call
        target.__init__ = call
        for old, new in names.items():
            setattr(target, old, property(partial(_read, old, new)))
        return target

    return decorate


def explained(cls: _T) -> _T:
    """Let a class say which option was meant, if it is made with arguments that it does not take."""
    target: Any = cls
    make = target.__init__

    @wraps(make)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            make(*args, **kwargs)
        except TypeError:
            load("pellucid.caller_checks", "explain")(cls, args[1:], kwargs)
            raise

    target.__init__ = call
    return cls


def _read(old: str, new: str, owner: object) -> Any:
    return load("pellucid.renamed", "read")(owner, old, new)
