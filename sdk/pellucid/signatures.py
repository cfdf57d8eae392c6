"""Signatures that show the options of a function, which are keyword arguments of a `TypedDict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, Final, TypeVar

from pellucid.text import close_to

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

DEFAULTS: Final[Mapping[str, object]] = {
    "tools": (),
    "providers": (),
    "skills": (),
    "history": (),
    "decisions": (),
    "results": (),
    "collisions": "error",
    "registry_mode": "full",
    "pin": False,
    "on_change": "refuse",
    "on_stale": "serve",
    "scorers": (),
    "warm": False,
}
"""Values of options that are not given; of all others None."""


def check_names(function: str, options: Iterable[str], allowed: type[Any]) -> None:
    """Check the names of keyword arguments against those of a `TypedDict`, as Python does for parameters.

    Raises:
        TypeError: a name is unknown; the text suggests similar ones.
    """
    for name in options:
        if name not in allowed.__annotations__:
            similar = close_to(name, allowed.__annotations__)
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}{similar and f'. {similar}'}")


def shows(options: type[Any], defaults: Mapping[str, object] = DEFAULTS) -> Callable[[FunctionT], FunctionT]:
    """Show the options of a function in its signature, as `help()`, `inspect.signature()` and notebooks read it.

    Args:
        options: The `TypedDict` of the options.
        defaults: Values of options that are not given; of all others None.
    """
    shown = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if name in options.__required_keys__ else defaults.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation),  # the text of one that is not evaluated
        )
        for name, annotation in sorted(options.__annotations__.items(), key=lambda item: item[0] != "model")
    ]

    def show(function: FunctionT) -> FunctionT:
        own = signature(function)
        parameters = [item for item in own.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*parameters, *shown])  # type: ignore[attr-defined]
        return function

    return show
