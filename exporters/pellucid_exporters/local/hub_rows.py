"""Rows of hubs, from the minutes of their discoveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_exporters.local.rows import HubRow

if TYPE_CHECKING:
    import sqlite3

    from pellucid_exporters.local.rows import SpanRow

BOUNDS: Final = semconv.DISCOVERY_DURATION.buckets
MINUTE: Final = 60 * 10**9
"""Nanoseconds."""

_ROUND_TRIP: Final = frozenset({"miss", "none"})

_CALLS: Final = """
SELECT provider_id, minute, cache, bucket, calls, failures FROM hub_minutes WHERE minute BETWEEN ? AND ?
"""
_EXEMPLARS: Final = """
SELECT provider_id, bucket, coalesce(run_id, ''), span_id, max(minute)
FROM hub_minutes LEFT JOIN runs ON runs.key = run
WHERE minute BETWEEN ? AND ? AND cache IN ('miss', 'none') AND (run = 0 OR run_id IS NOT NULL)
GROUP BY provider_id, bucket
"""


@dataclass(slots=True)
class _Hub:
    failures: int = 0
    by_minute: dict[int, list[int]] = field(default_factory=dict)
    exemplars: dict[int, tuple[str, str]] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)


def hub_rows(connection: sqlite3.Connection, since: int, until: int, in_flight: Iterable[SpanRow]) -> list[HubRow]:
    """Return the hubs that were asked between two times, or are being asked, by id."""
    window = (since // MINUTE, until // MINUTE)
    hubs: dict[str, _Hub] = {}
    for provider_id, minute, cache, bucket, calls, failures in map(tuple, connection.execute(_CALLS, window)):
        hub = hubs.get(provider_id)
        if hub is None:
            hub = hubs[provider_id] = _Hub()
        hub.cache[cache] = hub.cache.get(cache, 0) + calls
        if bucket < 0 or cache not in _ROUND_TRIP:
            continue
        counts = hub.by_minute.get(minute * MINUTE)
        if counts is None:
            counts = hub.by_minute[minute * MINUTE] = [0] * (len(BOUNDS) + 1)
        counts[bucket] += calls
        hub.failures += failures
    for provider_id, bucket, run_id, span_id, _ in map(tuple, connection.execute(_EXEMPLARS, window)):
        if bucket >= 0:
            hubs[provider_id].exemplars[bucket] = (run_id, span_id.hex())
    starts: dict[str, int] = {}
    for span in in_flight:
        if span.phase == semconv.DISCOVERY:
            starts.setdefault(str(span.attributes.get(semconv.PROVIDER_ID)), span.start)
    objectives = dict(map(tuple, connection.execute("SELECT provider_id, objective FROM hubs")))
    return [
        _row(provider_id, hubs.get(provider_id) or _Hub(), objectives.get(provider_id), starts.get(provider_id))
        for provider_id in sorted({*hubs, *starts})
    ]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Estimate a quantile in seconds from the counts of buckets, by linear interpolation, as Prometheus does."""
    rank = share * sum(counts)
    if rank == 0:
        return None
    below = 0
    for number, (bound, count) in enumerate(zip(BOUNDS, counts, strict=False)):
        if below + count >= rank and count:
            lower = BOUNDS[number - 1] if number else 0.0
            return lower + (bound - lower) * (rank - below) / count
        below += count
    return BOUNDS[-1]


def _row(provider_id: str, hub: _Hub, objective: float | None, in_flight_since: int | None) -> HubRow:
    totals = [sum(counts) for counts in zip(*hub.by_minute.values(), strict=True)]
    by_minute: Mapping[int, Sequence[int]] = dict(sorted(hub.by_minute.items()))
    return HubRow(
        provider_id=provider_id,
        objective=objective,
        calls=sum(totals),
        failures=hub.failures,
        by_minute=by_minute,
        bounds=BOUNDS,
        exemplars=hub.exemplars,
        p50=quantile(totals, 0.5),
        p95=quantile(totals, 0.95),
        p99=quantile(totals, 0.99),
        cache=hub.cache,
        in_flight_since=in_flight_since,
    )
