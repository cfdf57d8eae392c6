"""Metrics of the demo: selectors of series, and a sample line of `/metrics`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.request import ProxyHandler, Request, build_opener

from pellucid import semconv
from pellucid_exporters.prometheus.naming import to_labels, to_name

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"

SERIES: Final = (
    (semconv.DISCOVERY_DURATION, "how long discovery took, by hub, cache and error"),
    (semconv.DISCOVERY_OBJECTIVE, "how long it should take; one alert rule compares the two for every hub"),
    (semconv.DISCOVERY_INFLIGHT_AGE, "how long the hub has kept somebody waiting, now; shows one that hangs"),
)
"""First metrics to look at, and the reason."""


def series(metric: semconv.Metric, provider_id: str) -> str:
    """Return the PromQL selector of one provider's series."""
    name, _ = to_name(metric.name, metric.unit, metric.kind)
    label, value = to_labels({semconv.PROVIDER_ID: provider_id})[0]
    return f'{name}{"_bucket" if metric.kind == "histogram" else ""}{{{label}="{value}"}}'


def sample_of_trace(url: str, trace_id: str, provider_id: str) -> str | None:
    """Scrape `url` and return the line of the bucket that contains a provider's discovery in this trace."""
    selector = series(semconv.DISCOVERY_DURATION, provider_id)
    name, _, label = selector.rstrip("}").partition("{")
    lines = (
        line for line in _scrape(url) if line.startswith(f"{name}{{") and label in line and f'"{trace_id}"' in line
    )
    return max(lines, key=_bound, default=None)


def _bound(line: str) -> float:
    match = re.search(r'le="([^"]+)"', line)
    return float(match[1]) if match else 0.0


def _scrape(url: str) -> Iterator[str]:
    opener = build_opener(ProxyHandler({}))  # no proxy for the local machine
    with opener.open(Request(url, headers={"Accept": OPENMETRICS}), timeout=5) as answer:  # noqa: S310  (our own URL)
        yield from answer.read().decode().splitlines()
