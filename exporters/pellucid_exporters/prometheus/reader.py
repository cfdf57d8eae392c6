"""Reading metrics for Prometheus: with exemplars, native histograms, and such that no single instrument can break it.

OpenTelemetry's Prometheus exporter drops exemplars and fails the whole scrape on an exponential histogram. This one
keeps both. `endpoint.py` serves it; an application with a `MeterProvider` and a server of its own puts the two parts in
itself:

```python
reader = PrometheusReader()
provider = MeterProvider(reader.all, resource=resource)
app.mount("/metrics", MetricsApp(reader).asgi)
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics import _Gauge as Gauge
from opentelemetry.sdk.metrics.export import Metric, MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import Aggregation, DropAggregation, ExponentialBucketHistogramAggregation
from prometheus_client.registry import Collector

from pellucid_exporters.prometheus.families import ExemplarMemory, Families
from pellucid_exporters.prometheus.native_histograms import MAX_SCALE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_log: Final = logging.getLogger("pellucid_exporters.prometheus")


class _PullReader(MetricReader):
    """Collects cumulative metrics when asked."""

    def __init__(self, aggregation: dict[type, Aggregation] | None = None) -> None:
        super().__init__(preferred_aggregation=aggregation)
        self._received: list[MetricsData] = []

    def pull(self) -> Sequence[MetricsData]:
        """Collect all instruments. Not from two threads at once."""
        self._received = []
        self.collect()
        return self._received

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: what is there is collected by the next scrape."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: the server is closed by whoever started it."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        self._received.append(metrics_data)


class PrometheusReader(_PullReader):
    """Collects cumulative metrics when scraped.

    Aggregation is the SDK's default, so histograms have the explicit buckets of their instruments' advice; a second
    reader counts their measurements in exponential buckets from the first one on. An instrument that cannot be shown is
    left out, counted through `on_failure` and logged once. Only a callback that blocks for longer than the collection
    may take empties a scrape: OpenTelemetry then gives out nothing.

    Attributes:
        all: The readers to give to a `MeterProvider`, in this order.
    """

    def __init__(
        self,
        *,
        resource: Resource | None = None,
        native_histograms: bool = True,
        exemplar_ttl: float = 300.0,
        on_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Make a reader.

        Args:
            resource: What `target_info` shows; by default that of the provider, once it has measured something.
            native_histograms: Count measurements in native buckets too, for servers that scrape by protobuf.
            exemplar_ttl: Seconds for which an exemplar is repeated in each scrape.
            on_failure: Called for each instrument that a scrape has to leave out.
            clock: Seconds since the epoch.
            is_dropped: Tells of a trace id whether its spans were dropped; it is not shown as an exemplar then.
            is_undecided: Tells of a trace id whether they may still be dropped; it is not shown before that is known.
        """
        super().__init__()
        self._resource = resource
        self._on_failure = on_failure
        self._memory = ExemplarMemory(exemplar_ttl, clock, is_dropped, is_undecided)
        self._lock = threading.Lock()
        self._complained: set[str] = set()
        self._here = threading.local()
        self._native = _PullReader(_NATIVE) if native_histograms else None
        # A measurement reaches the readers in this order, and they are collected in the other one: so classic buckets
        # never hold one that the native buckets and the count of the same answer lack.
        self.all: Sequence[MetricReader] = (self,) if self._native is None else (self._native, self)

    def scrape(self, *, complete: bool = False) -> Sequence[Family]:
        """Collect all instruments and return their families; never raises.

        Args:
            complete: With native histograms and times of creation, which only the protobuf format can say.
        """
        with self._lock:
            families = Families(self._memory)
            received = self._pulled(self)
            resources = [each.resource for data in received for each in data.resource_metrics]
            if resource := self._resource or next(iter(resources), None):
                families.add_info("target", "Target metadata", resource.attributes)
            for metric in _metrics_of(received):
                self._attempt(metric.name, families.add, metric)
            if complete and self._native is not None:
                for metric in _metrics_of(self._pulled(self._native)):
                    self._attempt(metric.name, families.add_native, metric)
            return list(families.render(complete=complete))

    def others(self, registry: CollectorRegistry) -> Iterator[Family]:
        """Yield what a registry holds beside this reader; a collector that raises ends it."""
        self._here.is_left_out = True
        try:
            yield from registry.collect()
        except Exception as error:  # noqa: BLE001  (what the reader itself has is served all the same)
            self.complain("a collector of the application", error)
        finally:
            self._here.is_left_out = False

    @property
    def is_left_out(self) -> bool:
        """Whether this thread is just asking a registry for all but this reader."""
        return getattr(self._here, "is_left_out", False)

    def complain(self, name: str, error: Exception) -> None:
        """Count that something was left out, and log it once."""
        self._on_failure()
        if name not in self._complained:
            self._complained.add(name)
            _log.warning("left %s out of /metrics: %s", name, error, exc_info=error)

    def renew(self) -> None:
        """Start afresh in a forked child, where another thread's scrape may have held the lock for ever."""
        self._lock = threading.Lock()

    def _pulled(self, reader: _PullReader) -> Sequence[MetricsData]:
        try:
            return reader.pull()
        except Exception as error:  # noqa: BLE001  (an empty answer says more to a scraper than an error 500)
            self.complain("the collection itself", error)
            return ()

    def _attempt(self, name: str, add: Callable[[Metric], None], metric: Metric) -> None:
        try:
            add(metric)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with one, the others are served)
            self.complain(name, error)


class PrometheusCollector(Collector):
    """Lets a `prometheus_client` registry scrape a reader, in the text formats."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Family]:
        """Return all families."""
        return [] if self._reader.is_left_out else self._reader.scrape()

    def describe(self) -> Iterable[Family]:
        """Return nothing: the names are not known before the first scrape."""
        return []


_NATIVE: Final[dict[type, Aggregation]] = {
    Histogram: ExponentialBucketHistogramAggregation(max_scale=MAX_SCALE),
    **dict.fromkeys(
        (Counter, UpDownCounter, Gauge, ObservableCounter, ObservableUpDownCounter, ObservableGauge), DropAggregation()
    ),
}


def _metrics_of(received: Iterable[MetricsData]) -> Iterator[Metric]:
    for data in received:
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                yield from scope.metrics
