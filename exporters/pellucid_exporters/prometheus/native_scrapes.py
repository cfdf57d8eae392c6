"""Native histograms as bytes of the protobuf format, kept from scrape to scrape for series that did not change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import ExponentialHistogram
from prometheus_client.core import Metric as Family

from pellucid_exporters.prometheus.families import ExemplarMemory, Families, bounds_of, check_labels
from pellucid_exporters.prometheus.naming import encodable, to_labels, to_name
from pellucid_exporters.prometheus.native_histograms import Native
from pellucid_exporters.prometheus.protobuf import encode_native, encode_native_family

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from opentelemetry.sdk.metrics.export import Metric
    from prometheus_client.samples import Exemplar

    from pellucid_exporters.prometheus.naming import Labels


class EncodedFamily(Family):
    """Family without samples, whose series are encoded already.

    Attributes:
        encoded: Messages of the protobuf format, each behind its length.
    """

    encoded: bytes = b""


@dataclass(slots=True)
class _Series:
    """Series as it was last encoded."""

    labels: Labels
    count: int = -1
    total: float = 0.0
    exemplars: Mapping[float, Exemplar] | None = None
    encoded: bytes = b""


class NativeScrapes:
    """Encoder of native histograms of instruments with exponential buckets. Not thread-safe."""

    def __init__(self, memory: ExemplarMemory) -> None:
        self._memory = memory
        self._series: dict[tuple[str, Hashable], _Series] = {}

    def unshared(self, metrics: Iterable[Metric]) -> set[str]:
        """Return the names of instruments with exponential buckets whose family is that of no other instrument."""
        families: dict[str, list[Metric]] = {}
        for metric in metrics:
            families.setdefault(to_name(metric.name, metric.unit or "", "histogram")[0], []).append(metric)
        single = [found[0] for found in families.values() if len(found) == 1]
        return {metric.name for metric in single if isinstance(metric.data, ExponentialHistogram)}

    def add(self, families: Families, written: list[Family], metric: Metric) -> None:
        """Append the family of an instrument to `written`, and reserve its names in `families`.

        Raises:
            ValueError: the metric cannot be exposed, for example because another family has its name.
        """
        name, unit = to_name(metric.name, metric.unit or "", "histogram")
        family = EncodedFamily(name, encodable(metric.description or ""), "histogram", unit)
        families.reserve(family)
        bounds = (*bounds_of(metric.name), math.inf)
        series = [self._updated(name, bounds, point) for point in metric.data.data_points]
        if len({each.labels for each in series}) < len(
            series
        ):  # names of attributes that differ by a dot are one label
            families.add(metric)
            return
        family.encoded = encode_native_family(family, [(each.encoded, bool(each.exemplars)) for each in series])
        written.append(family)

    def _updated(self, family: str, bounds: tuple[float, ...], point: Any) -> _Series:
        key = family, _key(point.attributes or {})
        kept = self._series.get(key)
        if kept is None:
            kept = self._series[key] = _Series(check_labels(to_labels(point.attributes or {})))
        exemplars = self._memory.recall(family, kept.labels, bounds, point.exemplars)
        if (kept.count, kept.total, kept.exemplars) != (point.count, point.sum, exemplars):
            shown = sorted(exemplars.values(), key=lambda exemplar: float(exemplar.timestamp or 0))
            created = (point.start_time_unix_nano or 0) / 1e9
            kept.encoded = encode_native(kept.labels, Native.of(point).to_prometheus(shown), created)
            kept.count, kept.total, kept.exemplars = point.count, point.sum, exemplars
        return kept


def _key(attributes: Mapping[str, Any]) -> Hashable:
    try:
        return frozenset(attributes.items())
    except TypeError:  # a value is a list
        return to_labels(attributes)
