"""Recording rules: how long round trips to tool hubs take, how many fail, how many take longer than the objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.rules.model import Context, Record
from pellucid_dashboards.rules.promql import LE, by, quantile, ratio, select, summed, total, where

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB: Final = by(semconv.PROVIDER_ID)
"""What the series of hubs are grouped by."""

SINGLE: Final = where(semconv.PROVIDER_KIND, "!=", "combined")
"""A combination's parts have series of their own: it would be counted, and paged, a second time."""

FAILED: Final = where(semconv.ERROR_TYPE, "!=")
SUCCEEDED: Final = where(semconv.ERROR_TYPE, "=")

ROUND_TRIPS: Final = (
    where(semconv.DISCOVERY_CACHE, "=~", "miss", "none"),
    where(semconv.ERROR_TYPE, "!~", "backoff", "circuit_open"),  # nobody was asked
)

WINDOWS: Final = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21600.0}

OBJECTIVE_BUCKET: Final = "pellucid:discovery_objective:bucket"
"""The objective in seconds, labelled by the bucket (`le`) of the first bound that is not below it."""

ERROR_RATIO: Final = "pellucid:discovery_errors:ratio_rate5m"
"""The share of round trips that failed."""


def duration_of(percent: int) -> str:
    """Return the name of the series of a quantile of round trips over 5 min, in seconds."""
    return f"pellucid:discovery_duration_seconds:p{percent}_5m"


def discoveries(window: str) -> str:
    """Return the name of the series of discoveries of any kind within 5 or 10 min, by cache and error too."""
    return f"pellucid:discoveries:increase{window}"


def over_objective(window: str) -> str:
    """Return the name of the series of the share of round trips that took longer than the hub's objective."""
    return f"pellucid:discovery_over_objective:ratio_rate{window}"


def round_trips(window: str) -> str:
    """Return the name of the series of the number of round trips within a window."""
    return f"pellucid:discovery_round_trips:increase{window}"


def native(window: str) -> str:
    """Return the name of the series of round trips within a window as native histograms, of servers that have those."""
    return f"pellucid:discovery_duration_seconds:increase{window}"


def discovery_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules, those that others read first."""
    five, ten = context.window(300), context.window(600)
    measured = semconv.DISCOVERY_DURATION
    for percent in (50, 95, 99):
        expression = quantile(percent / 100, measured, *ROUND_TRIPS, SINGLE, window=five, labels=HUB)
        yield Record(name=duration_of(percent), expression=expression)
    kinds = by(semconv.PROVIDER_ID, semconv.DISCOVERY_CACHE, semconv.ERROR_TYPE)
    for name, window in (("5m", five), ("10m", ten)):
        yield Record(name=discoveries(name), expression=total(measured, SINGLE, window=window, labels=kinds))
    failed = summed(discoveries("5m"), HUB, *ROUND_TRIPS, FAILED)
    asked = summed(discoveries("5m"), HUB, *ROUND_TRIPS)
    yield Record(name=ERROR_RATIO, expression=ratio(failed, asked, HUB))
    yield Record(name=OBJECTIVE_BUCKET, expression=_objective_bucket())
    for name, seconds in WINDOWS.items():
        yield from _against_objective(name, context.window(seconds))


def _against_objective(name: str, window: str) -> Iterator[Record]:
    histogram = select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE)
    count = select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE, suffix="_count")
    counted = f"sum by ({HUB}) (increase({count}[{window}]))"
    yield Record(name=native(name), expression=f"sum by ({HUB}) (increase({histogram}[{window}]))")
    yield Record(name=round_trips(name), expression=f"histogram_count({native(name)})\nor {counted}")
    yield Record(name=over_objective(name), expression=_over_objective(name, window, counted))


def _bounds() -> list[tuple[float, float]]:
    """Return each bound of the histogram's buckets with the one below."""
    bounds = semconv.DISCOVERY_DURATION.buckets
    return list(zip((0.0, *bounds), bounds, strict=False))


def _spellings(bound: float) -> list[str]:
    """Return how `le` may write a bound: Prometheus and OpenMetrics say 1.0, older formats and collectors say 1."""
    return [f"{bound:g}", f"{bound:.1f}"] if bound.is_integer() else [f"{bound:g}"]


def _objective_bucket() -> str:
    """Return which bucket holds a hub's objective.

    PromQL cannot compare `le`, which is a label, with a number: so each bound is a branch, for the objectives that are
    above the bound before it and not above this one.
    """
    objective = f"max by ({HUB}) ({select(semconv.DISCOVERY_OBJECTIVE)})"
    branches = [
        f'label_replace({objective} > {low:g} <= {high:g}, "{LE}", "{spelling}", "", "")'
        for low, high in _bounds()
        for spelling in _spellings(high)
    ]
    last = semconv.DISCOVERY_DURATION.buckets[-1]
    branches.append(f'label_replace({objective} > {last:g}, "{LE}", "+Inf", "", "")')
    return "\nor ".join(branches)


def _over_objective(name: str, window: str, counted: str) -> str:
    """Return the share of round trips above the bucket of the objective.

    `histogram_fraction` takes numbers only, so each bound is a branch here too, for the hubs whose objective it is.
    """
    of_native = "\n  or ".join(
        f"(1 - histogram_fraction(0, {high:g}, {native(name)})"
        f' and on ({HUB}) {OBJECTIVE_BUCKET}{{{LE}="{_spellings(high)[0]}"}})'
        for _, high in _bounds()
    )
    buckets = select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE, suffix="_bucket")
    within = f"sum by ({HUB}) (increase({buckets}[{window}]) and on ({HUB}, {LE}) {OBJECTIVE_BUCKET})"
    of_classic = f"1 - {within}\n    / ({counted} > 0)"
    return f"clamp_min(\n  {of_native}\n  or {of_classic},\n  0\n) >= 0"  # NaN, of no traffic, is not
