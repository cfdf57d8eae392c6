"""Values that belong to one event loop, such as connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from anyio.lowlevel import current_token

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import has_ended

V = TypeVar("V")


class PerLoop(Generic[V]):
    """One value per event loop. Safe to use from any thread, and in a forked child.

    Values of loops that have ended are released when a new loop gets its value. A connection refers to its loop, so
    weak references to loops would keep both alive.

    Args:
        factory: Returns a value for the current event loop.
    """

    def __init__(self, factory: Callable[[], V]) -> None:
        self._factory = factory
        self._values: dict[Any, V] = {}
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock, _values=dict)

    def get(self) -> V:
        """Return the value of the current event loop; create it first if there is none."""
        loop = current_token().native_token
        with self._lock:
            if loop not in self._values:
                self._values = {other: value for other, value in self._values.items() if not has_ended(other)}
                self._values[loop] = self._factory()
            return self._values[loop]

    def values(self) -> list[V]:
        """Return the values of all event loops."""
        with self._lock:
            return list(self._values.values())

    def pop(self) -> V | None:
        """Remove the value of the current event loop and return it, or None."""
        with self._lock:
            return self._values.pop(current_token().native_token, None)
