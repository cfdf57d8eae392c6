"""Statistics of a store, and its compaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pellucid_exporters.local.database import Database
from pellucid_exporters.local.reading import reading
from pellucid_exporters.local.retention import Retention, content_bytes
from pellucid_exporters.local.schema import UnusableStore

TABLES: Final = (
    *("runs", "spans", "starts", "bodies", "catalogs", "hub_minutes", "hub_requests", "events", "scores", "log_lines"),
)


def statistics(path: Path) -> dict[str, Any]:
    """Return the number of rows of each table, sizes in bytes, and the times of the oldest and newest run.

    Raises:
        StoreError: the file is missing, damaged, no store, or from a newer version.
    """
    with reading(path) as connection:
        found: dict[str, Any] = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES
        }
        found["bytes"] = content_bytes(connection)
        found["bytes_of_bodies"] = connection.execute("SELECT total(length(content)) FROM bodies").fetchone()[0]
        oldest, newest = connection.execute("SELECT min(start), max(start) FROM runs").fetchone()
        found["bytes_of_bodies"] = int(found["bytes_of_bodies"])
        found["oldest"], found["newest"] = _time(oldest), _time(newest)
    return found


def compact(path: Path, max_age: float | None, max_bytes: float | None) -> None:
    """Delete what is older, in seconds, or beyond a size; then give free space back to the file system.

    Raises:
        StoreError: it cannot be written to.
    """
    try:
        database = Database(path, lambda: None)
        retention = Retention(max_age or float(10**9), int(max_bytes or 2**63))
        more = True
        while more:
            with database.transaction() as connection:
                more = retention.sweep(connection)
        database.close()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("VACUUM")
    except (OSError, sqlite3.Error) as error:
        raise UnusableStore(f"the store {str(path)!r} cannot be compacted ({error}); try again later") from error


def _time(nanoseconds: int | None) -> str | None:
    return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ}" if nanoseconds is not None else None
