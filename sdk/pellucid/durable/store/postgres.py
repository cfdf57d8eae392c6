"""PostgreSQL: any number of processes and machines. Needs the extra `postgres`."""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.rows import DictRow, dict_row

from pellucid.durable.store.database import FULL_DISK, UNAVAILABLE, Channel, Transaction, TransactionLost
from pellucid.durable.store.statements import OTHER_DATABASE, schema, statements
from pellucid.durable.store.values import Row
from pellucid.durable.store.wakeups import Wakeups
from pellucid.errors import ConfigError

T = TypeVar("T")
_Connection: TypeAlias = psycopg.Connection[DictRow]
_Cursor: TypeAlias = psycopg.Cursor[DictRow]

_PARAMETER: Final = re.compile(r"(?<!:):(\w+)")
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_DEFAULTS: Final[Mapping[str, Any]] = {
    "application_name": "pellucid",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Options of libpq: without them, a host that is cut off is noticed after minutes."""

MAX_PAYLOAD: Final = 7_999
"""Bytes of a notification."""

_RECONNECT: Final = 0.5
"""Seconds between two attempts to listen again."""


class PostgresDatabase:
    """Connections to a PostgreSQL server.

    Args:
        conninfo: URL or connection string of libpq.
        schema: Schema of the store's tables; it is created if it is missing.
        connections: Transactions at the same time that write; half as many may read besides.
        statement_timeout: Seconds after which the server ends a statement, such as one that waits for a lock.
        poll: Seconds after which a waiter looks for itself.
    """

    can_send = True

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "pellucid",
        connections: int = 8,
        statement_timeout: float = 10.0,
        poll: float = 1.0,
    ) -> None:
        if not _IDENTIFIER.fullmatch(schema):
            raise ConfigError(f"PostgresStore: schema={schema!r} must be lower-case letters, digits and underscores")
        if connections < 1:
            raise ConfigError(f"PostgresStore: connections={connections} must be at least 1")
        try:
            parts = psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError:
            raise ConfigError("PostgresStore: the connection string is invalid") from None  # it may have a password
        port = f":{parts['port']}" if "port" in parts else ""
        self.name = f"{parts.get('host', 'localhost')}{port}/{parts.get('dbname', '')}"
        self.poll = poll
        self.writers = connections
        self.readers = max(connections // 2, 1)
        self._conninfo = psycopg.conninfo.make_conninfo(conninfo, **{**_DEFAULTS, **parts})
        self._schema = schema
        self._timeout = int(statement_timeout * 1000)
        self._statements = psycopg_statements()
        self._idle: list[_Cursor] = []
        self._stop: socket.socket | None = None
        self._watcher: threading.Thread | None = None

    def schema(self) -> tuple[int | str, int]:
        """Return version and revision of the schema."""
        try:
            with self._transaction() as (cursor, _):
                return _version(cursor)
        finally:
            self._close_idle()

    def open(self) -> None:
        """Create the schema, or bring it to the current version."""
        with self._transaction() as (cursor, _):
            # Two processes that create the same schema at once would fail, also with IF NOT EXISTS.
            # Indexes of large tables take a while, and another process may be making them.
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"pellucid {self._schema}"])
            version, revision = _version(cursor)
            try:
                if version == 0:
                    cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
                for statement in schema(self.name, version, revision):
                    cursor.execute(statement)
                if version == 0:
                    cursor.execute(self._statements["tune_schema"])
            except psycopg.errors.InsufficientPrivilege as error:
                raise ConfigError(
                    f"the user of {self.name!r} may not create or change schema {self._schema!r}; "
                    f"let another one open the store"
                ) from error
            except psycopg.errors.DuplicateTable as error:
                raise ConfigError(
                    f"schema {self._schema!r} of {self.name!r} has tables of something else; choose another schema="
                ) from error

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        is_repeat: bool = False,
        is_single: bool = False,
        then: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a function in a transaction, commit, and send its notifications; then read."""
        after: list[Callable[[], None]] = []
        with self._transaction("" if is_single else "BEGIN", after=after) as (cursor, notifications):
            transaction = Transaction(_execute(cursor), self._statements, is_repeat=is_repeat)
            result = work(transaction)
            notifications.extend(transaction.notifications)
            if then is not None:
                after.append(partial(then, transaction, result))
        return result

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that only reads, on one snapshot."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as (cursor, _):
            return work(Transaction(_execute(cursor), self._statements))

    def watch(self, wakeups: Wakeups) -> None:
        """Start to listen on a connection of its own."""
        self._stop, stopped = socket.socketpair()
        self._watcher = threading.Thread(target=self._watch, args=(wakeups, stopped), name="pellucid", daemon=True)
        self._watcher.start()

    def _watch(self, wakeups: Wakeups, stopped: socket.socket) -> None:
        with stopped, selectors.DefaultSelector() as selector:
            selector.register(stopped, selectors.EVENT_READ)
            while True:
                with suppress(psycopg.Error):
                    self._listen(wakeups, selector)
                    return
                if selector.select(_RECONNECT):
                    return

    def _listen(self, wakeups: Wakeups, selector: selectors.BaseSelector) -> None:
        """Pass notifications on until the store is closed; raise if the connection is lost."""
        with self._connect() as connection:
            connection.execute(f"LISTEN {self._schema}")
            number = connection.fileno()
            selector.register(number, selectors.EVENT_READ)
            try:
                wakeups.is_listening = True
                wakeups.notify_all()  # commits without a listener are noticed now
                while {key.fileobj for key, _ in selector.select()} == {number}:
                    for notification in connection.notifies(timeout=0):
                        _pass_on(wakeups, notification.payload)
            finally:
                wakeups.is_listening = False
                selector.unregister(number)

    def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send notifications, in one message and one transaction."""
        cursor: _Cursor | None = None
        try:
            cursor = self._idle.pop() if self._idle else self._connect().cursor()
            _command(cursor, "; ".join(self._notify(*message) for message in messages))
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            if cursor is not None:
                cursor.connection.close()
            raise TransactionLost from error
        self._idle.append(cursor)

    def close(self) -> None:
        """End the listening thread and close all connections."""
        if self._stop is not None and self._watcher is not None:
            self._stop.close()
            self._watcher.join()
        self._close_idle()

    def _connect(self) -> _Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True, row_factory=dict_row)
        connection.execute(
            "SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false)",
            [self._schema, str(self._timeout), str(self._timeout)],
        )
        return connection

    @contextmanager
    def _transaction(
        self, begin: str = "BEGIN", after: Sequence[Callable[[], None]] = ()
    ) -> Iterator[tuple[_Cursor, list[tuple[Channel, str]]]]:
        """Begin a transaction; commit at the end of the block and send the notifications in the list, or roll back.

        What the block appends to `after` uses the connection after the commit. With an empty `begin`, each statement
        is committed by itself.
        """
        cursor: _Cursor | None = None
        notifications: list[tuple[Channel, str]] = []
        is_committing = is_committed = False
        try:
            cursor = self._idle.pop() if self._idle else self._connect().cursor()
            if begin:
                _command(cursor, begin)
            is_committing = not begin
            yield cursor, notifications
            is_committing, is_committed = True, not begin
            # One message, which the server works off also if this process has died meanwhile. Within the transaction,
            # NOTIFY would let only one commit of the whole database be written to disk at a time.
            commit = ["COMMIT"] if begin else []
            if commands := [*commit, *(self._notify(*notification) for notification in notifications)]:
                _command(cursor, "; ".join(commands))
            is_committed = True
            for read in after:
                read()
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            if cursor is not None:
                cursor.connection.close()
            self._close_idle()
            # The server has answered that its disk is full: it has rolled back, and repeating does not help.
            is_full = isinstance(error, psycopg.errors.DiskFull)
            raise TransactionLost(
                is_outcome_unknown=is_committing and not is_full,
                is_transient=not is_full,
                is_committed=is_committed,
                reason=FULL_DISK if is_full else UNAVAILABLE,
            ) from error
        except BaseException:
            if cursor is not None:
                self._roll_back(cursor)
            raise
        else:
            self._idle.append(cursor)

    def _notify(self, channel: str, key: str) -> str:
        payload = f"{channel} {key}"
        if len(payload.encode()) > MAX_PAYLOAD:
            payload = ""  # any run may be meant
        literal = payload.replace("'", "''")
        return f"NOTIFY {self._schema}, '{literal}'"

    def _roll_back(self, cursor: _Cursor) -> None:
        try:
            cursor.execute("ROLLBACK")
        except psycopg.Error:
            cursor.connection.close()
        else:
            self._idle.append(cursor)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()


def psycopg_statements() -> dict[str, str]:
    """Return the statements by name, with parameters as psycopg has them."""
    texts = statements("postgres").items()
    return {name: _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")) for name, text in texts}


def _version(cursor: _Cursor) -> tuple[int | str, int]:
    """Return version and revision of the schema; version 0 if it has no tables of a store."""
    names = "SELECT to_regclass('schema_version') AS version, to_regclass('schema_revision') AS revision"
    tables = cursor.execute(names).fetchone()
    if tables is None or tables["version"] is None:
        return 0, 0
    row = cursor.execute("SELECT version FROM schema_version").fetchone()
    if row is None:
        return OTHER_DATABASE, 0
    has_revision = tables["revision"] is not None
    revision = cursor.execute("SELECT revision FROM schema_revision").fetchone() if has_revision else None
    return int(row["version"]), 0 if revision is None else int(revision["revision"])


def _command(cursor: _Cursor, text: str) -> None:
    """Run commands that return nothing, in one message; takes half of the processor time of `Cursor.execute`.

    Raises:
        psycopg.OperationalError: the connection is lost.
        psycopg.Error: the server refused a command.
    """
    connection = cursor.connection.pgconn
    result = connection.exec_(text.encode())
    if result.status == ExecStatus.COMMAND_OK:
        return
    if result.error_field(DiagnosticField.SQLSTATE) is None:  # not from the server
        raise psycopg.OperationalError(result.get_error_message())
    raise psycopg.errors.error_from_result(result)


def _pass_on(wakeups: Wakeups, payload: str) -> None:
    channel, _, key = payload.partition(" ")
    if (receive := wakeups.receivers.get(channel)) is not None:
        receive(key)
    elif payload:
        wakeups.notify((channel, key))
    else:
        wakeups.notify_all()


def _execute(cursor: _Cursor) -> Callable[[str, Mapping[str, Any]], Sequence[Row]]:
    def execute(statement: str, parameters: Mapping[str, Any]) -> Sequence[Row]:
        try:
            cursor.execute(statement, parameters)
        except psycopg.DataError as error:
            raise ValueError("PostgreSQL cannot store this text or number") from error
        result = cursor.pgresult  # `cursor.description` would describe each column
        return cursor.fetchall() if result is not None and result.nfields else []

    return execute
