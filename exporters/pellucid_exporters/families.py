"""OpenTelemetry's metrics as Prometheus' metric families: names, labels, buckets, exemplars."""

from __future__ import annotations

import json
import math
import re
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

from pellucid import semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Labels: TypeAlias = tuple[tuple[str, str], ...]

RESERVED_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
    "info": ("", "_info"),
}
"""The names that a family takes for itself, by its type."""

CLASSIC_BOUNDS: Final = tuple(digit * 10.0**power for power in range(-3, 7) for digit in (1, 2.5, 5))
"""Buckets for an exponential histogram that `semconv` does not know; fixed, so that series do not come and go."""

_SEMCONV_BOUNDS: Final = {metric.name: metric.buckets for metric in semconv.METRICS if metric.buckets}

_UNITS: Final[Mapping[str, str]] = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "m": "meters", "V": "volts", "A": "amperes",
    "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz", "%": "percent",
}  # fmt: skip
_PER: Final[Mapping[str, str]] = {"s": "second", "min": "minute", "h": "hour", "d": "day", "m": "meter"}


@dataclass(frozen=True, slots=True)
class NumberSeries:
    """One counter or gauge with its labels. Attributes: adds: two of the same labels add up, else the later wins."""

    value: float
    adds: bool
    exemplars: Mapping[float, Exemplar]

    def merged(self, other: NumberSeries) -> NumberSeries:
        """Return both as one."""
        return replace(other, value=self.value + other.value) if self.adds else other

    def samples(self, family: Family, labels: Labels) -> Iterator[Sample]:
        """Yield the one sample."""
        is_counter = family.type == "counter"
        exemplar = self.exemplars.get(math.inf) if is_counter else None
        yield Sample(family.name + ("_total" if is_counter else ""), dict(labels), self.value, None, exemplar)


