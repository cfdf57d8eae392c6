"""Intervals and paired tests, against published and enumerated values."""

from __future__ import annotations

from itertools import product
from math import sqrt
from random import Random
from statistics import fmean, pstdev

import pytest

from pellucid_experiments.statistics import difference_of, interval_of

DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Heights of crossed less self-fertilized maize, in eighths of an inch: R. A. Fisher, The Design of Experiments."""

MICE = [94.0, 197.0, 16.0, 38.0, 99.0, 141.0, 23.0]
"""Days of survival of treated mice: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993."""


def test_the_permutation_test_finds_what_fisher_found() -> None:
    """In 863 of 32,768 arrangements the sum is 314 or more: p = 2 x 863 / 32,768."""
    assert sum(DARWIN) == 314
    assert difference_of(DARWIN).p == pytest.approx(2 * 863 / 32_768)


def test_a_sampled_permutation_test_is_near_the_exact_one() -> None:
    """With a pair without a difference more, which changes no exact p value, signs are drawn."""
    assert difference_of([*DARWIN, 0.0]).p == pytest.approx(2 * 863 / 32_768, abs=0.01)


def test_an_interval_is_that_of_all_resamples() -> None:
    """Of four values, of which all 256 resamples can be made."""
    values = [0.0, 1.0, 1.0, 0.5]
    means = sorted(fmean(each) for each in product(values, repeat=4))
    found = interval_of(values)
    assert found.low is not None
    assert found.high is not None
    # 2.5 % of the resamples have means up to these; a step between means is 1/8.
    assert found.low == pytest.approx(means[int(0.025 * 255)], abs=0.125)
    assert found.high == pytest.approx(means[int(0.975 * 255)], abs=0.125)
    assert found.mean == 0.625


def test_an_interval_has_the_width_that_theory_says() -> None:
    """The bootstrap's standard error of a mean is that of the population: 23.4 for the mice, as published, and 0.95."""
    error = pstdev(MICE) / sqrt(len(MICE))
    assert error == pytest.approx(23.36, abs=0.01)
    random = Random(7)
    values = [random.gauss(10, 2) for _ in range(200)]
    found = interval_of(values)
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * pstdev(values) / sqrt(200)
    assert found.mean - found.low == pytest.approx(half, rel=0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    mice = interval_of(MICE)
    assert mice.low is not None
    assert mice.high is not None
    assert (mice.high - mice.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    """Of 100 sets of 40 cases with a pass rate of 0.7, about 95 % of the intervals hold 0.7."""
    random = Random(11)
    held = 0
    for _ in range(100):
        found = interval_of([float(random.random() < 0.7) for _ in range(40)])
        held += found.low is not None and found.high is not None and found.low <= 0.7 <= found.high
    assert 0.88 <= held / 100 <= 0.99


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0, 1.0], [0.1 + 0.2, 0.3]])
def test_what_resampling_cannot_tell_has_no_interval(values: list[float]) -> None:
    """One case, or cases that are all alike."""
    found = interval_of(values)
    assert (found.low, found.high, found.cases) == (None, None, len(values))


def test_few_cases_cannot_have_a_small_p_value() -> None:
    """Five cases that are all better have p = 2 / 32, and that is the least."""
    found = difference_of([0.2, 0.4, 0.1, 1.0, 0.3])
    assert found.p == found.least_p == 2 / 32


def test_the_same_cases_give_the_same_numbers() -> None:
    """The seed is fixed: a gate of CI does not flicker."""
    assert interval_of(MICE) == interval_of(MICE)
    assert difference_of(MICE * 3) == difference_of(MICE * 3)


def test_no_difference_is_no_evidence() -> None:
    """Pairs that are all equal have p = 1, of few and of many cases."""
    assert difference_of([0.0] * 4).p == 1.0
    assert difference_of([0.0] * 40).p == 1.0


def test_without_cases_there_is_no_mean() -> None:
    """It is an error and not a number."""
    with pytest.raises(ValueError, match="there is no case"):
        interval_of([])
