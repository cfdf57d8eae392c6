"""Listeners of agents to what comes after their runs, such as scores."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.telemetry.listeners import Listeners

_lock: Final = threading.Lock()
_known: Final[WeakKeyDictionary[Listeners, str]] = WeakKeyDictionary()


def keep(listeners: Listeners, agent: str) -> None:
    """Note the listeners of an agent, as long as it exists."""
    with _lock:
        _known[listeners] = agent


def late_listeners(agent: str) -> Sequence[Listeners]:
    """Return the listeners of the agents of this process with a name."""
    with _lock:
        return [listeners for listeners, name in _known.items() if name == agent] if agent else ()
