"""Quantiles of durations: exact where they are known, or estimated from ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

POINTS: Final = 100
"""Maximum number of points that stand for the durations of a sample."""


class Sample(NamedTuple):
    """Durations of some requests, in seconds.

    Attributes:
        least, most: The smallest and the largest of them, or bounds of these; `most` is infinite if it is unknown.
        calls: Number of requests.
        durations: All durations, or none.
    """

    least: float
    most: float
    calls: int
    durations: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of durations.

    Attributes:
        seconds: The value.
        mark: Empty if it is exact, `≈` if it is estimated, `>` if only a lower bound is known.
    """

    seconds: float
    mark: str = ""


def percentile(share: float, ordered: Sequence[float]) -> float | None:
    """Return the smallest of some ascending values that at least `share` of them do not exceed (nearest rank).

    `None` without values.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def quantiles(samples: Iterable[Sample], shares: Sequence[float]) -> list[Quantile | None]:
    """Return quantiles: exact if all durations are known, else estimated, and never beyond the largest duration."""
    known: list[float] = []
    ranges: list[Sample] = []
    for sample in samples:
        if len(sample.durations) == sample.calls:
            known += sample.durations
        else:
            ranges.append(sample)
    if not ranges:
        ordered = sorted(known)
        values = [percentile(share, ordered) for share in shares]
        return [Quantile(value) if value is not None else None for value in values]
    points = sorted([*((value, 1.0) for value in known), *(point for sample in ranges for point in _points(sample))])
    limit = min((sample.least for sample in ranges if math.isinf(sample.most)), default=math.inf)
    return [_estimate(points, share, limit) for share in shares]


def _points(sample: Sample) -> Iterator[tuple[float, float]]:
    """Yield points that stand for the durations of a sample, each with its weight."""
    number = min(sample.calls, POINTS)
    step = (sample.most - sample.least) / number if math.isfinite(sample.most) else 0.0
    for index in range(number):
        yield sample.least + (index + 0.5) * step, sample.calls / number


def _estimate(points: Sequence[tuple[float, float]], share: float, limit: float) -> Quantile:
    rank, total = share * sum(weight for _, weight in points), 0.0
    value = points[-1][0]
    for point, weight in points:
        total += weight
        if total >= rank - 1e-9:
            value = point
            break
    return Quantile(min(value, limit), ">" if value >= limit else "≈")


def summed(columns: Sequence[Sequence[int]], length: int) -> list[int]:
    """Return the sum of several histograms of `length` buckets."""
    totals = [0] * length
    for column in columns:
        for index, number in enumerate(column):
            totals[index] += number
    return totals
