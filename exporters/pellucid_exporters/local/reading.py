"""Connection of a reader to the store."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pellucid_exporters.local.schema import VERSION, UnusableStore, migrate, version_of

_WAIT: Final = 5.0
"""Seconds to wait for a writer that migrates the store."""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that sees one state of the store. A store of an older version is migrated first.

    Raises:
        StoreError: the file is missing, damaged, no store, from a newer version, or from an older one and read-only.
    """
    if not path.is_file():
        raise UnusableStore(
            f"there is no store {str(path)!r}; write one with configure(..., local=True), or name another"
        )
    try:
        connection = _opened(path)
        if version_of(connection, path) < VERSION:
            connection.close()
            _upgrade(path)
            connection = _opened(path)
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error
    with closing(connection):
        try:
            yield connection
        except (sqlite3.Error, zlib.error, ValueError) as error:  # what is compressed or JSON may be damaged, too
            raise _unreadable(path, error) from error


def _opened(path: Path) -> sqlite3.Connection:
    """Return a read-only connection in a transaction."""
    uri = f"file:{quote(str(path))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        _refuse_empty(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_empty(connection: sqlite3.Connection, path: Path) -> None:
    if version_of(connection, path) == 0:
        raise UnusableStore(f"{str(path)!r} is empty, not a telemetry store; name another file")


def _upgrade(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT, isolation_level=None)) as connection:
            migrate(connection, path)
    except sqlite3.Error as error:
        raise UnusableStore(
            f"the store {str(path)!r} has an older schema and cannot be migrated ({error}); allow this process to "
            f"write to it once, or copy it"
        ) from error


def _unreadable(path: Path, error: Exception) -> UnusableStore:
    return UnusableStore(f"the store {str(path)!r} cannot be read ({error}); move it away if it is damaged")
