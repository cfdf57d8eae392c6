"""Conditions of the alerts on tool hubs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pellucid import semconv
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import FIVE_MINUTES, HOUR, MINUTE, SIX_HOURS, TEN_MINUTES, Context, Words
from pellucid_exporters.alerting.outcomes import COMBINED
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.counts import (
    SECOND,
    Window,
    exemplar,
    first,
    has_failed,
    is_round_trip,
    mostly,
    named,
    number,
    percentage,
    window,
)
from pellucid_exporters.stored.quantiles import Quantile, quantiles
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import CallRow, HubRow, SpanRow

OPEN: Final = 2
"""State of a circuit breaker that is open, as of `pellucid.circuit.state`."""

_SUBJECTS: Final = {
    semconv.DISCOVERY: ("Tool hub", semconv.PROVIDER_ID),
    semconv.DISPATCH: ("Tool", semconv.TOOL_NAME),
    semconv.INFERENCE: ("Model", semconv.REQUEST_MODEL),
}
_CIRCUIT_WINDOW: Final = 2 * MINUTE


def hub_alerts(reader: Reader, now: int, context: Context) -> Iterator[Alert]:
    """Yield the alerts on hubs that fire."""
    rows = {row.provider_id: row for row in reader.hubs(now - round(SIX_HOURS * SECOND), now)}
    seen = _Hubs(reader, now, context, rows)
    recent = window(reader, now, TEN_MINUTES, [semconv.DISCOVERY])
    yield from _slow(seen)
    yield from _hanging(seen)
    yield from _failing(seen, window(reader, now, FIVE_MINUTES, [semconv.DISCOVERY]))
    yield from _down(seen, recent)
    yield from _circuit_open(seen, window(reader, now, _CIRCUIT_WINDOW, list(_SUBJECTS)))
    yield from _catalog_changing(seen, window(reader, now, HOUR, [semconv.DISCOVERY]))
    yield from _cache_misses(seen, recent)


@dataclass(frozen=True, slots=True)
class _Hubs:
    reader: Reader
    now: int
    context: Context
    rows: Mapping[str, HubRow]

    def objective(self, provider_id: str) -> float | None:
        row = self.rows.get(provider_id)
        return row.objective if row is not None else None

    def words(self, provider_id: str, service: str, value: str) -> Words:
        row, objective = self.rows.get(provider_id), self.objective(provider_id)
        p95 = _p95(row, self.now) if row is not None else None
        last = row.last_success if row is not None else None
        return Words(
            subject=named("Tool hub", provider_id, service),
            value=value,
            objective=text.seconds(objective) if objective is not None else "none declared",
            p95=text.quantile(p95) if p95 is not None else "unknown",
            last_success=text.duration(self.now - last) if last is not None else "longer than known",
        )


def _p95(row: HubRow, now: int) -> Quantile | None:
    since = _first_minute(now, FIVE_MINUTES)
    (p95,) = quantiles([each for minute, some in row.samples.items() if minute >= since for each in some], (0.95,))
    return p95


def _first_minute(now: int, seconds: float) -> int:
    """Return the start of the minute in which a window began."""
    start = now - round(seconds * SECOND)
    return start - start % round(MINUTE * SECOND)


def _slow(seen: _Hubs) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for provider_id, row in seen.rows.items():
        if row.objective is None:
            continue
        for burn in hubs.BURNS:
            limit = burn.limit(thresholds)
            since = _first_minute(seen.now, burn.short)
            late, round_trips = _late(row, since)
            long_late, long_round_trips = _late(row, _first_minute(seen.now, burn.long))
            if long_round_trips < thresholds.slow_min_round_trips or not round_trips:
                continue
            if late / round_trips <= limit or long_late / long_round_trips <= limit:
                continue
            slowest = row.exemplars[max(row.exemplars)] if row.exemplars else None
            run = seen.reader.run(slowest[0]) if slowest is not None and slowest[0] else None
            words = seen.words(provider_id, run.service if run is not None else "", percentage(late / round_trips))
            yield fire(
                hubs.slow(seen.context, burn, words),
                thresholds,
                value=late / round_trips,
                since=min(minute for minute, calls in row.late.items() if calls and minute >= since),
                exemplar=slowest,
                provider_id=provider_id,
            )


def _late(row: HubRow, since: int) -> tuple[int, int]:
    """Return the number of round trips over the objective, and of all."""
    late = sum(number for minute, number in row.late.items() if minute >= since)
    return late, sum(sum(counts) for minute, counts in row.by_minute.items() if minute >= since)


def _hanging(seen: _Hubs) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    oldest: dict[str, SpanRow] = {}
    for span in seen.reader.in_flight():
        if span.phase == semconv.DISCOVERY and span.attributes.get(semconv.PROVIDER_KIND) != COMBINED:
            oldest.setdefault(str(span.attributes.get(semconv.PROVIDER_ID)), span)
    for provider_id, span in oldest.items():
        age = (seen.now - span.start) / SECOND
        multiple = (seen.objective(provider_id) or 0.0) * thresholds.hanging_objectives
        if age <= max(multiple, thresholds.hanging_after):
            continue
        run = seen.reader.run(span.run_id) if span.run_id else None
        words = seen.words(provider_id, run.service if run is not None else "", text.seconds(age))
        yield fire(
            hubs.silent(seen.context, words),
            thresholds,
            value=age,
            since=span.start,
            exemplar=(span.run_id, span.span_id),
            provider_id=provider_id,
        )


def _failing(seen: _Hubs, recent: Window) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for (service, provider_id), rows in recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items():
        trips = filter(is_round_trip, rows)
        found = mostly(trips, has_failed, above=thresholds.hub_failing, least=thresholds.hub_failing_min)
        if found is not None:
            share, failed = found
            yield fire(
                hubs.failing(seen.context, seen.words(provider_id, service, percentage(share))),
                thresholds,
                value=share,
                since=first(failed),
                exemplar=exemplar(failed),
                provider_id=provider_id,
            )


def _down(seen: _Hubs, recent: Window) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for (service, provider_id), rows in recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items():
        stale = [row for row in rows if row.labels.get(semconv.DISCOVERY_CACHE) == "stale" and not has_failed(row)]
        attempts = [*filter(has_failed, rows), *stale]
        hub = seen.rows.get(provider_id)
        last = hub.last_success if hub is not None else None
        # A success is known by its minute only; it may have been at the end of it.
        is_recent = last is not None and seen.now - last - MINUTE * SECOND < thresholds.hub_down_after * SECOND
        if is_recent or number(attempts) < thresholds.hub_down_min:
            continue
        yield fire(
            hubs.down(seen.context, seen.words(provider_id, service, str(number(attempts)))),
            thresholds,
            value=number(attempts),
            since=first(attempts),
            exemplar=exemplar(attempts),
            provider_id=provider_id,
        )


def _circuit_open(seen: _Hubs, recent: Window) -> Iterator[Alert]:
    """Yield what calls were refused for; without calls nobody reads the state of a breaker."""
    for phase, (kind, label) in _SUBJECTS.items():
        for (service, name), rows in recent.by(phase, label).items():
            refused = [row for row in rows if row.labels.get(semconv.ERROR_TYPE) == "circuit_open"]
            if not refused:
                continue
            is_hub = phase == semconv.DISCOVERY
            objective = seen.words(name, service, "").objective if is_hub else ""
            words = Words(subject=named(kind, name, service), value=str(OPEN), objective=objective)
            yield fire(
                hubs.circuit_open(words, partial(_of_hub, is_hub)),
                seen.context.thresholds,
                value=OPEN,
                since=first(refused),
                exemplar=exemplar(refused),
                provider_id=name if is_hub else None,
            )


def _of_hub(is_hub: bool, clause: str) -> str:
    return clause if is_hub else ""


def _catalog_changing(seen: _Hubs, recent: Window) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for (service, provider_id), rows in recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items():
        changed = [row for row in rows if row.sums[semconv.CATALOG_CHANGED]]
        changes = max(_changes_by_process(changed).values(), default=0.0)
        if changes > thresholds.catalog_changes:
            yield fire(
                hubs.catalog_changing(seen.context, seen.words(provider_id, service, f"{changes:.0f}")),
                thresholds,
                value=changes,
                since=first(changed),
                exemplar=exemplar(changed),
                provider_id=provider_id,
            )


def _changes_by_process(rows: list[CallRow]) -> dict[int, float]:
    changes: dict[int, float] = {}
    for row in rows:
        changes[row.process] = changes.get(row.process, 0.0) + row.sums[semconv.CATALOG_CHANGED]
    return changes


def _cache_misses(seen: _Hubs, recent: Window) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for (service, provider_id), rows in recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items():
        lookups = [row for row in rows if row.labels.get(semconv.DISCOVERY_CACHE) != "none" and not has_failed(row)]
        found = mostly(lookups, _is_miss, above=thresholds.cache_misses, least=thresholds.cache_misses_min)
        if found is not None:
            share, misses = found
            yield fire(
                hubs.cache_misses(seen.context, seen.words(provider_id, service, percentage(share))),
                thresholds,
                value=share,
                since=first(misses),
                exemplar=exemplar(misses),
                provider_id=provider_id,
            )


def _is_miss(row: CallRow) -> bool:
    return row.labels.get(semconv.DISCOVERY_CACHE) == "miss"
