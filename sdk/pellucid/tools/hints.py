"""Type hints of many functions, most of which spell the same types."""

from __future__ import annotations

import builtins
import inspect
import re
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

MOST_HINTS: Final = 1024
"""Maximum number of hints that are kept."""

_NAMES: Final = re.compile(r"\w+")
_SIMPLE: Final = re.compile(r"[\w\[\], |]+", re.ASCII)
"""Annotations of names, brackets and unions: no attributes, no quoted types, no calls."""

_GLOBALS: Final = {"__builtins__": {"__import__": __import__}}
"""Subscripting a generic class imports `typing`, with the builtins of the annotation, from Python 3.12 on."""


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what `typing.get_type_hints` returns, with extras; in a quarter of the time if all types are simple.

    Raises:
        NameError: an annotation has an unknown name.
        TypeError: an annotation is no type.
    """
    hints: dict[str, Any] = {}
    has_own_names = hasattr(function, "__wrapped__") or getattr(function, "__type_params__", None)
    if inspect.isfunction(function) and not has_own_names:
        for name, text in function.__annotations__.items():
            hints[name] = hint = _simple(text, function.__globals__)
            if hint is None:
                break
        else:
            return hints
    return typing.get_type_hints(function, include_extras=True)


def _simple(text: object, names: dict[str, Any]) -> Any:
    """Return the type that an annotation spells with the names of classes; None if it may be another."""
    if not isinstance(text, str):
        return None
    used = _names_in(text)
    classes = tuple(names[name] if name in names else getattr(builtins, name, None) for name in used)
    if not all(isinstance(each, type) or each is Any or each is None for each in classes):
        return None
    try:
        return _evaluated(text, classes)
    except (TypeError, SyntaxError, NameError):  # `get_type_hints` says what is wrong
        return None


@lru_cache(MOST_HINTS)
def _names_in(text: str) -> tuple[str, ...]:
    return tuple(_NAMES.findall(text)) if _SIMPLE.fullmatch(text) else ()


@lru_cache(MOST_HINTS)
def _evaluated(text: str, classes: tuple[Any, ...]) -> Any:
    """Return the value of an annotation whose names stand for these classes; None if it is no simple type."""
    known = dict(zip(_names_in(text), classes, strict=True))
    hint = eval(text, dict(_GLOBALS), {name: each for name, each in known.items() if each is not None})  # noqa: S307
    if hint is None and text == "None":
        return type(None)
    is_simple = hint is Any or isinstance(hint, (type, types.GenericAlias, types.UnionType))
    return hint if is_simple or isinstance(typing.get_origin(hint), type) else None
