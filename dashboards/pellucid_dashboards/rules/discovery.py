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

LONGER: Final = {"30m": 1800.0, "1h": 3600.0, "6h": 21600.0}

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


OVER: Final = "pellucid:discovery_over_objective:increase5m"
"""The number of round trips within 5 min that took longer than the hub's objective."""


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
    yield Record(name=OBJECTIVE_BUCKET, expression=_objective_bucket(five))
    yield from _against_objective(context)


def _against_objective(context: Context) -> Iterator[Record]:
    """Yield how many round trips took longer than the objective.

    What the buckets say is read for 5 min only, and longer windows add up what was recorded: that is the same share,
    and histograms of 6 h need not be read at each evaluation.
    """
    five = context.window(300)
    yield Record(name=round_trips("5m"), expression=_round_trips(five))
    yield Record(name=over_objective("5m"), expression=_over_objective(five))
    yield Record(name=OVER, expression=f"{over_objective('5m')} * on ({HUB}) {round_trips('5m')}")
    for name, seconds in LONGER.items():
        window = context.window(seconds)
        yield Record(name=round_trips(name), expression=_round_trips(window))
        expression = f"sum_over_time({OVER}[{window}])\n/ (sum_over_time({round_trips('5m')}[{window}]) > 0)"
        yield Record(name=over_objective(name), expression=expression)


def _counted(window: str) -> str:
    count = select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE, suffix="_count")
    return f"sum by ({HUB}) (increase({count}[{window}]))"


def _native(window: str) -> str:
    """Return round trips as native histograms; not recorded: Prometheus 2.42 discards many for rounding errors."""
    return f"sum by ({HUB}) (increase({select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE)}[{window}]))"


def _round_trips(window: str) -> str:
    return f"histogram_count({_native(window)})\nor {_counted(window)}"


def _bounds() -> list[tuple[float, float]]:
    """Return each bound of the histogram's buckets with the one below."""
    bounds = semconv.DISCOVERY_DURATION.buckets
    return list(zip((0.0, *bounds), bounds, strict=False))


def _spellings(bound: float) -> list[str]:
    """Return how `le` may write a bound: Prometheus and OpenMetrics say 1.0, older formats and collectors say 1."""
    return [f"{bound:g}", f"{bound:.1f}"] if bound.is_integer() else [f"{bound:g}"]


def _objective_bucket(window: str) -> str:
    """Return which bucket holds a hub's objective.

    PromQL cannot compare `le`, which is a label, with a number: so each bound is a branch, for the objectives that are
    above the bound before it and not above this one. A scrape that failed does not take the objective away.
    """
    objective = f"max by ({HUB}) (last_over_time({select(semconv.DISCOVERY_OBJECTIVE)}[{window}]))"
    branches = [
        f'label_replace({objective} > {low:g} <= {high:g}, "{LE}", "{spelling}", "", "")'
        for low, high in _bounds()
        for spelling in _spellings(high)
    ]
    last = semconv.DISCOVERY_DURATION.buckets[-1]
    branches.append(f'label_replace({objective} > {last:g}, "{LE}", "+Inf", "", "")')
    return "\nor ".join(branches)


def _over_objective(window: str) -> str:
    """Return the share of round trips above the bucket of the objective.

    `histogram_fraction` takes numbers only, so each bound is a branch here too, for the hubs whose objective it is.
    """
    of_native = "\n  or ".join(
        f"(1 - histogram_fraction(0, {high:g}, {_native(window)})\n"
        f'    and on ({HUB}) {OBJECTIVE_BUCKET}{{{LE}="{_spellings(high)[0]}"}})'
        for _, high in _bounds()
    )
    buckets = select(semconv.DISCOVERY_DURATION, *ROUND_TRIPS, SINGLE, suffix="_bucket")
    within = f"sum by ({HUB}) (increase({buckets}[{window}]) and on ({HUB}, {LE}) {OBJECTIVE_BUCKET})"
    of_classic = f"1 - {within}\n    / ({_counted(window)} > 0)"
    return f"clamp_min(\n  {of_native}\n  or {of_classic},\n  0\n) >= 0"  # NaN, of no traffic, is not
