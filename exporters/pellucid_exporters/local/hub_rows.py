"""Rows of hubs, from the minutes of their discoveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_exporters.stored.quantiles import quantile
from pellucid_exporters.stored.rows import HubRow

if TYPE_CHECKING:
    import sqlite3

    from pellucid_exporters.stored.rows import SpanRow

BOUNDS: Final = semconv.DISCOVERY_DURATION.buckets
MINUTE: Final = 60 * 10**9
"""Nanoseconds."""

_CACHE: Final = """
SELECT provider_id, cache, sum(calls) FROM hub_minutes WHERE minute BETWEEN ? AND ? GROUP BY provider_id, cache
"""
_ROUND_TRIPS: Final = """
SELECT provider_id, minute, bucket, calls, failures, run, span_id, late FROM hub_minutes
WHERE minute BETWEEN ? AND ? AND cache IN ('miss', 'none') AND bucket >= 0 ORDER BY minute
"""
_RUN: Final = "SELECT run_id FROM runs WHERE key = ?"


@dataclass(slots=True)
class _Hub:
    failures: int = 0
    by_minute: dict[int, list[int]] = field(default_factory=dict)
    exemplars: dict[int, tuple[str, str]] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    last_success: int | None = None


def hub_rows(connection: sqlite3.Connection, since: int, until: int, in_flight: Iterable[SpanRow]) -> list[HubRow]:
    """Return the hubs that were asked between two times, or are being asked, by id."""
    window = (since // MINUTE, until // MINUTE)
    hubs: dict[str, _Hub] = {}
    latest: dict[tuple[str, int], tuple[int, bytes]] = {}
    cursor = connection.cursor()
    cursor.row_factory = None
    for provider_id, cache, calls in cursor.execute(_CACHE, window):
        hubs.setdefault(provider_id, _Hub()).cache[cache] = calls
    for provider_id, minute, bucket, calls, failures, run, span_id, late in cursor.execute(_ROUND_TRIPS, window):
        hub = hubs[provider_id]
        counts = hub.by_minute.get(minute)
        if counts is None:
            counts = hub.by_minute[minute] = [0] * (len(BOUNDS) + 1)
        counts[bucket] += calls
        hub.failures += failures
        if late:
            hub.late[minute * MINUTE] = hub.late.get(minute * MINUTE, 0) + late
        if calls > failures:
            hub.last_success = minute * MINUTE
        latest[provider_id, bucket] = run, span_id
    for (provider_id, bucket), (run, span_id) in latest.items():
        row = cursor.execute(_RUN, (run,)).fetchone() if run else ("",)
        if row is not None:  # retention has not deleted it
            hubs[provider_id].exemplars[bucket] = (row[0], span_id.hex())
    starts: dict[str, int] = {}
    for span in in_flight:
        if span.phase == semconv.DISCOVERY:
            starts.setdefault(str(span.attributes.get(semconv.PROVIDER_ID)), span.start)
    objectives = dict(map(tuple, connection.execute("SELECT provider_id, objective FROM hubs")))
    return [
        _row(provider_id, hubs.get(provider_id) or _Hub(), objectives.get(provider_id), starts.get(provider_id))
        for provider_id in sorted({*hubs, *starts})
    ]


def _row(provider_id: str, hub: _Hub, objective: float | None, in_flight_since: int | None) -> HubRow:
    totals = [sum(counts) for counts in zip(*hub.by_minute.values(), strict=True)]
    by_minute: Mapping[int, Sequence[int]] = {minute * MINUTE: counts for minute, counts in hub.by_minute.items()}
    return HubRow(
        provider_id=provider_id,
        objective=objective,
        calls=sum(totals),
        failures=hub.failures,
        by_minute=by_minute,
        bounds=BOUNDS,
        exemplars=hub.exemplars,
        p50=quantile(0.5, BOUNDS, totals),
        p95=quantile(0.95, BOUNDS, totals),
        p99=quantile(0.99, BOUNDS, totals),
        cache=hub.cache,
        in_flight_since=in_flight_since,
        late=hub.late,
        last_success=hub.last_success,
    )
