"""Facts about Python functions that become tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable object."""
    inner = unwrapped(function)
    source = function if inner.__name__ == "__call__" else inner
    return str(getattr(source, "__name__", type(source).__name__))


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` returns a coroutine; looks inside `partial` and at `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(unwrapped(function))


def unwrapped(function: Callable[..., Any]) -> Any:
    """Return the function with the type hints and the docstring: inside `partial`, or `__call__` of other objects."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def wrapped(function: Callable[..., Any], *, stop: type) -> Any:
    """Return the object that `partial` and decorators wrap, or the outermost one of the type `stop` among them."""
    while isinstance(function, partial):
        function = function.func
    return inspect.unwrap(function, stop=lambda each: isinstance(each, stop))
