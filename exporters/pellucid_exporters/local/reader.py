"""Read-only access to the store: runs, spans, texts, events and hubs."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pellucid import semconv
from pellucid_exporters.local import run_search, searches
from pellucid_exporters.local.bodies import DIGEST, storable, unpack
from pellucid_exporters.local.call_rows import call_rows
from pellucid_exporters.local.catalogs import read_catalogs
from pellucid_exporters.local.hub_rows import hub_rows
from pellucid_exporters.local.log_line_reader import LogLineReader
from pellucid_exporters.local.reading import reading
from pellucid_exporters.local.run_groups import groups
from pellucid_exporters.local.run_reading import Processes, run_row
from pellucid_exporters.local.score_reader import ScoreReader
from pellucid_exporters.local.span_rows import span_row
from pellucid_exporters.stored.rows import ALL, INTERRUPTED, RUNNING, CallRow, EventRow, HubRow, RunRow, SpanRow
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, RunFilter
from pellucid_exporters.stored.scores import ScoreCondition

_MANY: Final = 500

_T = TypeVar("_T")

_SPANS: Final = """
SELECT span_id, parent_span_id, trace_id, start, duration, iteration, shape, "values", digests, extra, NULL AS process
FROM spans WHERE run = :key
UNION ALL
SELECT span_id, parent_span_id, trace_id, start, NULL, iteration, shape, "values", digests, NULL, process
FROM starts WHERE run = :key
ORDER BY start, duration DESC, span_id
"""
_SHAPES: Final = """
SELECT id, definition FROM shapes
WHERE id IN (SELECT shape FROM spans WHERE run = :key UNION SELECT shape FROM starts WHERE run = :key)
"""
_STARTS: Final = """
SELECT run_id, span_id, parent_span_id, starts.trace_id, starts.start, NULL AS duration, iteration, definition,
       "values", digests, NULL AS extra, starts.process
