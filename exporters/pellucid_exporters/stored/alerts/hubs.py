"""Conditions of the alerts on tool hubs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pellucid import semconv
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import HOUR, MINUTE, SIX_HOURS, TEN_MINUTES, Context, Words
from pellucid_exporters.alerting.hubs import Burn
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.answers import down, failing, silent
from pellucid_exporters.stored.alerts.counts import (
    SECOND,
    Window,
    exemplar,
    first,
    has_failed,
    mostly,
    named,
    percentage,
    window,
)
from pellucid_exporters.stored.alerts.seen_hubs import SeenHubs, first_minute, p95_of, slowest_of
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import CallRow, HubRow

OPEN: Final = 2
"""State of a circuit breaker that is open, as of `pellucid.circuit.state`."""

_SUBJECTS: Final = {
    semconv.DISCOVERY: ("Tool hub", semconv.PROVIDER_ID),
    semconv.DISPATCH: ("Tool", semconv.TOOL_NAME),
    semconv.INFERENCE: ("Model", semconv.REQUEST_MODEL),
}
_BURNS: Final = tuple(burn for burn in hubs.BURNS if burn.long <= SIX_HOURS)
"""Those of days need Prometheus."""

_CIRCUIT_WINDOW: Final = 2 * MINUTE
_EXPLAINED_BY: Final = {
    "ToolHubDown": ("ToolHubSilent",),
    "ToolHubFailing": ("ToolHubSilent", "ToolHubDown"),
    "ToolHubSlow": ("ToolHubSilent", "ToolHubDown"),
    "ToolHubCircuitOpen": ("ToolHubSilent", "ToolHubDown"),
    "DiscoveryCacheMissStorm": ("ToolHubSilent", "ToolHubDown", "ToolHubSlow"),
}
"""Alerts on the same hub that hold back others, as in `alertmanager.yml`."""


def hub_alerts(reader: Reader, now: int, context: Context) -> Iterator[Alert]:
    """Yield the alerts on hubs that fire."""
    rows = {row.provider_id: row for row in reader.hubs(now - round(SIX_HOURS * SECOND), now)}
    seen = SeenHubs(reader, now, context, rows)
    recent = window(reader, now, TEN_MINUTES, [semconv.DISCOVERY])
    alerts = [
        *_slow(seen),
        *silent(seen),
        *failing(seen, recent),
        *down(seen, recent),
        *_circuit_open(seen, window(reader, now, _CIRCUIT_WINDOW, list(_SUBJECTS))),
        *_catalog_changing(seen, window(reader, now, HOUR, [semconv.DISCOVERY])),
        *_cache_misses(seen, recent),
    ]
    yield from _unexplained(alerts)


def _unexplained(alerts: Sequence[Alert]) -> Iterator[Alert]:
    """Yield the alerts that no other alert on the same hub explains, as Alertmanager would send them."""
    names = {(alert.provider_id, alert.name) for alert in alerts}
    paged = {alert.provider_id for alert in alerts if alert.severity == "page"}
    for alert in alerts:
        explained = {(alert.provider_id, source) for source in _EXPLAINED_BY.get(alert.name, ())} & names
        is_ticket = alert.severity == "ticket" and alert.name != "ToolCatalogChanging"
        if alert.provider_id is None or not (explained or (is_ticket and alert.provider_id in paged)):
            yield alert


def _slow(seen: SeenHubs) -> Iterator[Alert]:
    thresholds = seen.context.thresholds
    for provider_id, row in seen.rows.items():
        if row.objective is None or not row.late:
            continue
        slowest, burning = slowest_of(row), False
        for burn in _BURNS:
            since = first_minute(seen.now, burn.short)
            if (share := _burning(seen, row, burn)) is None:
                continue
            burning = True
            yield fire(
                hubs.slow(seen.context, burn, seen.words(provider_id, seen.service(slowest), percentage(share))),
                thresholds,
                value=share,
                since=min(minute for minute, calls in row.late.items() if calls and minute >= since),
                exemplar=slowest,
                provider_id=provider_id,
            )
        streak = _streak(row)
        if not burning and streak >= thresholds.slow_streak:
            yield fire(
                hubs.slow_streak(seen.context, seen.words(provider_id, seen.service(slowest), str(streak))),
                thresholds,
                value=streak,
                since=min(row.late),
                exemplar=slowest,
                provider_id=provider_id,
            )


def _burning(seen: SeenHubs, row: HubRow, burn: Burn) -> float | None:
    """Return the share of late requests in the shorter window, if both windows exceed the limit."""
    thresholds = seen.context.thresholds
    limit = burn.limit(thresholds, row.budget(thresholds.slow_budget))
    late, requests = _late(row, first_minute(seen.now, burn.short))
    long_late, long_requests = _late(row, first_minute(seen.now, burn.long))
    if long_requests < thresholds.slow_min_round_trips or not requests:
        return None
    is_over = late / requests > limit and long_late / long_requests > limit
    return late / requests if is_over else None


def _streak(row: HubRow) -> int:
    """Return the number of the latest requests in a row that were late, by whole minutes."""
    streak = 0
    for minute in sorted(row.by_minute, reverse=True):
        requests = sum(row.by_minute[minute])
        if row.late.get(minute, 0) < requests:
            break
        streak += requests
    return streak


def _late(row: HubRow, since: int) -> tuple[int, int]:
    """Return the number of round trips over the objective, and of all."""
    late = sum(number for minute, number in row.late.items() if minute >= since)
    return late, sum(sum(counts) for minute, counts in row.by_minute.items() if minute >= since)


def _circuit_open(seen: SeenHubs, recent: Window) -> Iterator[Alert]:
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


def _catalog_changing(seen: SeenHubs, recent: Window) -> Iterator[Alert]:
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


def _cache_misses(seen: SeenHubs, recent: Window) -> Iterator[Alert]:
    """Yield hubs that need most of their objective, and are asked although there is a cache."""
    thresholds = seen.context.thresholds
    for (service, provider_id), rows in recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items():
        row = seen.rows.get(provider_id)
        p95 = p95_of(row, seen.now) if row is not None else None
        if row is None or row.objective is None or p95 is None:
            continue
        lookups = [row for row in rows if row.labels.get(semconv.DISCOVERY_CACHE) != "none" and not has_failed(row)]
        found = mostly(lookups, _is_miss, above=thresholds.cache_misses, least=thresholds.cache_misses_min)
        if found is not None and p95.seconds > row.objective * thresholds.cache_misses_near:
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
