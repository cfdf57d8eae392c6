"""Intervals and paired tests of means of few cases, by resampling, with a fixed seed.

All of them take one number for each case, the mean of its repeats: runs of one case resemble each other, and would make
intervals too narrow if they counted each for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from statistics import fmean
from typing import Final

RESAMPLES: Final = 5_000
"""Resamples of a bootstrap, and signs of a permutation test that cannot try all; fewer of many cases."""

_FEWEST: Final = 1_000
_DRAWN: Final = 1_000_000
"""Values that are drawn at most, unless these are fewer than the fewest resamples: a second's worth."""

EXACT: Final = 15
"""Most pairs for which a permutation test tries all signs."""

FEW: Final = 20
"""Cases below which an interval is a rough one."""

_SEED: Final = 20261127
_LEVEL: Final = 0.95
_ROUNDING: Final = 1e-12

TOLERANCE: Final = 1e-9
"""Rounding error of a mean: less is no difference, for gates and comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: Mean of the cases.
        low, high: Bounds of the 95 % interval, percentiles of a bootstrap over cases; None if it is unknown: there
            is one case, or all have the same value, of which resampling learns nothing.
        cases: Number of cases.
    """

    mean: float
    low: float | None
    high: float | None
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired comparison.

    Attributes:
        interval: Mean of the differences of the cases, and its interval.
        p: Two-sided p value of a sign-flip permutation test: how often a difference this large comes about if neither
            side is better.
        least_p: The least p value that so many cases can have.
    """

    interval: Interval
    p: float
    least_p: float


def reaches(value: float, least: float) -> bool:
    """Return whether a value is at least so high, up to rounding."""
    return value >= least - TOLERANCE


def interval_of(values: Sequence[float]) -> Interval:
    """Return the mean of cases and its interval.

    Raises:
        ValueError: there is no case.
    """
    if not values:
        raise ValueError("there is no case")
    mean, count = fmean(values), len(values)
    if max(values) - min(values) <= _ROUNDING:
        return Interval(mean=mean, low=None, high=None, cases=count)
    random = Random(_SEED)  # noqa: S311  (no secret: the same cases give the same interval)
    means = sorted(sum(random.choices(values, k=count)) / count for _ in range(_resamples(count)))
    tail = (1 - _LEVEL) / 2
    return Interval(mean=mean, low=_quantile(means, tail), high=_quantile(means, 1 - tail), cases=count)


def difference_of(differences: Sequence[float]) -> Difference:
    """Return the comparison of pairs, one difference for each case.

    Raises:
        ValueError: there is no case.
    """
    interval, count = interval_of(differences), len(differences)
    seen = abs(sum(differences)) - _ROUNDING * count
    if count <= EXACT:
        sums = [abs(sum(signed)) for signed in product(*((value, -value) for value in differences))]
        p = sum(each >= seen for each in sums) / len(sums)
    else:
        p = (1 + sum(abs(each) >= seen for each in _flipped(differences))) / (1 + _resamples(count))
    return Difference(interval=interval, p=p, least_p=max(2.0 ** (1 - count), 1 / (1 + _resamples(count))))


def _flipped(differences: Sequence[float]) -> Iterator[float]:
    random = Random(_SEED)  # noqa: S311
    total, count = sum(differences), len(differences)
    for _ in range(_resamples(count)):
        signs = f"{random.getrandbits(count):0{count}b}"
        yield total - 2 * sum(value for value, sign in zip(differences, signs, strict=True) if sign == "0")


def _resamples(cases: int) -> int:
    return max(_FEWEST, min(RESAMPLES, _DRAWN // cases))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
