"""Metrics as OpenTelemetry's SDK collects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.sdk.metrics.export import Metric, MetricsData

OVERFLOW: Final = "otel.metric.overflow"
"""Attribute of the one series that takes the label sets beyond an instrument's limit; see "Cardinality limits" in the
specification of OpenTelemetry's metrics SDK."""


def metrics_of(collected: Iterable[MetricsData]) -> Iterator[Metric]:
    """Yield the metrics of all resources and scopes."""
    for data in collected:
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                yield from scope.metrics


def overflowing(collected: Iterable[MetricsData]) -> list[str]:
    """Return the names of the instruments that have more label sets than their limit."""
    return [
        metric.name
        for metric in metrics_of(collected)
        if any(OVERFLOW in (point.attributes or ()) for point in metric.data.data_points)
    ]
