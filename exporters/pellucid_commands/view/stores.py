"""The stores that `pellucid view` shows as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.schema import APPLICATION_ID
from pellucid_exporters.stored.many import ManyReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pellucid_exporters.stored.reader import Reader

_MARK: Final = slice(68, 72)
"""Bytes of the header of a database that hold the id of its application."""


def reader_of(paths: Sequence[Path]) -> Reader:
    """Return the reader of stores, and of those in folders and their sub-folders.

    Raises:
        ConfigError: a folder has no store.
        StoreError: a file is no store that this version can use.
    """
    stores = list(dict.fromkeys(store for path in paths for store in _stores_of(path)))
    return StoreReader(stores[0]) if len(stores) == 1 else ManyReader([StoreReader(store) for store in stores])


def first_store(path: Path) -> Path:
    """Return a store, or the first one in a folder: that to which scores are written."""
    return next(_stores_of(path))


def _stores_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = sorted(file for file in path.rglob("*") if file.is_file() and _is_store(file))
    if not found:
        raise ConfigError(f"{path}: there is no store in this folder; write one with configure(..., local=True)")
    yield from found


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(_MARK.stop)[_MARK] == APPLICATION_ID.to_bytes(4, "big")
    except OSError:
        return False
