"""SQLite: one file, one writer at a time, any number of readers; for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final, Literal, TypeVar, cast

from pellucid.durable.store.database import FULL_DISK, UNAVAILABLE, Transaction, TransactionLost
from pellucid.durable.store.statements import OTHER_DATABASE, schema, statements
from pellucid.durable.store.values import Row
from pellucid.durable.store.wakeups import Wakeups
from pellucid.errors import ConfigError

T = TypeVar("T")

_OLDEST: Final = (3, 35)
"""The first version with `RETURNING`."""

_NOT_A_STORE: Final = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
_TELEMETRY_STORE: Final = 0x50454C4C
"""`application_id` of the local store of `pellucid_exporters`."""
_FORBIDDEN: Final = ": this user may not write it; change the permissions of the file and its folder"
_TRANSIENT: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class SQLiteDatabase:
    """Connections to a SQLite file in WAL mode.

    Args:
        path: The file.
        synchronous: `full` survives a loss of power; after `normal` the last transactions may be lost then, though not
            when only the process dies.
        busy_timeout: Seconds to wait for another process that writes.
        watch_interval: Seconds between two looks for commits of other processes, while a task waits.
        poll: Seconds after which a waiter looks for itself.
    """

    writers = 1
    readers = 4
    can_send = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 5.0,
        watch_interval: float = 0.01,
        poll: float = 1.0,
    ) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old for a store; it needs 3.35")
        if str(path) in {"", ":memory:"}:
            raise ConfigError("a store needs a file; SQLite's databases in memory belong to one connection")
        if synchronous not in {"full", "normal"}:
            raise ConfigError(f"SQLiteStore: synchronous={synchronous!r} is not 'full' or 'normal'")
        self.name = str(path)
        self.poll = poll
        self._path = Path(path)
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._watch_interval = watch_interval
        self._statements = statements("sqlite")
        self._writing = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._wakeups: Wakeups | None = None
        self._watcher: threading.Thread | None = None
        self._is_closed = threading.Event()

    def schema(self) -> tuple[int | str, int]:
        """Return version and revision of the schema; of a file that does not exist, without making it."""
        if not self._path.exists():
            return 0, 0
        with (
            self._translated_errors(),
            closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as connection,
        ):
            return _version(connection)

    def open(self) -> None:
        """Create the schema, or bring it to the current version."""
        with self._writing, self._translated_errors():
            if self._writer is None:
                self._writer = self._connect()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                for statement in schema(self.name, *_version(self._writer)):
                    self._writer.execute(statement)
                self._writer.execute("COMMIT")
            except BaseException:
                _roll_back(self._writer)
                raise

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        is_repeat: bool = False,
        is_single: bool = False,
        then: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a function in a transaction that writes, and commit; then read. `is_single` saves nothing here."""
        is_committed = False
        with self._writing, self._translated_errors(lambda: is_committed):
            if self._writer is None:
                self._writer = self._connect()
            connection = self._writer
            transaction = Transaction(_execute(connection), self._statements, is_repeat=is_repeat)
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(transaction)
                connection.execute("COMMIT")  # fails only before anything is committed
            except BaseException:
                _roll_back(connection)
                raise
            is_committed = True
            if then is not None:
                then(transaction, result)
        if self._wakeups is not None:
            for key in transaction.notifications:
                self._wakeups.notify(key)
        return result

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that only reads."""
        with self._translated_errors():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                connection.execute("BEGIN")
                try:
                    return work(Transaction(_execute(connection), self._statements))
                finally:
                    _roll_back(connection)
            finally:
                self._idle.append(connection)

    def watch(self, wakeups: Wakeups) -> None:
        """Start to wake all waiters when another connection, of any process, has committed."""
        self._wakeups = wakeups
        self._is_closed.clear()
        wakeups.open()
        self._watcher = threading.Thread(target=self._watch, args=(wakeups,), name="pellucid", daemon=True)
        self._watcher.start()

    def _watch(self, wakeups: Wakeups) -> None:
        connection: sqlite3.Connection | None = None
        version: int | None = None
        while not self._is_closed.wait(self._watch_interval):
            wakeups.rest()
            try:
                connection = connection or self._connect()
                current = connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                continue  # waiters poll
            if current != version:
                version = current
                wakeups.notify_all()
        if connection is not None:
            connection.close()

    def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Do nothing: a file has no notifications."""

    def close(self) -> None:
        """End the watching thread and close all connections."""
        self._is_closed.set()
        if self._wakeups is not None and self._watcher is not None:
            self._wakeups.close()
            self._watcher.join()
        with self._writing:
            for connection in (*self._idle, self._writer):
                if connection is not None:
                    connection.close()
            self._idle.clear()
            self._writer = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _translated_errors(self, is_committed: Callable[[], bool] = lambda: False) -> Iterator[None]:
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _NOT_A_STORE:
                problem = "is not a SQLite database, or a damaged one; name another file"
                raise ConfigError(f"{self.name!r} {problem}") from error
            raise TransactionLost(
                is_transient=code in _TRANSIENT, is_committed=is_committed(), reason=_reason(code, self._path)
            ) from error


def _reason(code: int, path: Path) -> str:
    """Return the reason of a `StoreUnavailable`, with the cause and the remedy if they are known."""
    if code == sqlite3.SQLITE_CANTOPEN:
        return f"cannot be opened{_obstacle(path)}"
    if code == sqlite3.SQLITE_READONLY:
        return f"{UNAVAILABLE}{_FORBIDDEN}"
    return FULL_DISK if code == sqlite3.SQLITE_FULL else UNAVAILABLE


def _obstacle(path: Path) -> str:
    """Return why a file cannot be opened; empty if it is not known."""
    folder = path.parent
    try:
        if not S_ISDIR(folder.stat().st_mode):
            return f": {str(folder)!r} is not a folder; give another path"
    except PermissionError:
        return _FORBIDDEN
    except OSError:
        return f": the folder {str(folder)!r} does not exist; create it"
    if path.is_dir():
        return ": it is a folder; give the path of a file in it"
    is_allowed = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.R_OK | os.W_OK))
    return "" if is_allowed else _FORBIDDEN


def _version(connection: sqlite3.Connection) -> tuple[int | str, int]:
    """Return version and revision of the schema; version 0 for an empty database."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return 0, 0
    if connection.execute("PRAGMA application_id").fetchone()[0] == _TELEMETRY_STORE:
        return "the local store of telemetry, which `pellucid view` and StoreReader read", 0
    if "schema_version" not in tables:
        return OTHER_DATABASE, 0
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    if row is None:
        return OTHER_DATABASE, 0
    has_revision = "schema_revision" in tables
    revision = connection.execute("SELECT revision FROM schema_revision").fetchone() if has_revision else None
    return int(row[0]), 0 if revision is None else int(revision[0])


def _execute(connection: sqlite3.Connection) -> Callable[[str, Mapping[str, Any]], Sequence[Row]]:
    def execute(statement: str, parameters: Mapping[str, Any]) -> Sequence[Row]:
        return cast("list[Row]", connection.execute(statement, parameters).fetchall())

    return execute


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
