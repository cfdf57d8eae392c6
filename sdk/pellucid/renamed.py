"""What `module_names` does when an old or unknown name is used: warn, convert, explain. Imported then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, signature
from typing import Any, Final, TypeAlias

from pellucid.instants import instant, instant_of, loop_time
from pellucid.text import close_to, excerpt

_Conversion: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]

CONVERSIONS: Final[Mapping[tuple[str, str], _Conversion]] = {
    ("DiscoveryContext", "deadline"): (instant_of, loop_time),
    ("ToolContext", "deadline"): (instant_of, loop_time),
    ("ExternalCall", "deadline"): (instant, datetime.timestamp),
}
"""Functions from the old value to the new one and back, by class and old name; None stays None."""


MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "Limits": {
        **dict.fromkeys(("max_turns", "max_steps", "max_rounds", "recursion_limit", "iterations"), "max_iterations"),
        **dict.fromkeys(("cost", "usd", "max_usd", "max_cost_usd", "max_budget_usd", "budget"), "max_cost"),
        **dict.fromkeys(("tokens", "total_tokens_limit", "token_limit"), "max_tokens"),
        **dict.fromkeys(("model_calls", "max_requests", "request_limit", "max_llm_calls"), "max_model_calls"),
        **dict.fromkeys(("tool_calls", "tool_calls_limit"), "max_tool_calls"),
    },
    "Budget": {
        **dict.fromkeys(("usd", "dollars", "amount", "limit", "max_cost", "max_usd"), "cost"),
        **dict.fromkeys(("max_tokens", "token_limit"), "tokens"),
        **dict.fromkeys(("calls", "requests", "max_model_calls"), "model_calls"),
        **dict.fromkeys(("period", "every", "interval"), "per"),
    },
    "Context": dict.fromkeys(("tokens", "max_tokens", "limit", "size", "context_window"), "window"),
}
"""Options that other names mean, by class."""


def explain(cls: type[Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Say which option was meant by arguments that a class does not take; return if it takes them.

    Raises:
        TypeError: it does not.
    """
    known = list(signature(cls).parameters.values())
    named = [item.name for item in known if item.kind is Parameter.KEYWORD_ONLY]
    names = {item.name for item in known}
    for name, value in options.items():
        if name not in names:
            meant = MEANT[cls.__name__].get(name)
            remedy = f"use {meant}=" if meant else close_to(name, names) or f"options are {', '.join(named)}"
            raise TypeError(f"{cls.__name__}({name}={excerpt(repr(value))}): there is no option {name!r}; {remedy}")
    if extra := args[len(known) - len(named) :]:
        value = excerpt(repr(extra[0]))
        raise TypeError(f"{cls.__name__}({value}): options are given by name; use {named[0]}={value}")


def translated(target: Any, names: Mapping[str, str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with new names; an old one wins, because `dataclasses.replace` passes both."""
    found = {**arguments}
    for old in names.keys() & arguments.keys():
        _warn(f"{target.__qualname__}({old}=)", f"{names[old]}=")
        found[names[old]] = _converted(target.__name__, old, found.pop(old), 0)
    return found


def read(owner: object, old: str, new: str) -> Any:
    """Return the value of an attribute for its old name."""
    name = next(cls.__name__ for cls in type(owner).__mro__ if old in vars(cls))
    _warn(f"{name}.{old}", new)
    return _converted(name, old, getattr(owner, new), 1)


def _converted(owner: str, old: str, value: Any, direction: int) -> Any:
    conversion = CONVERSIONS.get((owner, old))
    return value if conversion is None or value is None else conversion[direction](value)


def _warn(old: str, new: str) -> None:
    """Warn at the line that uses an old name: below this function, its caller and that of `module_names`."""
    warnings.warn(f"{old} is deprecated; use `{new}`", DeprecationWarning, stacklevel=4)
