"""Prometheus names of metrics and attributes of `pellucid.semconv`."""

from __future__ import annotations

from pellucid.semconv import Metric
from pellucid_exporters.prometheus.naming import to_labels, to_name


def series(metric: Metric, suffix: str = "") -> str:
    """Return the name of a metric's series: with `_total` if it counts, with a `suffix` (`_bucket`) of a histogram."""
    family, _ = to_name(metric.name, metric.unit, metric.kind)
    return f"{family}_total" if metric.kind == "counter" else f"{family}{suffix}"


def label(attribute: str) -> str:
    """Return the label of an attribute."""
    [(name, _)] = to_labels({attribute: ""})
    return name
