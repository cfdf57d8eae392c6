"""Use of an old name, for `module_names.renamed`: warn, and convert the value. Imported then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from pellucid.instants import instant, instant_of, loop_time

_Conversion: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]

CONVERSIONS: Final[Mapping[tuple[str, str], _Conversion]] = {
    ("DiscoveryContext", "deadline"): (instant_of, loop_time),
    ("ToolContext", "deadline"): (instant_of, loop_time),
    ("ExternalCall", "deadline"): (instant, datetime.timestamp),
}
"""Functions from the old value to the new one and back, by class and old name; None stays None."""


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
