"""Conversion of exponential histograms to Prometheus native histograms.

Both have buckets whose bounds are powers of 2 ** (2 ** -scale). OpenTelemetry numbers a bucket by its lower bound,
Prometheus by its upper bound and writes only the buckets that hold something, as spans of neighbours and differences.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from prometheus_client.samples import BucketSpan, NativeHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint
    from prometheus_client.samples import Exemplar

MIN_SCALE: Final = -4
MAX_SCALE: Final = 8


@dataclass(frozen=True, slots=True)
class Native:
    """Native buckets of one series.

    Attributes:
        positive, negative: Measurements by OpenTelemetry's bucket index.
    """

    scale: int
    zero_count: int
    zero_threshold: float
    positive: Mapping[int, int]
    negative: Mapping[int, int]
    count: int
    total: float

    @classmethod
    def of(cls, point: ExponentialHistogramDataPoint) -> Native:
        """Convert a point to the finest scale that Prometheus supports.

        Raises:
            ValueError: the scale is too coarse, for example because a view allows very few buckets.
        """
        if point.scale < MIN_SCALE:
            raise ValueError(f"an exponential histogram of scale {point.scale} has no counterpart in Prometheus")
        native = cls(
            scale=point.scale,
            zero_count=point.zero_count,
            zero_threshold=float(getattr(point, "zero_threshold", 0.0)),
            positive=_by_index(point.positive),
            negative=_by_index(point.negative),
            count=point.count,
            total=float(point.sum),
        )
        return native.coarser(min(point.scale, MAX_SCALE))

    def coarser(self, scale: int) -> Native:
        """Return a copy at an equal or coarser scale, with buckets merged."""
        steps = self.scale - scale
        if steps == 0:
            return self
        return replace(
            self, scale=scale, positive=_joined(self.positive, steps), negative=_joined(self.negative, steps)
        )

    def merged(self, other: Native) -> Native:
        """Return the sum of both."""
        scale = min(self.scale, other.scale)
        mine, its = self.coarser(scale), other.coarser(scale)
        return Native(
            scale=scale,
            zero_count=mine.zero_count + its.zero_count,
            zero_threshold=max(mine.zero_threshold, its.zero_threshold),
            positive=Counter(mine.positive) + Counter(its.positive),
            negative=Counter(mine.negative) + Counter(its.negative),
            count=mine.count + its.count,
            total=mine.total + its.total,
        )

    def to_prometheus(self, exemplars: Sequence[Exemplar] | None = None) -> NativeHistogram:
        """Convert to the representation of `prometheus_client`."""
        positive_spans, positive_deltas = _spans(self.positive)
        negative_spans, negative_deltas = _spans(self.negative)
        return NativeHistogram(
            count_value=self.count,
            sum_value=self.total,
            schema=self.scale,
            zero_threshold=self.zero_threshold,
            zero_count=self.zero_count,
            pos_spans=positive_spans,
            pos_deltas=positive_deltas,
            neg_spans=negative_spans,
            neg_deltas=negative_deltas,
            nh_exemplars=exemplars,
        )


def _by_index(buckets: Buckets) -> dict[int, int]:
    return {index: count for index, count in enumerate(buckets.bucket_counts, buckets.offset) if count}


def _joined(buckets: Mapping[int, int], steps: int) -> dict[int, int]:
    merged: Counter[int] = Counter()
    for index, count in buckets.items():
        merged[index >> steps] += count
    return merged


def _spans(buckets: Mapping[int, int]) -> tuple[list[BucketSpan], list[int]]:
    spans: list[BucketSpan] = []
    deltas: list[int] = []
    offset, length, following, last = 0, 0, 0, 0
    for index in sorted(buckets):
        upper, count = index + 1, buckets[index]
        if length and upper == following:
            length += 1
        else:
            if length:
                spans.append(BucketSpan(offset, length))
            offset, length = upper - following, 1
        deltas.append(count - last)
        following, last = upper + 1, count
    if length:
        spans.append(BucketSpan(offset, length))
    return spans, deltas