FROM starts JOIN shapes ON shapes.id = shape LEFT JOIN runs ON runs.key = starts.run
ORDER BY starts.start
"""


class StoreReader(ScoreReader, LogLineReader):
    """Reader of a store, for any thread. Each call opens the store anew and sees one state of it.

    Times are nanoseconds since the epoch, ids hexadecimal. All methods raise a `StoreError` if the file is missing,
    damaged, no store, or from a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a store; one of an older version is migrated.

        Raises:
            StoreError: the file is missing, damaged, no store, or from a newer version.
        """
        self._path = Path.cwd() / path
        self._read(lambda _: None)

    def runs(
        self,
        *,
        agent: str | None = None,
        outcome: str | None = None,
        hub: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        tag: str | None = None,
        stop_reason: str | None = None,
        text: str | None = None,
        min_duration: float | None = None,
        min_cost: float | None = None,
        before: int | None = None,
        replays: bool = True,
        conversation: str | None = None,
        kind: str = ALL,
        score: ScoreCondition | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return the runs that match, newest first.

        Args:
            agent: Name of the agent.
            outcome: Status; see `STATUSES`.
            hub: Id of a tool provider that was asked for tools.
            tool: Name of a tool that was called.
            model: Name of a model that was called.
            tag: One of its tags.
            stop_reason: Why it returned its result; see `STOP_REASONS`.
            text: Part of the run's id, of the name of the agent, of an error, or of recorded content; in any case of
                letters.
            min_duration: Seconds that the run took at least.
            min_cost: US dollars that the run cost at least, with the runs nested in it.
            before: Time before which the run started, for paging.
            replays: Whether to return replays of other runs, too.
            conversation: Id of the conversation.
            kind: `agent` for runs that are neither of judges nor of experiments, `judge`, `experiment`, or `all`.
            score: Condition on the newest score of a name.
            limit: Maximum number of runs.
        """
        parts = {"hub": hub, "tool": tool, "model": model, "tag": tag}
        conditions, values = searches.conditions_of(agent, parts, min_duration, min_cost, score)
        listed, named = searches.listed(conversation, kind, replays=replays)
        conditions, values = [*conditions, *listed], [*values, *named]
        if outcome in {RUNNING, INTERRUPTED}:
            conditions.append("outcome IS NULL")
        elif outcome is not None:
            conditions, values = [*conditions, "outcome = ?"], [*values, storable(outcome)]
        if stop_reason is not None:
            conditions, values = [*conditions, searches.MAY_STOP_BY], [*values, json.dumps(stop_reason)]

        def read(connection: sqlite3.Connection) -> list[RunRow]:
            seen_until = Processes(connection)
            matches = searches.text_filter(connection, text) if text else None
            found: list[RunRow] = []
            for row in searches.newest(connection, conditions, values, before):
                if (matches is not None and not matches(row)) or stop_reason not in (None, searches.stop_reason(row)):
                    continue
                run = run_row(connection, row, seen_until)
                if outcome in {RUNNING, INTERRUPTED} and run.status != outcome:
                    continue
                found.append(run)
                if len(found) >= limit:
                    break
            return found

        return self._read(read)

    def search(self, wanted: RunFilter) -> FoundRuns:
        """Return the runs that match among the newest ones; see `BOUND`."""
        return self._read(lambda connection: run_search.search(connection, wanted, Processes(connection)))

    def rows(self, run_ids: Sequence[str]) -> list[RunRow]:
        """Return runs by their ids, in the order of these; without those that the store does not have."""

        def read(connection: sqlite3.Connection) -> list[RunRow]:
            seen_until = Processes(connection)
            return [run_row(connection, row, seen_until) for row in searches.rows_of(connection, run_ids)]

        return self._read(read)

    def hours(self, since: int, until: int, agent: str | None = None) -> list[HourCount]:
        """Return the number of runs by hour and outcome, of hours that begin between two times."""
        return self._read(lambda connection: run_search.hours(connection, since, until, agent))

    def names(self, limit: int) -> dict[str, list[str]]:
        """Return the first names of each kind by which runs are searched, in alphabetical order."""
        return self._read(lambda connection: run_search.names(connection, limit))

    def groups(
        self,
        by: str | None,
        since: int,
        until: int,
        *,
        step: int | None = None,
        within: tuple[str, str] | None = None,
        has_durations: bool = True,
        kind: str = ALL,
    ) -> list[RunGroup]:
        """Return the runs that started between two times, counted by a name and by steps of time.

        Args:
            by: One of `DIMENSIONS`; all runs together if it is None.
            since: Start of the window.
            until: Its end, exclusive.
            step: Nanoseconds of a step of time.
            within: One of `DIMENSIONS` and a name: only runs that have it are counted.
            has_durations: Whether to return the durations of the runs.
            kind: `agent` for runs that are neither of judges nor of experiments, `judge`, `experiment`, or `all`.
        """
        options: dict[str, Any] = {"kind": kind, "has_durations": has_durations}
        return self._read(lambda connection: groups(connection, by, since, until, step, within, **options))

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id, an unambiguous prefix of it, or its trace id; None if there is none."""

        def read(connection: sqlite3.Connection) -> RunRow | None:
            row = searches.find(connection, run_id)
            return run_row(connection, row, Processes(connection)) if row is not None else None

        return self._read(read)

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace in start order."""

        def read(connection: sqlite3.Connection) -> list[RunRow]:
            seen_until = Processes(connection)
            rows = searches.newest(connection, ["trace_id = ?"], list(_binary([trace_id])), None)
            return [run_row(connection, row, seen_until) for row in rows][::-1]

        return self._read(read) if list(_binary([trace_id])) else []

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run in start order; of those that belong to no run for the id `""`."""

        def read(connection: sqlite3.Connection) -> list[SpanRow]:
            key, trace_id = _key_of(connection, run_id)
            seen_until = Processes(connection)
            if key is None:
                return []
            # Not joined: a shape is long, and what is sorted is in memory at once.
            shapes = dict(map(tuple, connection.execute(_SHAPES, {"key": key})))
            rows = connection.execute(_SPANS, {"key": key})
            return [
                span_row(row, shapes[row["shape"]], run_id, trace_id, number, seen_until)
                for number, row in enumerate(rows)
            ]

        return self._read(read)

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return large texts by their digests; without those that the store does not have."""
        wanted = [digest for digest in _binary(digests) if len(digest) == DIGEST]

        def read(connection: sqlite3.Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for start in range(0, len(wanted), _MANY):
                some = wanted[start : start + _MANY]
                marks = ",".join("?" * len(some))
                query = f"SELECT digest, content FROM bodies WHERE digest IN ({marks})"
                found.update({row["digest"].hex(): unpack(row["content"]) for row in connection.execute(query, some)})
            return found

        return self._read(read)

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return whole catalogues by `pellucid.catalog.digest`; without those that the store does not have."""
        return self._read(lambda connection: read_catalogs(connection, _binary(digests)))

    def events(self, run_id: str) -> list[EventRow]:
        """Return the events of a run in the order of their times."""

        def read(connection: sqlite3.Connection) -> list[EventRow]:
            key, _ = _key_of(connection, run_id)
            rows = connection.execute("SELECT * FROM events WHERE run = ? ORDER BY time, process, number", (key,))
            return [_event_row(row, run_id) for row in rows]

        return self._read(read)

    def events_named(self, name: str, since: int, until: int) -> list[EventRow]:
        """Return the events of all runs with a name in a window of time, the newest first."""
        query = """
            SELECT events.*, run_id FROM events LEFT JOIN runs ON runs.key = events.run
            WHERE name = ? AND time BETWEEN ? AND ? ORDER BY time DESC"""

        def read(connection: sqlite3.Connection) -> list[EventRow]:
            return [_event_row(row, row["run_id"] or "") for row in connection.execute(query, (name, since, until))]

        return self._read(read)

    def hubs(self, since: int, until: int) -> list[HubRow]:
        """Return the tool providers that were asked between two times, by id."""

        def read(connection: sqlite3.Connection) -> list[HubRow]:
            in_flight = [span for span in _in_flight(connection) if semconv.REPLAY_OF not in span.attributes]
            return hub_rows(connection, since, until, in_flight)

        return self._read(read)

    def calls(self, since: int, until: int, phases: Collection[str], step: int | None = None) -> list[CallRow]:
        """Return the boundaries of some phases that ended between two times, counted by process, labels, and step.

        Those that belong to no run are left out. Args: step: nanoseconds of a step; without it, the window is one.
        """
        return self._read(lambda connection: call_rows(connection, since, until, phases, step))

    def in_flight(self) -> list[SpanRow]:
        """Return the boundaries of live processes that have not ended, the oldest first."""
        return self._read(_in_flight)

    def changes(self) -> int:
        """Return a number that grows with each write."""
        query = "SELECT value FROM counters WHERE name = 'changes'"
        return int(self._read(lambda connection: connection.execute(query).fetchone()[0]))

    def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with reading(self._path) as connection:
            return work(connection)


def _in_flight(connection: sqlite3.Connection) -> list[SpanRow]:
    seen_until = Processes(connection)
    rows = [
        span_row(row, row["definition"], row["run_id"] or "", None, 0, seen_until)
        for row in connection.execute(_STARTS)
    ]
    return [row for row in rows if row.status == RUNNING]


def _event_row(row: sqlite3.Row, run_id: str) -> EventRow:
    return EventRow(
        run_id=run_id,
        time=row["time"],
        name=row["name"],
        span_id=row["span_id"].hex() or None,
        payload=json.loads(row["payload"]),
    )


def _key_of(connection: sqlite3.Connection, run_id: str) -> tuple[int | None, str | None]:
    """Return the key and trace of a run; 0 for none, None for an unknown one."""
    if not run_id:
        return 0, None
    row = connection.execute("SELECT key, trace_id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return (row["key"], row["trace_id"].hex()) if row is not None else (None, None)


def _binary(digests: Iterable[str]) -> Iterator[bytes]:
    for digest in dict.fromkeys(digests):
        try:
            yield bytes.fromhex(digest)
        except ValueError:
            continue  # not a digest, so the store has no text of it
