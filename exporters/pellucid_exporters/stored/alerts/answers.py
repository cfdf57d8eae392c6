"""Conditions of the alerts on hubs that do not answer, or answer with errors."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pellucid import semconv
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import FIVE_MINUTES, MINUTE, TEN_MINUTES
from pellucid_exporters.alerting.outcomes import BROKEN, COMBINED
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.counts import SECOND, Window, exemplar, has_failed, percentage
from pellucid_exporters.stored.alerts.seen_hubs import SeenHubs, slowest_of
from pellucid_exporters.stored.rows import CallRow, HubRow, SpanRow


def silent(seen: SeenHubs) -> Iterator[Alert]:
    """Yield hubs that have not answered; requests that ended are known by their minute."""
    thresholds = seen.context.thresholds
    oldest: dict[str, SpanRow] = {}
    for each in seen.reader.in_flight():
        if each.phase == semconv.DISCOVERY and each.attributes.get(semconv.PROVIDER_KIND) != COMBINED:
            oldest.setdefault(str(each.attributes.get(semconv.PROVIDER_ID)), each)
    recent = {row.provider_id for row in seen.recent(FIVE_MINUTES) if row.calls}
    for provider_id in sorted({*oldest, *recent}):
        span, row = oldest.get(provider_id), seen.rows.get(provider_id)
        unanswered = row.unanswered_since if row is not None else None
        # The silence began within the minute of its first request.
        starts = [unanswered + round(MINUTE * SECOND)] if unanswered is not None else []
        since = min([*starts, *([span.start] if span is not None else [])], default=seen.now)
        age = (seen.now - since) / SECOND
        multiple = (seen.objective(provider_id) or 0.0) * thresholds.hanging_objectives
        if age <= max(multiple, thresholds.hanging_after):
            continue
        shown = (span.run_id, span.span_id) if span is not None else slowest_of(row)
        requests = (_number_since(row, unanswered) if unanswered is not None else 0) + (span is not None)
        words = seen.words(
            provider_id,
            seen.service(shown),
            text.seconds(age),
            since=time.strftime("%H:%M UTC", time.gmtime(since / SECOND)),
            requests=str(requests),
        )
        yield fire(
            hubs.silent(seen.context, words),
            thresholds,
            value=age,
            since=since,
            exemplar=shown,
            provider_id=provider_id,
        )


def _number_since(row: HubRow | None, since: int) -> int:
    """Return the number of requests since a minute."""
    return sum(sum(counts) for minute, counts in row.by_minute.items() if minute >= since) if row is not None else 0


def _failed_in(recent: Window, provider_id: str) -> list[CallRow]:
    """Return the failed discoveries of a provider."""
    discoveries = recent.by(semconv.DISCOVERY, semconv.PROVIDER_ID).items()
    return [row for (_, name), rows in discoveries if name == provider_id for row in rows if has_failed(row)]


def _broken(row: HubRow) -> int:
    return sum(row.outcomes.get(outcome, 0) for outcome in BROKEN)


def failing(seen: SeenHubs, recent: Window) -> Iterator[Alert]:
    """Yield hubs of whose requests too many failed."""
    thresholds = seen.context.thresholds
    for row in seen.recent(FIVE_MINUTES):
        broken = _broken(row)
        if broken < thresholds.hub_failing_min or broken / row.calls <= thresholds.hub_failing:
            continue
        shown = exemplar(_failed_in(recent, row.provider_id)) or slowest_of(row)
        words = seen.words(row.provider_id, seen.service(shown), percentage(broken / row.calls))
        yield fire(
            hubs.failing(seen.context, words),
            thresholds,
            value=broken / row.calls,
            since=min(row.by_minute),
            exemplar=shown,
            provider_id=row.provider_id,
        )


def down(seen: SeenHubs, recent: Window) -> Iterator[Alert]:
    """Yield hubs without a success for long; without any, since the first of their requests in the store."""
    thresholds = seen.context.thresholds
    for row in seen.recent(TEN_MINUTES):
        broken, hub = _broken(row), seen.rows[row.provider_id]
        # A success is known by its minute only; it may have been at the end of it.
        last = hub.last_success if hub.last_success is not None else min(hub.by_minute, default=seen.now)
        is_recent = seen.now - last - MINUTE * SECOND < thresholds.hub_down_after * SECOND
        if is_recent or broken < thresholds.hub_down_min:
            continue
        shown = exemplar(_failed_in(recent, row.provider_id)) or slowest_of(row)
        yield fire(
            hubs.down(seen.context, seen.words(row.provider_id, seen.service(shown), str(broken))),
            thresholds,
            value=broken,
            since=min(row.by_minute),
            exemplar=shown,
            provider_id=row.provider_id,
        )
