"""Rows of hubs, from the minutes of their discoveries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_exporters.alerting.outcomes import ASKED
from pellucid_exporters.local.hub_minutes import MINUTE
from pellucid_exporters.stored.quantiles import quantile
from pellucid_exporters.stored.rows import HubRow

if TYPE_CHECKING:
    import sqlite3

    from pellucid_exporters.stored.rows import SpanRow

BOUNDS: Final = semconv.DISCOVERY_DURATION.buckets

_MINUTES: Final = """
SELECT minute, provider_id, cache, sum(calls), json_group_array(bucket), json_group_array(calls),
       sum(iif(bucket >= 0, failures, 0)), sum(late)
FROM hub_minutes WHERE minute BETWEEN ? AND ? GROUP BY minute, provider_id, cache
"""
_EXEMPLAR: Final = f"""
SELECT run, span_id FROM hub_minutes
WHERE minute = ? AND provider_id = ? AND cache IN {ASKED} AND bucket = ? ORDER BY cache
"""
_RUN: Final = "SELECT run_id FROM runs WHERE key = ?"


@dataclass(slots=True)
class _Hub:
    """A hub; `latest` has the last minute of each bucket."""

    failures: int = 0
    by_minute: dict[int, list[int]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    last_success: int | None = None

    def add(self, minute: int, buckets: Sequence[int], calls: Sequence[int]) -> int:
        """Add the round trips of a minute; return their number."""
        counts = self.by_minute.get(minute)
        if counts is None:
            counts = [0] * (len(BOUNDS) + 1)
        total = 0
        for bucket, number in zip(buckets, calls, strict=True):
            if bucket >= 0:  # a request was made
                counts[bucket] += number
                self.latest[bucket] = minute
                total += number
        if total:
            self.by_minute[minute] = counts
        return total


def hub_rows(connection: sqlite3.Connection, since: int, until: int, in_flight: Iterable[SpanRow]) -> list[HubRow]:
    """Return the hubs that were asked between two times, or are being asked, by id."""
    hubs: dict[str, _Hub] = {}
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(_MINUTES, (since // MINUTE, until // MINUTE))
    for minute, provider_id, cache, discoveries, buckets, calls, failures, late in rows:
        hub = hubs.get(provider_id)
        if hub is None:
            hub = hubs[provider_id] = _Hub()
        hub.cache[cache] = hub.cache.get(cache, 0) + discoveries
        if cache not in ASKED:
            continue
        start = minute * MINUTE
        if hub.add(start, json.loads(buckets), json.loads(calls)) > failures:
            hub.last_success = start
        hub.failures += failures
        if late:
            hub.late[start] = hub.late.get(start, 0) + late
    starts: dict[str, int] = {}
    for span in in_flight:
        if span.phase == semconv.DISCOVERY:
            starts.setdefault(str(span.attributes.get(semconv.PROVIDER_ID)), span.start)
    objectives = dict(map(tuple, connection.execute("SELECT provider_id, objective FROM hubs")))
    return [
        _row(
            provider_id,
            hubs.get(provider_id) or _Hub(),
            objectives.get(provider_id),
            starts.get(provider_id),
            dict(_exemplars(cursor, provider_id, hubs[provider_id].latest)) if provider_id in hubs else {},
        )
        for provider_id in sorted({*hubs, *starts})
    ]


def _exemplars(
    cursor: sqlite3.Cursor, provider_id: str, latest: Mapping[int, int]
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the run and span of the latest round trip in each bucket, unless retention has deleted the run."""
    for bucket, minute in sorted(latest.items()):
        run, span_id = cursor.execute(_EXEMPLAR, (minute // MINUTE, provider_id, bucket)).fetchone()
        row = cursor.execute(_RUN, (run,)).fetchone() if run else ("",)
        if row is not None:
            yield bucket, (row[0], span_id.hex())


def _row(
    provider_id: str,
    hub: _Hub,
    objective: float | None,
    in_flight_since: int | None,
    exemplars: Mapping[int, tuple[str, str]],
) -> HubRow:
    totals = [sum(counts) for counts in zip(*hub.by_minute.values(), strict=True)]
    return HubRow(
        provider_id=provider_id,
        objective=objective,
        calls=sum(totals),
        failures=hub.failures,
        by_minute=hub.by_minute,
        bounds=BOUNDS,
        exemplars=exemplars,
        p50=quantile(0.5, BOUNDS, totals),
        p95=quantile(0.95, BOUNDS, totals),
        p99=quantile(0.99, BOUNDS, totals),
        cache=hub.cache,
        in_flight_since=in_flight_since,
        late=hub.late,
        last_success=hub.last_success,
    )
