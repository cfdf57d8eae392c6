"""Work on catalogues that is kept, so that it is done once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from pellucid.concurrency.forks import reset_in_child

MOST: Final = 256
MOST_TOOLS: Final = 50_000
"""Tools in all that is remembered of one kind: with its index, a catalogue of 10,000 takes some 20 MB."""

_T = TypeVar("_T")


class Remembered(Generic[_T]):
    """What was used last, by key: at most so many things, and so many tools in them. Safe to use from any thread."""

    __slots__ = ("__weakref__", "_kept", "_lock", "_most_tools", "_tools")

    def __init__(self, most_tools: int = MOST_TOOLS) -> None:
        self._most_tools = most_tools
        self._kept: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._tools = 0
        reset_in_child(self, _lock=threading.Lock)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> _T | None:
        """Return what is remembered under a key."""
        with self._lock:
            if (found := self._kept.get(key)) is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: Hashable, value: _T, tools: int) -> None:
        """Remember something with so many tools; it stays at least until something else is remembered."""
        forgotten = []  # freed after the lock is: what it frees may lead here again
        with self._lock:
            if (previous := self._kept.pop(key, None)) is not None:
                self._tools -= previous[1]
            self._kept[key] = value, tools
            self._tools += tools
            while len(self._kept) > 1 and (len(self._kept) > MOST or self._tools > self._most_tools):
                _, oldest = self._kept.popitem(last=False)
                self._tools -= oldest[1]
                forgotten.append(oldest)
