"""Rows of hubs, from the minutes of the requests to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.alerting.outcomes import ASKED
from pellucid_exporters.local.hub_minutes import BOUNDS, DISCOVERIES, MINUTE, unpacked
from pellucid_exporters.stored.quantiles import Sample, quantiles
from pellucid_exporters.stored.rows import HubRow

if TYPE_CHECKING:
    import sqlite3

    from pellucid_exporters.stored.rows import SpanRow

_OLD_BOUNDS: Final = 15
"""Number of bounds that rows of stores of version 3 have."""

_DISCOVERIES: Final = """
SELECT provider_id, cache, sum(calls) FROM hub_minutes WHERE minute BETWEEN ? AND ? GROUP BY provider_id, cache
"""
_REQUESTS: Final = """
SELECT minute, provider_id, outcome, bucket, calls, late, delayed, least, most, durations, run, span_id
FROM hub_requests WHERE minute BETWEEN ? AND ? ORDER BY minute
"""
# Stores of version 3 counted the discoveries that made a request.
_OLD_REQUESTS: Final = f"""
SELECT minute, provider_id, bucket, calls, failures, late, run, span_id
FROM hub_minutes WHERE minute BETWEEN ? AND ? AND bucket > {DISCOVERIES} AND cache IN {ASKED} ORDER BY minute
"""
_RUN: Final = "SELECT run_id FROM runs WHERE key = ?"
_ANSWERS: Final = frozenset({semconv.COMPLETED, semconv.FAILED})


@dataclass(slots=True)
class _Hub:
    """A hub.

    Attributes:
        latest: Run and span of the latest request in each bucket.
        is_answered: Whether a request was answered, by minute.
    """

    cache: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    by_minute: dict[int, list[int]] = field(default_factory=dict)
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    latest: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    delayed: int = 0
    last_success: int | None = None
    is_answered: dict[int, bool] = field(default_factory=dict)

    def add(self, minute: int, outcome: str, bucket: int, sample: Sample, late: int) -> None:
        """Add the requests of a row; those of a minute after those of the minutes before."""
        start = minute * MINUTE
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + sample.calls
        self.by_minute.setdefault(start, [0] * (len(BOUNDS) + 1))[bucket] += sample.calls
        self.samples.setdefault(start, []).append(sample)
        if late:
            self.late[start] = self.late.get(start, 0) + late
        if outcome == semconv.COMPLETED:
            self.last_success = start
        self.is_answered[start] = self.is_answered.get(start, False) or outcome in _ANSWERS

    def unanswered_since(self) -> int | None:
        """Return the first of the latest minutes in which no request was answered."""
        since: int | None = None
        for minute in sorted(self.is_answered, reverse=True):
            if self.is_answered[minute]:
                break
            since = minute
        return since


def hub_rows(connection: sqlite3.Connection, since: int, until: int, in_flight: Iterable[SpanRow]) -> list[HubRow]:
    """Return the hubs that were asked between two times, or are being asked, by id."""
    hubs: dict[str, _Hub] = {}
    cursor = connection.cursor()
    cursor.row_factory = None
    window = (since // MINUTE, until // MINUTE)
    for provider_id, cache, calls in cursor.execute(_DISCOVERIES, window):
        hubs.setdefault(provider_id, _Hub()).cache[cache] = calls
    _add_old_requests(hubs, cursor.execute(_OLD_REQUESTS, window))
    _add_requests(hubs, cursor.execute(_REQUESTS, window))
    starts: dict[str, int] = {}
    for span in in_flight:
        if span.phase == semconv.DISCOVERY:
            starts.setdefault(str(span.attributes.get(semconv.PROVIDER_ID)), span.start)
    declared = {
        name: each for name, *each in map(tuple, connection.execute("SELECT provider_id, objective, slo FROM hubs"))
    }
    asked = {name for name, hub in hubs.items() if hub.outcomes or hub.cache.keys() - {"none"}}
    rows: list[HubRow] = []
    for provider_id in sorted({*asked, *starts}):
        hub = hubs.get(provider_id, _Hub())
        exemplars = dict(_exemplars(cursor, hub.latest))
        rows.append(_row(provider_id, hub, declared.get(provider_id, (None, None)), starts.get(provider_id), exemplars))
    return rows


def _add_requests(hubs: dict[str, _Hub], rows: Iterable[Any]) -> None:
    for minute, provider_id, outcome, bucket, calls, late, delayed, least, most, durations, *place in rows:
        hub = hubs.setdefault(provider_id, _Hub())
        hub.add(minute, outcome, bucket, Sample(least, most, calls, unpacked(durations)), late)
        hub.delayed += delayed
        hub.latest[bucket] = tuple(place)


def _add_old_requests(hubs: dict[str, _Hub], rows: Iterable[Any]) -> None:
    for minute, provider_id, bucket, calls, failures, late, *place in rows:
        hub = hubs.setdefault(provider_id, _Hub())
        least = BOUNDS[bucket - 1] if bucket else 0.0
        most = BOUNDS[bucket] if bucket < _OLD_BOUNDS else math.inf
        over = min(late, calls - failures)  # the row does not say which of them were late
        counts = {semconv.COMPLETED: (calls - failures, over), semconv.FAILED: (failures, late - over)}
        for outcome, (number, slow) in counts.items():
            if number:
                hub.add(minute, outcome, bucket, Sample(least, most, number), slow)
        hub.latest[bucket] = tuple(place)


def _exemplars(
    cursor: sqlite3.Cursor, latest: Mapping[int, tuple[int, bytes]]
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the run and span of the latest request in each bucket, unless retention has deleted the run."""
    for bucket, (run, span_id) in sorted(latest.items()):
        row = cursor.execute(_RUN, (run,)).fetchone() if run else ("",)
        if row is not None:
            yield bucket, (row[0], span_id.hex())


def _row(
    provider_id: str,
    hub: _Hub,
    declared: Sequence[float | None],
    in_flight_since: int | None,
    exemplars: Mapping[int, tuple[str, str]],
) -> HubRow:
    calls = sum(hub.outcomes.values())
    p50, p95, p99 = quantiles([sample for samples in hub.samples.values() for sample in samples], (0.5, 0.95, 0.99))
    return HubRow(
        provider_id=provider_id,
        objective=declared[0],
        slo=declared[1],
        calls=calls,
        failures=calls - hub.outcomes.get(semconv.COMPLETED, 0),
        outcomes=hub.outcomes,
        by_minute=hub.by_minute,
        bounds=BOUNDS,
        samples=hub.samples,
        exemplars=exemplars,
        p50=p50,
        p95=p95,
        p99=p99,
        cache=hub.cache,
        in_flight_since=in_flight_since,
        late=hub.late,
        delayed=hub.delayed,
        last_success=hub.last_success,
        unanswered_since=hub.unanswered_since(),
    )