@dataclass(frozen=True, slots=True)
class HistogramSeries:
    """One histogram with its labels. Attributes: bounds: inclusive, the last one infinite; counts: not cumulative."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    exemplars: Mapping[float, Exemplar]

    def merged(self, other: HistogramSeries) -> HistogramSeries:
        """Return both as one."""
        if self.bounds != other.bounds:
            raise ValueError("two histograms of one name and labels have different buckets")
        counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        return replace(other, counts=counts, total=self.total + other.total)

    def samples(self, family: Family, labels: Labels) -> Iterator[Sample]:
        """Yield the cumulative buckets, and count and sum where OpenMetrics allows them."""
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            seen += count
            named = {**dict(labels), "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]  # a function without types
            yield Sample(f"{family.name}_bucket", named, seen, None, self.exemplars.get(bound))
        if self.bounds[0] >= 0:
            yield Sample(f"{family.name}_count", dict(labels), seen)
            yield Sample(f"{family.name}_sum", dict(labels), self.total)


Series: TypeAlias = NumberSeries | HistogramSeries


class ExemplarMemory:
    """Remembers the latest exemplar of each bucket, since the SDK hands each one out only once.

    Scrapers ask every few seconds; without this an exemplar would be there in one scrape only.
    """

    def __init__(self, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self._ttl = ttl
        self._clock = clock
        self._kept: dict[tuple[str, Labels], dict[float, Exemplar]] = {}

    def recall(
        self, family: str, labels: Labels, bounds: Sequence[float], fresh: Iterable[Any]
    ) -> Mapping[float, Exemplar]:
        """Take in the exemplars of one collection and return all young enough, by the upper bound of their bucket."""
        kept = self._kept.setdefault((family, labels), {})
        for exemplar in fresh:
            if exemplar.trace_id:
                ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
                bound = bounds[bisect_left(bounds, exemplar.value)]
                kept[bound] = Exemplar(ids, float(exemplar.value), exemplar.time_unix_nano / 1e9)
        oldest = self._clock() - self._ttl
        for bound in [bound for bound, exemplar in kept.items() if float(exemplar.timestamp or 0) <= oldest]:
            del kept[bound]
        return dict(kept)


@dataclass(slots=True)
class Families:
    """The families of one scrape. Metrics of one name from several instruments become one family."""

    memory: ExemplarMemory
    _families: dict[str, tuple[Family, dict[Labels, Series]]] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)

    def add_info(self, name: str, documentation: str, attributes: Mapping[str, Any]) -> None:
        """Add a family whose labels are its content."""
        family, _ = self._family(name, documentation, "info", "")
        family.samples.append(Sample(f"{name}_info", dict(to_labels(attributes)), 1))

    def add(self, metric: Metric) -> None:
        """Add all points of a metric or, when something about it is wrong, none.

        Raises:
            ValueError: it cannot be shown, as when its name is that of another family.
        """
        kind = _kind_of(metric)
        name, unit = to_name(metric.name, metric.unit or "", kind)
        _, known = self._family(name, _encodable(metric.description or ""), kind, unit)
        series = dict(known)
        for point in metric.data.data_points:
            labels = to_labels(point.attributes or {})
            found = self._series_of(metric, point, name, labels)
            same = series.get(labels)
            series[labels] = found if same is None else same.merged(found)  # type: ignore[arg-type]  # one kind a family
        known.update(series)

    def render(self) -> Iterator[Family]:
        """Yield the families with their samples."""
        for family, series in self._families.values():
            for labels, found in series.items():
                family.samples.extend(found.samples(family, labels))
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
        if isinstance(point, NumberDataPoint):
            exemplars = self.memory.recall(family, labels, (math.inf,), point.exemplars)
            return NumberSeries(float(point.value), isinstance(metric.data, Sum), exemplars)
        if any(name == "le" for name, _ in labels):
            raise ValueError("the label 'le' belongs to histograms themselves")
        if isinstance(point, HistogramDataPoint):
            bounds = [*(float(bound) for bound in point.explicit_bounds), math.inf]
            counts: Sequence[int] = point.bucket_counts
        else:
            bounds = [*_SEMCONV_BOUNDS.get(metric.name, CLASSIC_BOUNDS), math.inf]
            counts = to_classic(point, bounds)
        exemplars = self.memory.recall(family, labels, bounds, point.exemplars)
        return HistogramSeries(bounds, counts, float(point.sum), exemplars)


def to_name(name: str, unit: str, kind: str) -> tuple[str, str]:
    """Return the name of the family and its unit in Prometheus' words.

    `pellucid.tool.discovery.duration` in `s` is `pellucid_tool_discovery_duration_seconds`; units such as `{token}`
    only annotate and add nothing. The samples of a counter end in `_total` on top of that.
    See "Prometheus and OpenMetrics Compatibility" in the OpenTelemetry specification.
    """
    text = _sanitise(name, "a-zA-Z0-9_:")
    if kind == "counter":
        text = text.removesuffix("_total")
    words = _unit_words(re.sub(r"\{[^}]*\}", "", unit), kind)
    if words and not text.endswith(f"_{words}"):
        text = f"{text}_{words}"
    return text, words


def to_labels(attributes: Mapping[str, Any]) -> Labels:
    """Return attributes as sorted labels; the values of names that become one are joined by `;`."""
    labels: dict[str, str] = {}
    for key, value in sorted(attributes.items()):
        name = _sanitise(key, "a-zA-Z0-9_")
        labels[name] = f"{labels[name]};{_label_value(value)}" if name in labels else _label_value(value)
    return tuple(sorted(labels.items()))


def to_classic(point: ExponentialHistogramDataPoint, bounds: Sequence[float]) -> list[int]:
    """Sort the buckets of an exponential histogram into classic ones, each by its own upper bound."""
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


def _sanitise(text: str, allowed: str) -> str:
    found = re.sub("__+", "_", re.sub(f"[^{allowed}]", "_", text))
    return f"_{found}" if not found or found[0].isdigit() else found


def _unit_words(unit: str, kind: str) -> str:
    if unit == "1":
        return "ratio" if kind == "gauge" else ""
    of, _, per = unit.partition("/")
    words = [_UNITS.get(of, of)] if of and of != "1" else []
    if per:
        words.append(f"per_{_PER.get(per, per)}")
    return _sanitise("_".join(words), "a-zA-Z0-9_").strip("_") if words else ""


def _label_value(value: Any) -> str:
    return _encodable(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def _encodable(text: str) -> str:
    """Replace lone surrogates, which would fail the encoding of the whole answer."""
    return text.encode("utf-8", "replace").decode()
