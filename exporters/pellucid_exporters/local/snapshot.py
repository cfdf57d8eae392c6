"""One state of a store, for many reads."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, TypeVar

from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.reading import reading

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")


class Snapshot(StoreReader):
    """Reader of one state of a store, over one connection; a context manager, for one thread.

    Writers go on meanwhile, and the write-ahead log grows until the end of the block.
    """

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self._connection: sqlite3.Connection | None = None
        super().__init__(path)

    def __enter__(self) -> Self:
        self._connection = self._stack.enter_context(reading(self._path))
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection = None
        self._stack.close()

    def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return work(self._connection) if self._connection is not None else super()._read(work)
