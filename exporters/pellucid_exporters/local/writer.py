"""Writer of the store: a batch of records in one transaction."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pellucid.errors import ConfigError
from pellucid_exporters.local.bodies import BodyWriter, storable
from pellucid_exporters.local.catalogs import CatalogRecord, write_catalogs
from pellucid_exporters.local.database import Database, create
from pellucid_exporters.local.foreign_spans import find_runs
from pellucid_exporters.local.hub_minutes import HubMinutes, Objectives
from pellucid_exporters.local.log_lines import LogLine, write_log_lines
from pellucid_exporters.local.processes import HEARTBEAT, ProcessIdentity, this_process
from pellucid_exporters.local.records import EventRecord, SpanRecord, StartRecord, span_record
from pellucid_exporters.local.retention import Retention
from pellucid_exporters.local.run_rows import changes_of
from pellucid_exporters.local.schema import UnusableStore
from pellucid_exporters.local.score_rows import run_of_score
from pellucid_exporters.local.score_schema import SCORE
from pellucid_exporters.local.shapes import Shape, definition_of
from pellucid_exporters.local.text_index import add_due

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pellucid_exporters.local.options import Local

Record: TypeAlias = SpanRecord | StartRecord | EventRecord | CatalogRecord | LogLine

Known: TypeAlias = "Callable[[sqlite3.Connection, EventRecord], bool]"
"""Returns whether the store has no such event."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Another process, whose records come in any order, and maybe twice.

    Spans that name no run are written without one: until all of their trace is there, `place` cannot know it.

    Attributes:
        process: The process.
        is_new: Returns whether the store has no such span or event; what it has is left out.
    """

    process: ProcessIdentity
    is_new: Callable[[sqlite3.Connection, SpanRecord | EventRecord], bool]


MOST_RECORDS: Final = 4_000
"""Maximum number of records of one transaction, so that other writers wait for milliseconds only."""

_MOST_SHAPES: Final = 8_192

_PASSING: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})

_REFUSALS: Final = (
    *(ValueError, TypeError, OverflowError),
    *(sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
)
"""Errors of a record that can never be written, whatever the state of the file."""

# For each None and each `bytes`, `sqlite3` looks for an adapter, which takes longer than to write the value: rows of
# spans have `_NOTHING` and `bytearray` instead.
_NOTHING: Final = ""
_SPAN: Final = (
    "INSERT OR REPLACE INTO spans VALUES "
    "(?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, ''), ?, ?, nullif(?, ''), nullif(?, ''))"
)
_START: Final = "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_END: Final = "DELETE FROM starts WHERE trace_id = ? AND span_id = ?"
_EVENT: Final = "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_PART: Final = "INSERT OR IGNORE INTO parts VALUES (?, ?, ?)"
_RESPONSE: Final = "INSERT OR IGNORE INTO responses VALUES (?, ?)"
_PROCESS: Final = """
INSERT INTO processes (token, service, host, pid, started, heartbeat) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (token) DO UPDATE SET heartbeat = excluded.heartbeat RETURNING id
"""


class StoreWriter:
    """Destination of records; see `Destination`. Used by one thread."""

    name = "store"
    pulse: float | None = HEARTBEAT

    def __init__(
        self,
        options: Local,
        service: str,
        objectives: Objectives,
        refused: Callable[[Exception], None] | None = None,
        *,
        origin: Origin | None = None,
    ) -> None:
        """Create a writer.

        Args:
            options: The store.
            service: Name of the service whose records are written.
            objectives: Returns the objectives of hubs.
            refused: Called for each record that can never be written.
            origin: Where the records come from, if not from this process.
        """
        self._path = Path.cwd() / options.path  # a later change of the working directory does not move the file
        self._service = storable(service)
        self._hubs = HubMinutes(objectives)
        self._bodies = BodyWriter()
        self._database = Database(self._path, self._reset)
        self._retention = Retention(options.max_age, options.max_bytes)
        self._origin = origin
        self._process = origin.process if origin is not None else this_process()
        self._open: set[tuple[bytes, bytes]] = set()
        self._number = 0
        self._line_numbers = count()
        self._refused = refused or (lambda error: None)
        self._reset()

    def _reset(self) -> None:
        self._process_id: int | None = None
        self._shapes: dict[Shape, int] = {}
        self._bodies.forget()
        self._hubs.forget()
        self._beat_at = 0.0

    def check(self) -> None:
        """Open the store once.

        Raises:
            ConfigError: the file can never be written to, is another database, or from a newer version.
        """
        try:
            create(self._path)
            with self._database.transaction():
                pass
        except OSError as error:
            raise ConfigError(
                f"local={str(self._path)!r} cannot be created ({error.strerror}); name a file in a folder that this "
                f"process may write to"
            ) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
                raise UnusableStore(
                    f"{str(self._path)!r} is not a telemetry store, or a damaged one; name another file"
                ) from error
            if code not in _PASSING:
                raise ConfigError(
                    f"local={str(self._path)!r} cannot be written to ({error}); name another file"
                ) from error
        finally:
            self._database.close()

    def repair(self) -> None:
        """Do nothing: SQLite repairs its file when it is opened."""

    def append(self, chunks: deque[Record]) -> None:
        """Write records and remove written ones; without any, only what is due.

        Raises:
            OSError: the file cannot be created.
            StoreError: it is another database.
            sqlite3.Error: it cannot be written to.
        """
        if not chunks and not self._is_due():
            return
        while True:
            batch = list(islice(chunks, MOST_RECORDS))
            try:
                self._write(batch)
            except _REFUSALS as error:
                if isinstance(error, UnusableStore):
                    raise
                self._write_each(batch, chunks)
            else:
                for _ in batch:
                    chunks.popleft()
            if not chunks:
                return

    def _write_each(self, batch: Sequence[Record], chunks: deque[Record]) -> None:
        """Write records one by one, without those that can never be written."""
        for record in batch:
            try:
                self._write([record])
            except _REFUSALS as error:
                if isinstance(error, UnusableStore):
                    raise
                self._refused(error)
            chunks.popleft()

    def close(self, *, ended: int | None = None) -> None:
        """Say that this process writes no more, since now or an earlier time, and close the store."""
        with suppress(OSError, sqlite3.Error, UnusableStore):
            if self._process_id is not None:
                with self._database.transaction() as connection:
                    connection.execute(
                        "UPDATE processes SET ended = ? WHERE token = ?", (ended or time.time_ns(), self._process.token)
                    )
                    count_change(connection)
        self._database.close()

    def forget(self) -> None:
        """Reset in a forked child, which is a process of its own; what is open belongs to the parent."""
        self._process = this_process()
        self._open = set()
        self._reset()

    def _is_due(self) -> bool:
        return self._retention.is_due() or (bool(self._open) and time.monotonic() - self._beat_at >= HEARTBEAT)

    def write_new(self, batch: Sequence[EventRecord], is_new: Known) -> Sequence[EventRecord]:
        """Write those of some events that the store does not have, in one transaction; return them.

        Args:
            batch: The events.
            is_new: Returns whether an event is new, from what the store has then.

        Raises:
            OSError, StoreError, sqlite3.Error: as for `append`; nothing was written.
        """
        return self._write(batch, is_new)

    def _write(self, batch: Sequence[Record], is_new: Known | None = None) -> Sequence[EventRecord]:
        spans, starts, events, lines, catalogs = _sorted(batch)
        ended = {(record.trace_id, record.span_id) for record in spans}
        opened = {(record.trace_id, record.span_id) for record in starts}
        records: list[SpanRecord | EventRecord | LogLine] = [*spans, *starts, *events, *lines]
        texts = [record.bodies for record in records if record.bodies]
        self._bodies.prepare(texts)
        with self._database.transaction() as connection:
            if self._origin is not None:
                spans = [span for span in spans if self._origin.is_new(connection, span)]
                events = [event for event in events if self._origin.is_new(connection, event)]
            if is_new is not None:
                events = [event for event in events if is_new(connection, event)]
            process = self._register(connection)
            keys = self._write_runs(connection, [*spans, *starts], process)
            connection.executemany(_SPAN, self._span_rows(connection, spans, keys))
            connection.executemany(_START, [self._start_row(connection, record, keys, process) for record in starts])
            connection.executemany(_END, _begun(connection, ended))  # also by a process that was killed
            self._write_events(connection, events, keys, process)
            if lines:
                write_log_lines(connection, lines, keys, process, self._line_numbers)
            write_catalogs(connection, catalogs)
            written = self._bodies.write(connection, texts)
            self._hubs.write(connection, spans, keys)
            self._retention.step(connection)
            add_due(connection)
            count_change(connection)
        self._bodies.remember(written)
        self._open = (self._open - ended) | opened
        return events

    def _register(self, connection: sqlite3.Connection) -> int:
        """Return the id of this process in the store, with a heartbeat if one is due."""
        if self._process_id is None or time.monotonic() - self._beat_at >= HEARTBEAT:
            own = self._process
            row = (own.token, self._service, own.host, own.pid, own.started, time.time_ns())
            (self._process_id,) = connection.execute(_PROCESS, row).fetchone()
            self._beat_at = time.monotonic()
        assert self._process_id is not None  # just registered
        return self._process_id

    def _write_runs(
        self, connection: sqlite3.Connection, records: Sequence[SpanRecord], process: int
    ) -> dict[str, tuple[int, bytes | None]]:
        """Write the rows of runs; return their keys and traces by id, of which that of no run is 0."""
        if self._origin is None:
            find_runs(connection, records)
        keys: dict[str, tuple[int, bytes | None]] = {"": (0, None)}
        parts: list[tuple[int, str, str]] = []
        responses: list[tuple[str, int]] = []
        for run_id, change in changes_of(records).items():
            keys[run_id] = key, _ = change.write(connection, process)
            parts += [(key, kind, name) for kind, name in change.storable_parts()]
            responses += [(response, key) for response in change.responses]
        connection.executemany(_RESPONSE, responses)
        connection.executemany(_PART, parts)
        return keys

    def _span_rows(
        self, connection: sqlite3.Connection, spans: Iterable[SpanRecord], keys: Mapping[str, tuple[int, bytes | None]]
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for record in spans:
            key, trace_id = keys[record.run_id]
            parent, iteration, digests, extra = record.parent_span_id, record.iteration, record.digests, record.extra
            row = (
                key,
                record.start,
                bytearray(record.span_id),
                _NOTHING if parent is None else bytearray(parent),
                _NOTHING if record.trace_id == trace_id else bytearray(record.trace_id),
                self._shape(connection, record.shape),
                _NOTHING if iteration is None else iteration,
                record.duration,
                bytearray(record.values),
                _NOTHING if digests is None else bytearray(digests),
                _NOTHING if extra is None else bytearray(extra),
            )
            rows.append(row)
        return rows

    def _start_row(
        self,
        connection: sqlite3.Connection,
        record: SpanRecord,
        keys: Mapping[str, tuple[int, bytes | None]],
        process: int,
    ) -> tuple[Any, ...]:
        key, _ = keys[record.run_id]
        shape = self._shape(connection, record.shape)
        ids = (record.span_id, record.parent_span_id, record.trace_id)
        return (key, record.start, *ids, shape, record.iteration, record.values, record.digests, process)

    def _shape(self, connection: sqlite3.Connection, shape: Shape) -> int:
        number = self._shapes.get(shape)
        if number is None:
            definition = definition_of(shape)
            connection.execute("INSERT OR IGNORE INTO shapes (definition) VALUES (?)", (definition,))
            (number,) = connection.execute("SELECT id FROM shapes WHERE definition = ?", (definition,)).fetchone()
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = number
        assert number is not None  # found, or just written
        return number

    def _write_events(
        self,
        connection: sqlite3.Connection,
        events: Iterable[EventRecord],
        keys: Mapping[str, tuple[int, bytes | None]],
        process: int,
    ) -> None:
        rows: list[tuple[Any, ...]] = []
        known = dict(keys)
        for event in events:
            if event.name == SCORE and not event.run_id:
                event = replace(event, run_id=run_of_score(connection, event.payload, event.span_id))  # noqa: PLW2901
            if event.run_id not in known:
                found = connection.execute(
                    "SELECT key, trace_id FROM runs WHERE run_id = ?", (event.run_id,)
                ).fetchone()
                known[event.run_id] = found or (0, None)
            self._number += 1
            key, _ = known[event.run_id]
            rows.append((key, event.time, process, self._number, event.name, event.span_id, event.payload))
        connection.executemany(_EVENT, rows)


def _sorted(
    batch: Sequence[Record],
) -> tuple[list[SpanRecord], list[SpanRecord], list[EventRecord], list[LogLine], list[CatalogRecord]]:
    """Return the spans, the starts of spans that have not ended, the events, log lines and catalogues of a batch."""
    spans: list[SpanRecord] = []
    starts: list[SpanRecord] = []
    events: list[EventRecord] = []
    lines: list[LogLine] = []
    catalogs: list[CatalogRecord] = []
    for record in batch:
        if type(record) is SpanRecord:
            spans.append(record)
        elif isinstance(record, StartRecord):
            if record.span.end_time is None:
                starts.append(span_record(record.span, record.run_id, record.parent_run_id))
        elif isinstance(record, EventRecord):
            events.append(record)
        elif isinstance(record, LogLine):
            lines.append(record)
        elif isinstance(record, CatalogRecord):
            catalogs.append(record)
    return spans, [start for start in starts if start.duration is None], events, lines, catalogs


def _begun(connection: sqlite3.Connection, ended: set[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
    """Return those of some boundaries that the store has as begun; all of them if it has more than these."""
    begun = connection.execute("SELECT trace_id, span_id FROM starts LIMIT ?", (len(ended),)).fetchall()
    return ended.intersection(begun) if len(begun) < len(ended) else ended


def count_change(connection: sqlite3.Connection) -> None:
    """Note that the store has changed."""
    connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'changes'")
