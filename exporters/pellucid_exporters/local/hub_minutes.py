"""Writer of the minutes of hubs: requests to them, discoveries by cache outcome, and objectives."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pellucid import semconv
from pellucid.semconv.names import DISCOVERY, PHASE, REPLAY_OF
from pellucid_exporters.local.bodies import storable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from pellucid.telemetry.hubs import Hubs
    from pellucid_exporters.local.records import SpanRecord

Objective: TypeAlias = tuple[float, float | None]
"""Latency objective in seconds, and the share of requests that should meet it, if one is declared."""

Objectives: TypeAlias = Callable[[], dict[str, Objective]]
"""Function that returns the objectives of hubs."""

MINUTE: Final = 60 * 10**9
"""Nanoseconds."""

BOUNDS: Final = semconv.HUB_LISTING_DURATION.buckets
"""Upper bounds of the buckets, in seconds. Those of stores of version 3 end at 60, and are the same up to there."""

MOST_DURATIONS: Final = 1_000
"""Requests of one row whose durations are kept; of more, only the smallest and the largest."""

DISCOVERIES: Final = -1
"""Bucket of rows that count discoveries, not requests."""

_DOUBLE: Final = 8
_LONGEST: Final = 1e9
"""Seconds that no request takes."""

_DISCOVERY: Final = f"""
INSERT INTO hub_minutes (minute, provider_id, cache, bucket, calls, failures, run, span_id)
VALUES (?, ?, ?, {DISCOVERIES}, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    calls = calls + excluded.calls, failures = failures + excluded.failures, run = excluded.run,
    span_id = excluded.span_id
"""
_REQUEST: Final = f"""
INSERT INTO hub_requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    durations = iif(
        length(durations) = {_DOUBLE} * calls AND calls + excluded.calls <= {MOST_DURATIONS},
        CAST(durations || excluded.durations AS BLOB), x''),
    calls = calls + excluded.calls, late = late + excluded.late, delayed = delayed + excluded.delayed,
    least = min(least, excluded.least), most = max(most, excluded.most), run = excluded.run, span_id = excluded.span_id
"""
_OBJECTIVE: Final = "INSERT OR REPLACE INTO hubs VALUES (?, ?, ?)"


def objectives_of(hubs: Hubs) -> dict[str, Objective]:
    """Return what hubs declare at present."""
    shares = hubs.latest(semconv.HUB_SLO)
    return {name: (value, shares.get(name)) for name, value in hubs.latest(semconv.DISCOVERY_OBJECTIVE).items()}


class HubMinutes:
    """Writer of minutes and objectives. It knows what the store has until `forget`."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self._stored: dict[str, Objective] = {}

    def forget(self) -> None:
        """Write all objectives again: the store may be another one."""
        self._stored = {}

    def write(
        self,
        connection: sqlite3.Connection,
        spans: Iterable[SpanRecord],
        keys: Mapping[str, tuple[int, bytes | None]],
    ) -> None:
        """Count discoveries and requests by hub and minute, without replays; the latest of each row is its exemplar."""
        discoveries: dict[tuple[int, str, str], list[Any]] = {}
        requests: dict[tuple[int, str, str, int], _Requests] = {}
        for record in spans:
            facts = record.facts
            if not record.is_own or facts[PHASE] != DISCOVERY or REPLAY_OF in facts:
                continue
            place = keys[record.run_id][0], record.span_id
            minute = (record.start + (record.duration or 0)) // MINUTE
            cache = storable(str(facts.get(semconv.DISCOVERY_CACHE)))
            counts = discoveries.setdefault((minute, _hub(facts), cache), [0, 0, 0, b""])
            counts[0] += 1
            counts[1] += facts.get(semconv.ERROR_TYPE) is not None
            counts[2:] = place
            for sent, request in record.requests:
                seconds = _seconds(request)
                minute = (sent + round(seconds * 1e9)) // MINUTE
                outcome = storable(str(request.get(semconv.OUTCOME)))
                key = (minute, _hub(request), outcome, bisect_left(BOUNDS, seconds))
                if (row := requests.get(key)) is None:
                    row = requests[key] = _Requests()
                row.add(seconds, request, place)
        connection.executemany(_DISCOVERY, [(*key, *counts) for key, counts in discoveries.items()])
        connection.executemany(_REQUEST, [(*key, *row.columns()) for key, row in requests.items()])
        self._write_objectives(connection, self._objectives())

    def _write_objectives(self, connection: sqlite3.Connection, objectives: dict[str, Objective]) -> None:
        if objectives != self._stored:
            connection.executemany(_OBJECTIVE, [(storable(name), *each) for name, each in objectives.items()])
            self._stored = objectives


class _Requests:
    """Requests of one row."""

    def __init__(self) -> None:
        self._durations: list[float] = []
        self._late = self._delayed = 0
        self._place: tuple[int, bytes] = (0, b"")

    def add(self, seconds: float, request: Mapping[str, Any], place: tuple[int, bytes]) -> None:
        """Add a request, with the run and span that made it."""
        self._durations.append(seconds)
        self._late += request.get(semconv.HUB_LATE) is True
        delay = request.get(semconv.WAKEUP_DELAY_SECONDS)
        self._delayed += isinstance(delay, float) and 2 * delay >= seconds
        self._place = place

    def columns(self) -> tuple[Any, ...]:
        """Return the columns behind the key."""
        durations = self._durations
        counts = len(durations), self._late, self._delayed
        kept = packed(durations) if len(durations) <= MOST_DURATIONS else b""
        return (*counts, min(durations), max(durations), kept, *self._place)


def packed(durations: Sequence[float]) -> bytes:
    """Return durations as a column."""
    return struct.pack(f"<{len(durations)}d", *durations)


def unpacked(column: bytes) -> tuple[float, ...]:
    """Return the durations in a column."""
    return struct.unpack(f"<{len(column) // _DOUBLE}d", column)


def _hub(facts: Mapping[str, Any]) -> str:
    return storable(str(facts.get(semconv.PROVIDER_ID)))


def _seconds(request: Mapping[str, Any]) -> float:
    """Return the duration of a request; 0 for an event that is none: anybody can add one."""
    seconds = request.get(semconv.HUB_LISTING_SECONDS)
    return seconds if isinstance(seconds, float) and 0 <= seconds < _LONGEST else 0.0
