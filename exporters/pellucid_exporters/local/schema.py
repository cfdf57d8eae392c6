"""Schema of the store, and its migrations.

`PRAGMA user_version` is the number of migrations that were applied, `PRAGMA application_id` marks the file as a store.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from pellucid.errors import ConfigError, StoreError
from pellucid_exporters.local import score_schema, text_index
from pellucid_exporters.stored.log_lines import WARNING
from pellucid_exporters.stored.rows import AGENT, ALL, EXPERIMENTS, KINDS

LARGEST: Final = 2**63 - 1
"""Largest integer of SQLite."""

APPLICATION_ID: Final = 0x50454C4C
"""`PELL` in ASCII."""

HOUR: Final = 3600 * 10**9
"""Nanoseconds."""


def _is_of(start: str) -> str:
    return f"ifnull(substr(runs.conversation, 1, {len(start)}), '') = '{start}'"


IS_OF_KIND: Final = {
    ALL: "TRUE",
    AGENT: " AND ".join(f"NOT {_is_of(start)}" for start in KINDS.values()),
    **{
        kind: f"runs.conversation >= '{start}' AND runs.conversation < '{start}\U0010ffff'"
        for kind, start in KINDS.items()
    },
}
"""Conditions on runs by what `kind_of` returns."""

MEASURED: Final = f"(runs.replay_of IS NULL AND NOT {_is_of(EXPERIMENTS)})"
"""Condition that `RunRow.is_measured` states; true of no run."""


def _counted(row: str, number: int) -> str:
    """Return the statement of a trigger that counts a run in its hour."""
    return (
        f"INSERT INTO run_hours VALUES "
        f"({row}.start / {HOUR}, ifnull({row}.agent, ''), ifnull({row}.outcome, ''), {number}) "
        f"ON CONFLICT DO UPDATE SET runs = runs + {number}"
    )


MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counters VALUES ('changes', 0), ('retained_at', 0)",
        # `ended` is set by an orderly end; `host`, `pid`, `started` and `heartbeat` show that of other processes.
        """CREATE TABLE processes (
            id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, service TEXT NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, started INTEGER, heartbeat INTEGER NOT NULL, ended INTEGER)""",
        # Run 0 has no row: its spans belong to no run.
        """CREATE TABLE runs (
            key INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, trace_id BLOB NOT NULL,
            parent_run_id TEXT, agent TEXT, process INTEGER NOT NULL, start INTEGER NOT NULL, last INTEGER NOT NULL,
            ended INTEGER, outcome TEXT, error_type TEXT, error TEXT, iterations INTEGER NOT NULL,
            spans INTEGER NOT NULL, input_tokens INTEGER, output_tokens INTEGER, cost REAL)""",
        "CREATE INDEX runs_by_start ON runs (start)",
        "CREATE INDEX runs_by_trace ON runs (trace_id)",
        # Models, tools and hubs of a run.
        """CREATE TABLE parts (run INTEGER, kind TEXT, name TEXT, PRIMARY KEY (run, kind, name)) WITHOUT ROWID""",
        # What many spans have in common: name, kind, scope, status, names of attributes, values that are labels.
        "CREATE TABLE shapes (id INTEGER PRIMARY KEY, definition TEXT NOT NULL UNIQUE)",
        # `trace_id` is NULL if it is that of the run.
        """CREATE TABLE spans (
            run INTEGER, start INTEGER, span_id BLOB, parent_span_id BLOB, trace_id BLOB, shape INTEGER NOT NULL,
            iteration INTEGER, duration INTEGER NOT NULL, "values" BLOB NOT NULL, digests BLOB, extra BLOB,
            PRIMARY KEY (run, start, span_id)) WITHOUT ROWID""",
        # Boundaries in flight, and those whose process ended first.
        """CREATE TABLE starts (
            run INTEGER NOT NULL, start INTEGER NOT NULL, span_id BLOB, parent_span_id BLOB, trace_id BLOB,
            shape INTEGER NOT NULL, iteration INTEGER, "values" BLOB NOT NULL, digests BLOB, process INTEGER NOT NULL,
            PRIMARY KEY (trace_id, span_id)) WITHOUT ROWID""",
        "CREATE INDEX starts_by_run ON starts (run)",
        # `used` is the last time in seconds at which a span with this text was written, to the minute.
        "CREATE TABLE bodies (digest BLOB PRIMARY KEY, used INTEGER NOT NULL, content BLOB NOT NULL)",
        "CREATE INDEX bodies_by_use ON bodies (used)",
        # Discoveries by minute since 1970, hub, cache outcome and bucket of their duration; bucket -1: not made.
        """CREATE TABLE hub_minutes (
            minute INTEGER, provider_id TEXT, cache TEXT, bucket INTEGER, calls INTEGER NOT NULL,
            failures INTEGER NOT NULL, run INTEGER NOT NULL, span_id BLOB NOT NULL,
            PRIMARY KEY (minute, provider_id, cache, bucket)) WITHOUT ROWID""",
        "CREATE TABLE hubs (provider_id TEXT PRIMARY KEY, objective REAL) WITHOUT ROWID",
        """CREATE TABLE events (
            run INTEGER, time INTEGER, process INTEGER, number INTEGER, name TEXT NOT NULL, span_id BLOB,
            payload BLOB NOT NULL, PRIMARY KEY (run, time, process, number)) WITHOUT ROWID""",
    ),
    (
        # Id of the recorded run that a run replays.
        "ALTER TABLE runs ADD COLUMN replay_of TEXT",
        # Whole catalogues by `pellucid.catalog.digest`; `used` as that of bodies.
        "CREATE TABLE catalogs (digest BLOB PRIMARY KEY, used INTEGER NOT NULL, content BLOB NOT NULL)",
        "CREATE INDEX catalogs_by_use ON catalogs (used)",
    ),
    (
        # Round trips that took longer than the objective that the hub had then.
        "ALTER TABLE hub_minutes ADD COLUMN late INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX runs_without_outcome ON runs (start) WHERE outcome IS NULL",
    ),
    (
        "CREATE INDEX runs_by_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL",
        # Requests to hubs by minute since 1970 in which they ended, outcome and bucket of their duration. `late` were
        # over the objective; of `delayed` ones, half of the duration or more was that of a busy process. `durations`
        # are doubles, in seconds: those of all requests, or none if there are too many. Rows of `hub_minutes` count
        # discoveries since then, all in bucket -1.
        """CREATE TABLE hub_requests (
            minute INTEGER, provider_id TEXT, outcome TEXT, bucket INTEGER, calls INTEGER NOT NULL,
            late INTEGER NOT NULL, delayed INTEGER NOT NULL, least REAL NOT NULL, most REAL NOT NULL,
            durations BLOB NOT NULL, run INTEGER NOT NULL, span_id BLOB NOT NULL,
            PRIMARY KEY (minute, provider_id, outcome, bucket)) WITHOUT ROWID""",
    ),
    (
        # Share of a hub's requests that should meet its objective, if it declares one.
        "ALTER TABLE hubs ADD COLUMN slo REAL",
    ),
    (
        # First lines of the input and output, who called, and the number of boundaries within that failed: NULL if they
        # were not recorded. `used_*` are the sums of model calls that have ended.
        *(
            f"ALTER TABLE runs ADD COLUMN {column}"
            for column in (
                *("question TEXT", "answer TEXT", "user TEXT", "tenant TEXT", "conversation TEXT", "version TEXT"),
                *("faults INTEGER", "used_input INTEGER", "used_output INTEGER", "used_cost REAL"),
                "used_cached INTEGER",
            )
        ),
        *(
            f"CREATE INDEX runs_by_{column} ON runs ({column}, start) WHERE {column} IS NOT NULL"
            for column in ("agent", "user", "tenant", "conversation", "version", "outcome", "error_type")
        ),
        "CREATE INDEX runs_by_last ON runs (last)",
        "CREATE INDEX events_by_name ON events (name, time)",
        # Runs by their models, tools and hubs, as `parts`, and the number of runs by the hour of their start; NULL is
        # an empty text. Triggers, because writers of the version before do not know of them.
        """CREATE TABLE part_runs (
            kind TEXT, name TEXT, start INTEGER, run INTEGER, PRIMARY KEY (kind, name, start, run)) WITHOUT ROWID""",
        "INSERT INTO part_runs SELECT kind, name, start, run FROM parts JOIN runs ON runs.key = run",
        """CREATE TRIGGER parts_added AFTER INSERT ON parts BEGIN
            INSERT OR IGNORE INTO part_runs SELECT new.kind, new.name, start, key FROM runs WHERE key = new.run; END""",
        """CREATE TRIGGER parts_deleted BEFORE DELETE ON parts BEGIN DELETE FROM part_runs
            WHERE kind = old.kind AND name = old.name AND run = old.run
            AND start = (SELECT start FROM runs WHERE key = old.run); END""",
        """CREATE TRIGGER parts_moved AFTER UPDATE OF start ON runs WHEN new.start <> old.start BEGIN
            UPDATE part_runs SET start = new.start WHERE run = new.key AND start = old.start
            AND (kind, name) IN (SELECT kind, name FROM parts WHERE run = new.key); END""",
        """CREATE TABLE run_hours (
            hour INTEGER, agent TEXT, outcome TEXT, runs INTEGER NOT NULL,
            PRIMARY KEY (hour, agent, outcome)) WITHOUT ROWID""",
        f"""INSERT INTO run_hours SELECT start / {HOUR}, ifnull(agent, ''), ifnull(outcome, ''), count(*)
            FROM runs GROUP BY 1, 2, 3""",
        f"CREATE TRIGGER runs_added AFTER INSERT ON runs BEGIN {_counted('new', 1)}; END",
        f"""CREATE TRIGGER runs_changed AFTER UPDATE OF start, agent, outcome ON runs
            WHEN (new.start, new.agent, new.outcome) IS NOT (old.start, old.agent, old.outcome)
            BEGIN {_counted("old", -1)}; {_counted("new", 1)}; END""",
        f"CREATE TRIGGER runs_deleted AFTER DELETE ON runs BEGIN {_counted('old', -1)}; END",
    ),
    score_schema.MIGRATION,
    (
        *text_index.MIGRATION,
        *score_schema.OF_KNOWN_RUNS,
        # Lines of the application, by the span that was current. Writers of the version before delete runs only.
        """CREATE TABLE log_lines (
            run INTEGER, span_id BLOB, time INTEGER, process INTEGER, number INTEGER, severity INTEGER NOT NULL,
            content BLOB NOT NULL, PRIMARY KEY (run, time, process, number)) WITHOUT ROWID""",
        "CREATE INDEX log_lines_by_span ON log_lines (run, span_id, time, process, number)",
        f"CREATE INDEX log_lines_of_faults ON log_lines (run, severity) WHERE severity >= {WARNING}",
        "CREATE TRIGGER log_lines_deleted AFTER DELETE ON runs BEGIN DELETE FROM log_lines WHERE run = old.key; END",
    ),
)
"""Statements that lead from each version to the next."""

_DURABLE: Final = {"runs", "calls", "journal", "schema_version"}
"""Tables of a store of durable runs."""

VERSION: Final = len(MIGRATIONS)

INDEXED: Final = 6
"""Version since which texts of runs are indexed."""

_WITHOUT_DUE: Final = range(INDEXED, 8)
"""Versions whose triggers add the texts of runs themselves."""


class UnusableStore(StoreError, ConfigError):
    """A file is not a store that this version can use."""


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store; 0 for an empty file.

    Raises:
        StoreError: it is another database, or from a newer version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            kind = "another database; name another file"
            if _DURABLE.issubset(name for (name,) in connection.execute("SELECT name FROM sqlite_master")):
                kind = "a store of durable runs, which `pellucid serve --store` and open_store read; name another file"
            raise UnusableStore(f"{str(path)!r} is not a telemetry store but {kind}")
        return 0
    if version > VERSION:
        raise UnusableStore(
            f"{str(path)!r} has version {version} of the store's schema, and this release of Pellucid knows versions "
            f"up to {VERSION}; upgrade Pellucid, or name another file"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a store to the current version, in one transaction.

    Raises:
        StoreError: it is another database, or from a newer version.
        sqlite3.Error: it cannot be written to.
    """
    if version_of(connection, path) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection, path)  # another process may have been faster
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        if version < INDEXED:
            text_index.create_index(connection)
        elif version in _WITHOUT_DUE:
            text_index.renew_index(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
