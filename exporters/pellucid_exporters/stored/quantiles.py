"""Quantiles: of durations, and estimated from histogram buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(share: float, ordered: Sequence[float]) -> float | None:
    """Return the smallest of some ascending values that at least `share` of them do not exceed (nearest rank).

    `None` without values.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def quantile(share: float, bounds: Sequence[float], buckets: Sequence[int]) -> float | None:
    """Return a quantile in the unit of the bounds, interpolated within its bucket; `None` without measurements.

    A quantile in the last bucket, which has no upper bound, is the largest bound, as in `histogram_quantile` of
    Prometheus.
    """
    total = sum(buckets)
    if not total or not bounds:
        return None
    rank, below = share * total, 0
    for index, number in enumerate(buckets[: len(bounds)]):
        if number and below + number >= rank:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * max(0.0, rank - below) / number
        below += number
    return bounds[-1]


def summed(columns: Sequence[Sequence[int]], length: int) -> list[int]:
    """Return the sum of several histograms of `length` buckets."""
    totals = [0] * length
    for column in columns:
        for index, number in enumerate(column):
            totals[index] += number
    return totals
