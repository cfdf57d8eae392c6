"""Index of the texts of runs: question, answer and error, by each three characters in a row.

It needs SQLite 3.34 with FTS5. Without them a store has no index. A writer that lacks them removes its triggers; the
index is valid as long as they are there.
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
_TRIGGERS: Final = ("texts_added", "texts_unset", "texts_set", "texts_deleted")


def _row(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in TEXTS)


def _has_any(row: str) -> str:
    return f"coalesce({_row(row)}) IS NOT NULL"


_ADD: Final = f"INSERT INTO run_texts (rowid, {_NAMES}) VALUES (new.key, {_row('new')})"
_REMOVE: Final = f"INSERT INTO run_texts (run_texts, rowid, {_NAMES}) VALUES ('delete', old.key, {_row('old')})"
_CHANGES: Final = f"({_row('old')}) IS NOT ({_row('new')})"
_STATEMENTS: Final = (
    f"""CREATE VIRTUAL TABLE run_texts USING fts5 (
        {_NAMES}, content = 'runs', content_rowid = 'key', detail = 'none', tokenize = 'trigram')""",
    f"""INSERT INTO run_texts (rowid, {_NAMES})
        SELECT key, {_NAMES} FROM runs WHERE coalesce({_NAMES}) IS NOT NULL""",
    f"CREATE TRIGGER texts_added AFTER INSERT ON runs WHEN {_has_any('new')} BEGIN {_ADD}; END",
    f"""CREATE TRIGGER texts_unset BEFORE UPDATE OF {_NAMES} ON runs WHEN {_CHANGES} AND {_has_any("old")}
        BEGIN {_REMOVE}; END""",
    f"""CREATE TRIGGER texts_set AFTER UPDATE OF {_NAMES} ON runs WHEN {_CHANGES} AND {_has_any("new")}
        BEGIN {_ADD}; END""",
    f"CREATE TRIGGER texts_deleted BEFORE DELETE ON runs WHEN {_has_any('old')} BEGIN {_REMOVE}; END",
)


def is_available(connection: sqlite3.Connection) -> bool:
    """Return whether this SQLite can have the index."""
    query = "SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'"
    return sqlite3.sqlite_version_info >= _OLDEST and bool(connection.execute(query).fetchone()[0])


def is_valid(connection: sqlite3.Connection) -> bool:
    """Return whether the store has an index of all runs that this SQLite can read."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'texts_added'"
    return is_available(connection) and bool(connection.execute(query).fetchone()[0])


def create_index(connection: sqlite3.Connection) -> None:
    """Create the index of all runs, if this SQLite can have it."""
    if is_available(connection):
        for statement in _STATEMENTS:
            connection.execute(statement)


def leave_index(connection: sqlite3.Connection) -> None:
    """Let a writer go on that cannot keep the index: no run is added to it any longer."""
    if not is_available(connection):
        for name in _TRIGGERS:
            connection.execute(f"DROP TRIGGER IF EXISTS {name}")


def trigrams(text: str) -> str:
    """Return the query for rows that have each three characters in a row of a text."""
    parts = dict.fromkeys(text[place : place + SHORTEST] for place in range(len(text) - SHORTEST + 1))
    quoted = [part.replace('"', '""') for part in parts]
    return " AND ".join(f'"{part}"' for part in quoted)
