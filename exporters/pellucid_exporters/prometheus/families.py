"""Conversion of OpenTelemetry metrics to Prometheus metric families: names, labels, buckets, exemplars."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from pellucid.semconv.servers import ALL_METRICS
from pellucid_exporters.prometheus.naming import Labels, encodable, to_labels, to_name
from pellucid_exporters.prometheus.native_histograms import Native
from pellucid_exporters.sampling.exemplars import ExemplarBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

RESERVED_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
    "info": ("", "_info"),
}
"""Suffixes of sample names that a family reserves, by its type."""

CLASSIC_BOUNDS: Final = tuple(digit * 10.0**power for power in range(-3, 7) for digit in (1, 2.5, 5))
"""Buckets for exponential histograms that are not in `semconv`; fixed, so that the set of series is stable."""

_SEMCONV_BOUNDS: Final = {metric.name: metric.buckets for metric in ALL_METRICS if metric.buckets}


@dataclass(frozen=True, slots=True)
class NumberSeries:
    """One counter or gauge with its labels.

    Attributes:
        adds: Whether series with the same labels are added; else the later one wins.
    """

    value: float
    adds: bool
    created: float
    exemplars: Mapping[float, Exemplar]

    def merged(self, other: NumberSeries) -> NumberSeries:
        """Merge with a series of the same labels."""
        created = min(self.created, other.created)
        return replace(other, value=self.value + other.value, created=created) if self.adds else other

    def samples(self, family: Family, labels: Labels, *, complete: bool) -> Iterator[Sample]:
        """Yield the sample and, if complete, its creation time."""
        if family.type != "counter":
            yield Sample(family.name, dict(labels), self.value)
            return
        yield Sample(f"{family.name}_total", dict(labels), self.value, None, self.exemplars.get(math.inf))
        if complete:
            yield Sample(f"{family.name}_created", dict(labels), self.created)


@dataclass(frozen=True, slots=True)
class HistogramSeries:
    """One histogram with its labels.

    Attributes:
        bounds: Inclusive upper bounds, the last one infinite.
        counts: Measurements in each bucket, not cumulative.
        created: Time of the first measurement, in seconds since the epoch.
        native: Native histogram of the same measurements.
        has_buckets: Whether the classic buckets are shown; otherwise texts have only the count and the sum.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    created: float
    exemplars: Mapping[float, Exemplar]
    native: Native | None = None
    has_buckets: bool = True

    def merged(self, other: HistogramSeries) -> HistogramSeries:
        """Return the sum of both."""
        if self.bounds != other.bounds:
            raise ValueError("two histograms of one name and labels have different buckets")
        counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        created = min(self.created, other.created)
        merged = replace(other, counts=counts, total=self.total + other.total, created=created)
        return merged if self.native is None else merged.with_native(self.native)

    def with_native(self, native: Native) -> HistogramSeries:
        """Return a copy with native buckets in addition to the classic ones."""
        return replace(self, native=native if self.native is None else self.native.merged(native))

    def samples(self, family: Family, labels: Labels, *, complete: bool) -> Iterator[Sample]:
        """Yield the cumulative buckets, and count and sum where OpenMetrics allows them.

        If complete, as only protobuf has it: count and sum always, the native buckets, and since when it counts.
        """
        if not self.has_buckets and not (complete and self.native is None):
            yield from self._without_buckets(family, labels, complete=complete)
            return
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            seen += count
            named = {**dict(labels), "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]  # a function without types
            yield Sample(f"{family.name}_bucket", named, seen, None, self.exemplars.get(bound))
        if complete or self.bounds[0] >= 0:
            yield Sample(f"{family.name}_count", dict(labels), seen)
            yield Sample(f"{family.name}_sum", dict(labels), self.total)
        if complete:
            yield Sample(f"{family.name}_created", dict(labels), self.created)
        if complete and self.native is not None:
            yield Sample(family.name, dict(labels), 0.0, native_histogram=self.native.to_prometheus())

    def _without_buckets(self, family: Family, labels: Labels, *, complete: bool) -> Iterator[Sample]:
        named = dict(labels)  # of all samples: none of their readers changes it
        exemplars = sorted(self.exemplars.values(), key=lambda exemplar: float(exemplar.timestamp or 0))
        if complete and self.native is not None:
            native = self.native.to_prometheus(exemplars)
            yield Sample(family.name, named, 0.0, native_histogram=native)
            yield Sample(f"{family.name}_created", named, self.created)
            return
        count, latest = sum(self.counts), exemplars[-1] if exemplars else None
        yield Sample(f"{family.name}_bucket", {**named, "le": "+Inf"}, count, None, latest)
        if self.bounds[0] >= 0:
            yield Sample(f"{family.name}_count", named, count)
            yield Sample(f"{family.name}_sum", named, self.total)


Series: TypeAlias = NumberSeries | HistogramSeries


class ExemplarMemory:
    """Cache of the latest exemplar of each bucket, since the SDK returns each one only once.

    Scrapers ask every few seconds; without this an exemplar would be there in one scrape only. Exemplars of traces that
    `is_dropped` says were dropped are left out, also those that were shown before; those that `is_undecided` says may
    still be dropped wait.
    """

    def __init__(
        self,
        ttl: float,
        clock: Callable[[], float] = time.time,
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._ttl = ttl
        self._clock = clock
        self._is_dropped = is_dropped
        self._exemplars = ExemplarBuffer(is_dropped, is_undecided)
        self._kept: dict[tuple[str, Labels], dict[float, Exemplar]] = {}

    def recall(
        self, family: str, labels: Labels, bounds: Sequence[float], fresh: Iterable[Any]
    ) -> Mapping[float, Exemplar]:
        """Add the exemplars of one collection and return all unexpired ones, by the upper bound of their bucket."""
        kept = self._kept.setdefault((family, labels), {})
        for exemplar in self._exemplars.release((family, labels), fresh):
            if exemplar.trace_id and exemplar.span_id:
                ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
                bound = bounds[bisect_left(bounds, exemplar.value)]
                kept[bound] = Exemplar(ids, float(exemplar.value), exemplar.time_unix_nano / 1e9)
        oldest = self._clock() - self._ttl
        for bound, exemplar in list(kept.items()):
            if float(exemplar.timestamp or 0) <= oldest or self._is_dropped(int(exemplar.labels["trace_id"], 16)):
                del kept[bound]
        return dict(kept)


@dataclass(slots=True)
class Families:
    """Families of one scrape. Metrics of the same name from several instruments become one family.

    Attributes:
        classic: Whether histograms have classic buckets, or the instruments whose histograms have them.
    """

    memory: ExemplarMemory
    classic: bool | Collection[str] = True
    _families: dict[str, tuple[Family, dict[Labels, Series]]] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)

    def add_info(self, name: str, documentation: str, attributes: Mapping[str, Any]) -> None:
        """Add an info family, whose content is its labels."""
        family, _ = self._family(name, documentation, "info", "")
        family.samples.append(Sample(f"{name}_info", dict(to_labels(attributes)), 1))

    def reserve(self, family: Family) -> None:
        """Reserve the names of a family that is rendered elsewhere.

        Raises:
            ValueError: another family has one of them.
        """
        self._family(family.name, family.documentation, family.type, family.unit)

    def add(self, metric: Metric) -> None:
        """Add all points of a metric, or none if one is invalid.

        Raises:
            ValueError: the metric cannot be exposed, for example because another family has its name.
        """
        kind = _kind_of(metric)
        name, unit = to_name(metric.name, metric.unit or "", kind)
        _, stored = self._family(name, encodable(metric.description or ""), kind, unit)
        series = dict(stored)
        for point in metric.data.data_points:
            labels = to_labels(point.attributes or {})
            added = self._series_of(metric, point, name, labels)
            same = series.get(labels)
            series[labels] = added if same is None else same.merged(added)  # type: ignore[arg-type]  # one kind a family
        stored.update(series)

    def add_native(self, metric: Metric) -> None:
        """Add native buckets, collected by another reader a little later, to existing histograms.

        Raises:
            ValueError: the buckets have no counterpart in Prometheus.
        """
        if not isinstance(metric.data, ExponentialHistogram):  # a view of the application selects classic buckets only
            return
        name, _ = to_name(metric.name, metric.unit or "", "histogram")
        family, stored = self._families.get(name, (None, {}))
        if family is None or family.type != "histogram":
            return
        series = dict(stored)
        for point in metric.data.data_points:
            labels = to_labels(point.attributes or {})
            histogram = series.get(labels)
            if isinstance(histogram, HistogramSeries):  # else the first measurement is newer than the classic buckets
                series[labels] = histogram.with_native(Native.of(point))
        stored.update(series)

    def render(self, *, complete: bool) -> Iterator[Family]:
        """Yield the families with their samples; if complete, with samples that only protobuf supports."""
        for family, series in self._families.values():
            for labels, item in series.items():
                family.samples.extend(item.samples(family, labels, complete=complete))
            if family.samples:
                yield family

    def _family(self, name: str, documentation: str, kind: str, unit: str) -> tuple[Family, dict[Labels, Series]]:
        existing = self._families.get(name)
        if existing is not None and existing[0].type == kind:
            return existing
        taken = [name + suffix for suffix in RESERVED_SUFFIXES[kind]]
        for sample_name in taken:
            if owner := self._owners.get(sample_name):
                raise ValueError(f"{kind} {name!r} clashes with {sample_name!r} of the family {owner!r}")
        made = self._families[name] = (Family(name, documentation, kind, unit), {})
        self._owners.update(dict.fromkeys(taken, name))
        return made

    def _series_of(self, metric: Metric, point: Any, family: str, labels: Labels) -> Series:
        created = (point.start_time_unix_nano or 0) / 1e9
        if isinstance(point, NumberDataPoint):
            exemplars = self.memory.recall(family, labels, (math.inf,), point.exemplars)
            return NumberSeries(float(point.value), isinstance(metric.data, Sum), created, exemplars)
        check_labels(labels)
        is_classic = self.classic if isinstance(self.classic, bool) else metric.name in self.classic
        native: Native | None = None
        if isinstance(point, HistogramDataPoint):
            is_classic = is_classic or self.classic is False  # a view selected classic buckets
            bounds = [*(float(bound) for bound in point.explicit_bounds), math.inf]
            counts: Sequence[int] = point.bucket_counts
        else:
            bounds = [*bounds_of(metric.name), math.inf]
            counts = to_classic(point, bounds) if is_classic else [point.count]
            native = None if is_classic else Native.of(point)
        exemplars = self.memory.recall(family, labels, bounds, point.exemplars)
        return HistogramSeries(bounds, counts, float(point.sum), created, exemplars, native, is_classic)


def check_labels(labels: Labels) -> Labels:
    """Return the labels of a histogram.

    Raises:
        ValueError: one of them is that of its buckets.
    """
    if any(name == "le" for name, _ in labels):
        raise ValueError("the label 'le' belongs to histograms themselves")
    return labels


def bounds_of(name: str) -> Sequence[float]:
    """Return the finite bounds by which the exemplars of an exponential histogram are kept, one in each bucket."""
    return _SEMCONV_BOUNDS.get(name, CLASSIC_BOUNDS)


def to_classic(point: ExponentialHistogramDataPoint, bounds: Sequence[float]) -> list[int]:
    """Convert the buckets of an exponential histogram to classic ones, each by its upper bound."""
    counts = [0] * len(bounds)
    counts[bisect_left(bounds, 0.0)] += point.zero_count
    for index, count in enumerate(point.positive.bucket_counts, point.positive.offset):
        counts[bisect_left(bounds, _power(index + 1, point.scale))] += count
    for index, count in enumerate(point.negative.bucket_counts, point.negative.offset):
        counts[bisect_left(bounds, -_power(index, point.scale))] += count
    return counts


def _power(index: int, scale: int) -> float:
    """Return base ** index for the base 2 ** (2 ** -scale)."""
    try:
        return float(2.0 ** (index * 2.0**-scale))
    except OverflowError:
        return math.inf


def _kind_of(metric: Metric) -> str:
    if isinstance(metric.data, Sum):
        return "counter" if metric.data.is_monotonic else "gauge"
    if isinstance(metric.data, Gauge):
        return "gauge"
    if isinstance(metric.data, (Histogram, ExponentialHistogram)):
        return "histogram"
    raise ValueError(f"{type(metric.data).__name__} has no counterpart in Prometheus")
