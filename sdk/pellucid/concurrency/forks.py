"""Reset of state in a forked child, which has none of its parent's threads and event loops.

Work of the parent's threads and loops never ends in the child: a lock stays locked, a fetch stays in flight. Objects
with such state register it here when they are created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")

_renewals: Final[WeakKeyDictionary[Any, Callable[[Any], object]]] = WeakKeyDictionary()


def in_child(owner: _T, renew: Callable[[_T], object]) -> None:
    """Call `renew(owner)` in each forked child, as long as `owner` is alive; one function per owner."""
    _renewals[owner] = renew


def reset_in_child(owner: object, /, **attributes: Callable[[], object]) -> None:
    """Reset attributes of `owner` in each forked child, each to the result of its factory."""
    in_child(owner, partial(_reset, attributes))


def _reset(attributes: Mapping[str, Callable[[], object]], owner: object) -> None:
    for name, factory in attributes.items():
        setattr(owner, name, factory())


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
