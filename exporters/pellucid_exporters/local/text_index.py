"""Index of the texts of runs: question, answer and error, by each three characters in a row.

It needs SQLite 3.34 with FTS5. Without them a store has no index. A writer that lacks them removes its triggers; the
index is valid as long as they are there, and no run is due.

Triggers only note the runs whose texts are to be added, and the writer adds them at the end of its transaction: FTS5
writes what it has to its tables before each statement that may fail halfway, which takes longer than the texts do.
"""

from __future__ import annotations

import sqlite3
from typing import Final

SHORTEST: Final = 3
"""Characters of the shortest text that is found by the index."""

TEXTS: Final = ("question", "answer", "error")
"""Columns of `runs` in the index."""

_OLDEST: Final = (3, 34, 0)
_NAMES: Final = ", ".join(TEXTS)


def _row(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in TEXTS)


def _has_any(row: str) -> str:
    return f"coalesce({_row(row)}) IS NOT NULL"


_REMOVE: Final = f"""INSERT INTO run_texts (run_texts, rowid, {_NAMES}) SELECT 'delete', old.key, {_row("old")}
    WHERE NOT EXISTS (SELECT 1 FROM texts_due WHERE key = old.key)"""
_CHANGES: Final = f"({_row('old')}) IS NOT ({_row('new')})"
_INDEX: Final = f"""CREATE VIRTUAL TABLE run_texts USING fts5 (
    {_NAMES}, content = 'runs', content_rowid = 'key', detail = 'none', tokenize = 'trigram')"""
_ADD: Final = f"INSERT INTO run_texts (rowid, {_NAMES}) SELECT key, {_NAMES} FROM runs"
_TRIGGERS: Final = {
    "texts_added": f"AFTER INSERT ON runs WHEN {_has_any('new')} BEGIN INSERT INTO texts_due VALUES (new.key); END",
    "texts_unset": f"BEFORE UPDATE OF {_NAMES} ON runs WHEN {_CHANGES} AND {_has_any('old')} BEGIN {_REMOVE}; END",
    "texts_set": f"""AFTER UPDATE OF {_NAMES} ON runs WHEN {_CHANGES} AND {_has_any("new")}
        BEGIN INSERT OR IGNORE INTO texts_due VALUES (new.key); END""",
    "texts_deleted": f"""BEFORE DELETE ON runs WHEN {_has_any("old")}
        BEGIN {_REMOVE}; DELETE FROM texts_due WHERE key = old.key; END""",
}

MIGRATION: Final = (
    # Runs whose texts are not yet in the index.
    "CREATE TABLE texts_due (key INTEGER PRIMARY KEY)",
)


def is_available(connection: sqlite3.Connection) -> bool:
    """Return whether this SQLite can have the index."""
    query = "SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'"
    return sqlite3.sqlite_version_info >= _OLDEST and bool(connection.execute(query).fetchone()[0])


def is_valid(connection: sqlite3.Connection) -> bool:
    """Return whether the store has an index of all runs that this SQLite can read."""
    return is_available(connection) and _is_kept(connection) and not _has_due(connection)


def _is_kept(connection: sqlite3.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'texts_added'"
    return bool(connection.execute(query).fetchone()[0])


def _has_due(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM texts_due LIMIT 1").fetchone() is not None


def create_index(connection: sqlite3.Connection) -> None:
    """Create the index of all runs, if this SQLite can have it."""
    if is_available(connection):
        connection.execute(_INDEX)
        connection.execute(f"{_ADD} WHERE coalesce({_NAMES}) IS NOT NULL")
        _create_triggers(connection)


def renew_index(connection: sqlite3.Connection) -> None:
    """Keep the index of a store whose triggers add the texts themselves in the present way."""
    if is_available(connection) and _is_kept(connection):
        _drop_triggers(connection)
        _create_triggers(connection)


def leave_index(connection: sqlite3.Connection) -> None:
    """Let a writer go on that cannot keep the index: no run is added to it any longer."""
    if not is_available(connection):
        _drop_triggers(connection)
        if _has_due(connection):
            connection.execute("DELETE FROM texts_due")


def add_due(connection: sqlite3.Connection) -> None:
    """Add the texts of runs that are due."""
    if _has_due(connection):
        connection.execute(f"{_ADD} WHERE key IN (SELECT key FROM texts_due)")
        connection.execute("DELETE FROM texts_due")


def _create_triggers(connection: sqlite3.Connection) -> None:
    for name, definition in _TRIGGERS.items():
        connection.execute(f"CREATE TRIGGER {name} {definition}")


def _drop_triggers(connection: sqlite3.Connection) -> None:
    for name in _TRIGGERS:
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")


def trigrams(text: str) -> str:
    """Return the query for rows that have each three characters in a row of a text."""
    parts = dict.fromkeys(text[place : place + SHORTEST] for place in range(len(text) - SHORTEST + 1))
    quoted = [part.replace('"', '""') for part in parts]
    return " AND ".join(f'"{part}"' for part in quoted)
