"""Items that count within a block."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT")

_LOCK: Final = threading.Lock()


class Within(AbstractContextManager[None], Generic[ItemT]):
    """Block within which a list has an item at its end; blocks may be nested, and those of several threads overlap.

    An item that was entered several times leaves from the end: the list then ends as it did before the inner block.

    It is no decorator, unlike generators with `contextmanager`: one of an async function would end before that runs.
    """

    def __init__(self, items: list[ItemT], item: ItemT) -> None:
        self._items = items
        self._item = item

    def __enter__(self) -> None:
        with _LOCK:
            self._items.append(self._item)

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            positions = (at for at, item in enumerate(reversed(self._items), start=1) if item is self._item)
            del self._items[-next(positions)]
