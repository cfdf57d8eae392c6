"""Stores by database."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from pellucid.durable.store.store import RunStore
from pellucid.errors import ConfigError
from pellucid.text import excerpt


class SQLiteStore(RunStore):
    """A store in a SQLite file, for the processes of one machine; needs no server.

    ```python
    async with SQLiteStore("runs.db") as store: ...
    ```

    Args:
        path: The file, on a local disk. It is created if it is missing; its folder must exist.
        synchronous: `full` keeps each commit through a loss of power; `normal` may lose the last ones then, but not
            when only the process ends, and is several times as fast.
        busy_timeout: Seconds to wait for another process that writes.
        watch_interval: Seconds between two checks for commits of other processes, while a task waits for one.
        poll: Seconds between two checks of a waiting task: the expiry of a lease sends no notification.
        patience: Seconds for which a transaction is repeated while the file is locked.

    Raises:
        ConfigError: an option is invalid, or SQLite is older than 3.35.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 5.0,
        watch_interval: float = 0.01,
        poll: float = 1.0,
        patience: float = 10.0,
    ) -> None:
        from pellucid.durable.store.sqlite import SQLiteDatabase

        database = SQLiteDatabase(
            path, synchronous=synchronous, busy_timeout=busy_timeout, watch_interval=watch_interval, poll=poll
        )
        super().__init__(database, patience=patience)


class PostgresStore(RunStore):
    """A store in a PostgreSQL database, for any number of processes and machines. Needs the extra `postgres`.

    ```python
    async with PostgresStore("postgresql://user@host/database") as store: ...
    ```

    Args:
        conninfo: URL or connection string of libpq. Without options of libpq for it, a host that is cut off is noticed
            after 15 seconds. Connections must belong to one session each: a pooler in transaction mode cannot notify.
        schema: Schema of the tables; it is created if it is missing.
        connections: Maximum number of connections that write; half as many read, and one listens.
        statement_timeout: Seconds after which the server ends a statement, such as one that waits for a lock.
        poll: Seconds between two checks of a waiting task: the expiry of a lease sends no notification, and the
            listening connection may be lost.
        patience: Seconds for which a transaction is repeated while the server is not available.

    Raises:
        ConfigError: an option is invalid, or psycopg is not installed.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "pellucid",
        connections: int = 8,
        statement_timeout: float = 10.0,
        poll: float = 1.0,
        patience: float = 10.0,
    ) -> None:
        try:
            from pellucid.durable.store.postgres import PostgresDatabase
        except ImportError as error:
            raise ConfigError("PostgresStore needs psycopg: pip install 'pellucid[postgres]'") from error

        database = PostgresDatabase(
            conninfo, schema=schema, connections=connections, statement_timeout=statement_timeout, poll=poll
        )
        super().__init__(database, patience=patience)


def open_store(url: str, **options: Any) -> RunStore:
    """Return a store by the URL of its database; enter it with `async with`.

    Args:
        url: `sqlite:///runs.db` (relative), `sqlite:////var/lib/runs.db`, or `postgresql://user@host/database`.
        options: Options of `SQLiteStore` or `PostgresStore`.

    Raises:
        ConfigError: the URL or an option is invalid.
    """
    if not isinstance(url, str):
        raise ConfigError(f"open_store({excerpt(repr(url))}): must be a URL, such as 'sqlite:///runs.db'")
    scheme, _, rest = url.partition("://")
    stores: dict[str, Callable[..., RunStore]] = {
        "sqlite": SQLiteStore,
        "postgresql": PostgresStore,
        "postgres": PostgresStore,
    }
    if scheme not in stores:
        start = url.partition(":")[0]
        raise ConfigError(f"open_store: the URL starts with {start!r}; it must start with sqlite:/// or postgresql://")
    if scheme == "sqlite" and not rest.startswith("/"):
        raise ConfigError(f"{url!r} has a host; a SQLite file is sqlite:///path, or sqlite:////path if absolute")
    try:
        return stores[scheme](rest[1:] if scheme == "sqlite" else url, **options)
    except TypeError as error:
        raise ConfigError(f"open_store: {error}") from error
