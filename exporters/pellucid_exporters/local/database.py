"""Connection of a writer to the store: private files, one transaction at a time, and forks.

SQLite keeps locks of a process in memory that a forked child would take along, so the connection is closed before a
fork and opened again when it is needed. POSIX locks of a file are lost when any descriptor of it is closed, so an
existing store is never opened in another way.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pellucid_exporters.local.schema import migrate
from pellucid_exporters.local.text_index import leave_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
_IGNORED: Final = ".pellucid"

WAIT: Final = 2.0
"""Seconds to wait for another writer; then the transaction is tried again later."""

_FORK_WAIT: Final = 5.0
"""Seconds that a fork waits at most for a transaction."""

_LARGEST_LOG: Final = 16 * 1024 * 1024
"""Bytes to which the write-ahead log is cut after a checkpoint."""

_FIRST_NAP, _LONGEST_NAP = 0.001, 0.02


class Database:
    """A store that is written to.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, on_open: Callable[[], None]) -> None:
        """Create a closed one; `on_open` is called after each opening, when nothing known of the file holds."""
        self.path = path
        self._on_open = on_open
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._is_held = False
        _databases.add(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that writes; roll back if the block raises.

        Raises:
            OSError: the file cannot be created.
            StoreError: it is another database, or from a newer version.
            sqlite3.Error: it cannot be written to.
        """
        with self._lock:
            connection = self._opened()
            try:
                _begin(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                self._close()  # what is known of the store may be part of what was rolled back
                raise

    def close(self) -> None:
        """Close the connection; the next transaction opens it again."""
        with self._lock:
            self._close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != _identity(self.path):  # moved, removed or replaced
            self._close()
        if self._connection is None:
            connection = self._connection = _open(self.path)
            self._file = _identity(self.path)
            try:
                migrate(connection, self.path)
                leave_index(connection)
            except BaseException:
                self._close()
                raise
            self._on_open()
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def before_fork(self) -> None:
        """Close the connection, and let nobody open it until the fork is done."""
        self._is_held = self._lock.acquire(timeout=_FORK_WAIT)
        if self._is_held:
            self._close()

    def after_fork(self) -> None:
        """Allow transactions again."""
        if self._is_held:
            self._is_held = False
            self._lock.release()


def create(path: Path) -> None:
    """Create the file of a store and its folder for their owner only, unless they exist; git ignores `.pellucid`.

    A `.gitignore` that is there is left alone, and one that was removed is not written again.

    Raises:
        OSError: that is impossible.
    """
    folder = path.parent
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
        if folder.name == _IGNORED:
            with suppress(FileExistsError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
                file.write("*\n")


def _open(path: Path) -> sqlite3.Connection:
    create(path)
    connection = sqlite3.connect(
        path, timeout=WAIT, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    try:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            connection.execute("PRAGMA page_size = 8192")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_LOG}")
        connection.execute("PRAGMA cache_size = -16384")
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes, as soon as no other process has one.

    SQLite's own waiting sleeps up to 0.1 s between two attempts, and starves one of several busy writers.
    """
    deadline, nap = time.monotonic() + WAIT, _FIRST_NAP
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(nap)
                nap = min(_LONGEST_NAP, 2 * nap)
            else:
                return
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(WAIT * 1000)}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


_databases: Final[WeakSet[Database]] = WeakSet()


def _before_fork() -> None:
    for database in list(_databases):
        database.before_fork()


def _after_fork() -> None:
    for database in list(_databases):
        database.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
