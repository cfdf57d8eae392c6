"""Map of limited size, for state in memory whose keys are chosen by users or hubs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from pellucid.concurrency.forks import reset_in_child

K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False, repr=False)
class BoundedMap(Generic[K, V]):
    """Map with a maximum number of entries. Safe to use from any thread, and in a forked child.

    Args:
        most: Maximum number of entries; the least recently used are evicted first.
        most_weight: Maximum sum of weights. The last entry stays, whatever its weight.
        by_use: Whether reading and replacing an entry counts as use; otherwise, the oldest entries are evicted first.
        is_spare: Whether a value is evicted before all others.
    """

    most: int
    _: KW_ONLY
    most_weight: int | None = None
    by_use: bool = True
    is_spare: Callable[[V], bool] | None = None

    def __post_init__(self) -> None:
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.RLock()  # a destructor that garbage collection runs here may re-enter
        reset_in_child(self, _lock=threading.RLock)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        with self._lock:
            if (entry := self._entries.get(key)) is None:
                return None
            if self.by_use:
                self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, weight: int = 0) -> V | None:
        """Set the value of a key and return the previous one."""
        evicted: list[tuple[V, int]] = []  # freed after the lock is released: destructors may re-enter
        with self._lock:
            previous = self._entries.get(key)
            self._entries[key] = value, weight
            if self.by_use:
                self._entries.move_to_end(key)
            self._weight += weight - (previous[1] if previous is not None else 0)
            while len(self._entries) > 1 and self._is_over():
                evicted.append(self._evict())
        return previous[0] if previous is not None else None

    def setdefault(self, key: K, value: V) -> V:
        """Return the value of a key; set it to `value` first if there is none."""
        with self._lock:
            if (current := self.get(key)) is not None:
                return current
            self.put(key, value)
            return value

    def pop(self, key: K) -> V | None:
        """Remove a key and return its value, or None."""
        with self._lock:
            if (entry := self._entries.pop(key, None)) is None:
                return None
            self._weight -= entry[1]
            return entry[0]

    def clear(self) -> None:
        """Remove all keys."""
        with self._lock:
            entries, self._entries, self._weight = self._entries, OrderedDict(), 0
        del entries  # freed after the lock is released, as in `put`

    def items(self) -> list[tuple[K, V]]:
        """Return all keys with their values, in the order of eviction."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

    def values(self) -> list[V]:
        """Return all values, in the order of eviction."""
        return [value for _, value in self.items()]

    def _is_over(self) -> bool:
        return len(self._entries) > self.most or (self.most_weight is not None and self._weight > self.most_weight)

    def _evict(self) -> tuple[V, int]:
        is_spare = self.is_spare
        spare = next((key for key, (value, _) in self._entries.items() if is_spare(value)), None) if is_spare else None
        entry = self._entries.pop(spare) if spare is not None else self._entries.popitem(last=False)[1]
        self._weight -= entry[1]
        return entry
