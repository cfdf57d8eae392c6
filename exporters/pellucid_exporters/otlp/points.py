"""Data points that OTLP cannot hold."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pellucid_exporters.collected import metrics_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

_log: Final = logging.getLogger("pellucid_exporters.outlets")

_LEAST, _MOST = -(2**63), 2**63 - 1


class PointFilter:
    """Removes data points and exemplars with integers beyond 64 bits, for which the whole export would fail."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def apply(self, data: MetricsData) -> None:
        """Remove them from one collection; the first of each metric is logged."""
        for metric in metrics_of([data]):
            points: Any = metric.data.data_points  # a list, whatever its type says
            for point in points:
                if not all(_fits(exemplar.value) for exemplar in point.exemplars):
                    point.exemplars[:] = [exemplar for exemplar in point.exemplars if _fits(exemplar.value)]
            if not all(map(_is_encodable, points)):
                points[:] = filter(_is_encodable, points)
                if metric.name not in self._reported:
                    self._reported.add(metric.name)
                    _log.warning("left out a data point of %s: an integer has more than 64 bits", metric.name)


def _is_encodable(point: Any) -> bool:
    return _fits(getattr(point, "value", 0)) and all(map(_fits, (point.attributes or {}).values()))


def _fits(value: object) -> bool:
    return not isinstance(value, int) or _LEAST <= value <= _MOST
