"""Aggregation of many measurements of a series at once, into the SDK's aggregations.

Each function takes an aggregation of the SDK and amounts, oldest first, and leaves it as `aggregate` would for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from math import floor, frexp, ldexp, log
from sys import float_info
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context

from pellucid_exporters.sdk_internals import (
    Measurement,
    _ExplicitBucketHistogramAggregation,
    _ExponentialBucketHistogramAggregation,
    _LastValueAggregation,
    _SumAggregation,
)

if TYPE_CHECKING:
    from pellucid_exporters.sdk_internals import _Aggregation, _Instrument

_POWER_OF_TWO: Final = 0.5
"""Mantissa of powers of two, as `frexp` returns it."""


def _add_to_sum(aggregation: Any, amounts: Sequence[float], _: _Instrument) -> None:
    with aggregation._lock:
        value = 0 if aggregation._value is None else aggregation._value
        for amount in amounts:
            value += amount
        aggregation._value = value


def _set_last_value(aggregation: Any, amounts: Sequence[float], _: _Instrument) -> None:
    with aggregation._lock:
        aggregation._value = amounts[-1]


def _count_in_explicit_buckets(aggregation: Any, amounts: Sequence[float], _: _Instrument) -> None:
    with aggregation._lock:
        if aggregation._value is None:
            aggregation._value = aggregation._get_empty_bucket_counts()
        counts, boundaries, total = aggregation._value, aggregation._boundaries, aggregation._sum
        for amount in amounts:
            total += amount
            counts[bisect_left(boundaries, amount)] += 1
        aggregation._sum = total
        _set_range(aggregation, amounts)


def _count_in_exponential_buckets(aggregation: Any, amounts: Sequence[float], instrument: _Instrument) -> None:
    """Count what falls into the present range of buckets; the SDK adds the others, which extend or rescale it."""
    begin = 0
    while (end := _count_in_range(aggregation, amounts, begin)) < len(amounts):
        aggregation.aggregate(Measurement(amounts[end], 0, instrument, Context()), False)
        begin = end + 1


def _count_in_range(aggregation: Any, amounts: Sequence[float], begin: int) -> int:
    """Count amounts from `begin` on and return the index of the first one that is out of range."""
    with aggregation._lock:
        buckets = aggregation._value_positive
        if not buckets:  # none since the last collection
            return begin
        counts, base, total = buckets.counts, buckets.index_base, aggregation._sum
        first, last, size = buckets.index_start, buckets.index_end, len(counts)
        index_of = index_function(aggregation._mapping.scale)
        end = begin
        for amount in amounts[begin:] if begin else amounts:
            if amount <= float_info.min or not first <= (index := index_of(amount)) <= last:
                break
            counts[index - base if index >= base else index - base + size] += 1
            total += amount
            end += 1
        if end > begin:
            aggregation._sum = total
            aggregation._count += end - begin
            _set_range(aggregation, amounts[begin:end])
        return end


@cache
def index_function(scale: int) -> Callable[[float], int]:
    """Return the function that maps a normal positive number to its bucket, with the results of the SDK's mappings."""
    factor = ldexp(1 / log(2), scale)

    def by_logarithm(amount: float) -> int:
        mantissa, exponent = frexp(amount)
        if mantissa == _POWER_OF_TWO:
            return (exponent - 1 << scale) - 1
        return floor(log(amount) * factor)

    def by_exponent(amount: float) -> int:
        mantissa, exponent = frexp(amount)
        return exponent - (2 if mantissa == _POWER_OF_TWO else 1) >> -scale

    return by_logarithm if scale > 0 else by_exponent


def _set_range(aggregation: Any, amounts: Sequence[float]) -> None:
    if aggregation._record_min_max:
        aggregation._min = min(aggregation._min, *amounts)
        aggregation._max = max(aggregation._max, *amounts)


AGGREGATORS: Final[dict[type[_Aggregation[Any]], Callable[[Any, Sequence[float], _Instrument], None]]] = {
    _SumAggregation: _add_to_sum,
    _LastValueAggregation: _set_last_value,
    _ExplicitBucketHistogramAggregation: _count_in_explicit_buckets,
    _ExponentialBucketHistogramAggregation: _count_in_exponential_buckets,
}
