"""Recording rules of requests to tool hubs: duration, failures, share over the objective; and of discoveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.promql import BROKEN_REQUESTS, by, where
from pellucid_dashboards.rules.model import Record
from pellucid_dashboards.rules.queries import quantile, ratio, summed, total
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB: Final = by(semconv.PROVIDER_ID)
"""Labels by which the series of hubs are grouped."""

SINGLE: Final = where(semconv.PROVIDER_KIND, "!=", "combined")
"""Combined providers are excluded: their parts have their own series, and would be counted and alerted on twice."""

WINDOWS: Final = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21600.0, "1d": 86400.0}
"""Windows of burn rates and streaks, in seconds."""

ERROR_RATIO: Final = "pellucid:discovery_errors:ratio_rate5m"
"""Series of the share of failed requests."""


def duration_of(percent: int) -> str:
    """Return the name of the series of a quantile of requests over 5 min, in seconds."""
    return f"pellucid:discovery_duration_seconds:p{percent}_5m"


def discoveries(window: str) -> str:
    """Return the name of the series of discoveries of any kind within 5 or 10 min, by cache and error too."""
    return f"pellucid:discoveries:increase{window}"


def hub_requests(window: str) -> str:
    """Return the name of the series of requests within 5 min, 10 min or 1 h, by outcome."""
    return f"pellucid:hub_requests:increase{window}"


def over_objective(window: str) -> str:
    """Return the name of the series of the share of requests that took longer than the hub's objective."""
    return f"pellucid:discovery_over_objective:ratio_rate{window}"


def round_trips(window: str) -> str:
    """Return the name of the series of the number of requests within a window."""
    return f"pellucid:discovery_round_trips:increase{window}"


def discovery_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules, with those that others read first."""
    five, ten = context.window(300), context.window(600)
    measured = semconv.HUB_LISTING_DURATION
    for percent in (50, 95, 99):
        expression = quantile(percent / 100, measured, window=five, labels=HUB)
        yield Record(name=duration_of(percent), expression=expression)
    kinds = by(semconv.PROVIDER_ID, semconv.DISCOVERY_CACHE, semconv.ERROR_TYPE)
    for name, window in (("5m", five), ("10m", ten)):
        waits = total(semconv.DISCOVERY_DURATION, SINGLE, window=window, labels=kinds)
        yield Record(name=discoveries(name), expression=waits)
    outcomes = by(semconv.PROVIDER_ID, semconv.OUTCOME)
    for name, window in (("5m", five), ("10m", ten), ("1h", context.window(3600))):
        yield Record(name=hub_requests(name), expression=total(measured, window=window, labels=outcomes))
    for name, seconds in WINDOWS.items():
        window = context.window(seconds)
        late = total(semconv.HUB_OVER_OBJECTIVE, window=window, labels=HUB)
        yield Record(name=round_trips(name), expression=total(measured, window=window, labels=HUB))
        yield Record(name=over_objective(name), expression=f"{late}\n/ ({round_trips(name)} > 0)")
    failed = summed(hub_requests("5m"), HUB, BROKEN_REQUESTS)
    yield Record(name=ERROR_RATIO, expression=ratio(failed, round_trips("5m"), HUB))
