"""Writer of the minutes of hubs: their discoveries by bucket, and their objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.local.bodies import storable
from pellucid_exporters.local.records import bucket_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping

    from pellucid_exporters.local.records import SpanRecord

MINUTE: Final = 60 * 10**9
"""Nanoseconds."""

_UPSERT: Final = """
INSERT INTO hub_minutes (minute, provider_id, cache, bucket, calls, failures, late, run, span_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    calls = calls + excluded.calls, failures = failures + excluded.failures, late = late + excluded.late,
    run = excluded.run, span_id = excluded.span_id
"""
_OBJECTIVE: Final = "INSERT OR REPLACE INTO hubs VALUES (?, ?)"


class HubMinutes:
    """Writer of minutes and objectives. It knows what the store has until `forget`."""

    def __init__(self, objectives: Callable[[], Mapping[str, float]]) -> None:
        """Create a writer; `objectives` reads the latency objectives of hubs, in seconds."""
        self._objectives = objectives
        self._stored: dict[str, float] = {}

    def forget(self) -> None:
        """Write all objectives again: the store may be another one."""
        self._stored = {}

    def write(
        self,
        connection: sqlite3.Connection,
        spans: Iterable[SpanRecord],
        keys: Mapping[str, tuple[int, bytes | None]],
    ) -> None:
        """Count discoveries by hub and minute, without replays; the latest of each bucket is its exemplar."""
        objectives = self._objectives()
        counted: dict[tuple[int, str, str, int], list[Any]] = {}
        for record in [span for span in spans if span.is_own and span.facts.get(semconv.PHASE) == semconv.DISCOVERY]:
            facts = record.facts
            if semconv.REPLAY_OF in facts:
                continue
            duration = record.duration or 0
            provider_id = str(facts.get(semconv.PROVIDER_ID))
            minute = (record.start + duration) // MINUTE
            cache = storable(str(facts.get(semconv.DISCOVERY_CACHE)))
            key = (minute, storable(provider_id), cache, bucket_of(record))
            counts = counted.setdefault(key, [0, 0, 0, 0, b""])
            counts[0] += 1
            counts[1] += facts.get(semconv.ERROR_TYPE) is not None
            objective = objectives.get(provider_id)
            counts[2] += objective is not None and duration / 1e9 > objective
            counts[3:] = [keys[record.run_id][0], record.span_id]
        connection.executemany(_UPSERT, [(*key, *counts) for key, counts in counted.items()])
        self._write_objectives(connection, dict(objectives))

    def _write_objectives(self, connection: sqlite3.Connection, objectives: dict[str, float]) -> None:
        if objectives != self._stored:
            connection.executemany(_OBJECTIVE, [(storable(name), value) for name, value in objectives.items()])
            self._stored = objectives
