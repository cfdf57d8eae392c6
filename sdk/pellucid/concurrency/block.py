"""Items that count within a block."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Within(AbstractContextManager[None], Generic[ItemT]):
    """Block within which a list has an item at its end; blocks may be nested, and those of several threads overlap.

    It is no decorator, unlike generators with `contextmanager`: one of an async function would end before that runs.
    """

    def __init__(self, items: list[ItemT], item: ItemT) -> None:
        self._items = items
        self._item = item

    def __enter__(self) -> None:
        self._items.append(self._item)

    def __exit__(self, *_: object) -> None:
        self._items.remove(self._item)
