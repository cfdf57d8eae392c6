"""Metric reader for Prometheus, with exemplars, native histograms and isolation of failing instruments.

OpenTelemetry's Prometheus exporter drops exemplars and fails the whole scrape on an exponential histogram. This one
supports both. `endpoint.py` serves it; an application with its own `MeterProvider` and server connects the two parts
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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics.export import Metric, MetricReader, MetricsData
from opentelemetry.sdk.metrics.view import Aggregation, DropAggregation, ExponentialBucketHistogramAggregation
from prometheus_client.registry import Collector

from pellucid_exporters.collected import metrics_of, overflowing
from pellucid_exporters.prometheus.families import ExemplarMemory, Families
from pellucid_exporters.prometheus.native_histograms import MAX_SCALE
from pellucid_exporters.prometheus.native_scrapes import NativeScrapes
from pellucid_exporters.sdk_internals import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_log: Final = logging.getLogger("pellucid_exporters.prometheus")


class _PullReader(MetricReader):
    """Reader that collects cumulative metrics on demand."""

    def __init__(self, aggregation: dict[type, Aggregation] | None = None) -> None:
        super().__init__(preferred_aggregation=aggregation)
        self._received: list[MetricsData] = []

    def pull(self) -> Sequence[MetricsData]:
        """Collect all instruments. Not thread-safe."""
        self._received = []
        self.collect()
        return self._received

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: the next scrape collects the measurements."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: the owner of the server closes it."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        self._received.append(metrics_data)


class PrometheusReader(_PullReader):
    """Reader that collects cumulative metrics when scraped.

    Aggregation is the SDK's default, so histograms have the explicit buckets of their instruments' advice; a second
    reader counts their measurements in exponential buckets from the first one on; without classic buckets, the first
    reader does. An instrument that cannot be shown is
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
        classic: bool | Collection[str] = True,
        exemplar_ttl: float = 300.0,
        on_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
        on_overflow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create a reader.

        Args:
            resource: Source of `target_info`; by default that of the provider, after its first measurement.
            native_histograms: Also record native histograms, for servers that scrape protobuf.
            classic: Whether histograms have classic buckets, or the instruments whose histograms have them.
            exemplar_ttl: Seconds for which every scrape repeats an exemplar.
            on_failure: Called for each instrument that a scrape omits.
            clock: Returns seconds since the epoch.
            is_dropped: Returns whether the spans of a trace id were dropped; its exemplars are omitted then.
            is_undecided: Returns whether they may still be dropped; its exemplars are withheld until that is decided.
            on_overflow: Called with the name of each instrument that has reached its limit of series.
        """
        is_native_only = native_histograms and classic is False
        super().__init__(_EXPONENTIAL if is_native_only else None)
        self._classic: bool | Collection[str] = classic if native_histograms else True
        self._on_overflow = on_overflow
        self._resource = resource
        self._on_failure = on_failure
        self._make_memory = partial(ExemplarMemory, exemplar_ttl, clock, is_dropped, is_undecided)
        self._reset()
        self._complained: set[str] = set()
        self._here = threading.local()
        self._native = _PullReader(_NATIVE) if native_histograms and not is_native_only else None
        # A measurement reaches the readers in this order, and they are collected in the other one: so classic buckets
        # never hold one that the native buckets and the count of the same answer lack.
        self.all: Sequence[MetricReader] = (self,) if self._native is None else (self._native, self)

    def scrape(self, *, complete: bool = False, encoded: bool = False) -> Sequence[Family]:
        """Collect all instruments and return their families; never raises.

        Args:
            complete: Include native histograms and creation times, which only the protobuf format supports.
            encoded: Return those without classic buckets as `EncodedFamily`.
        """
        with self._lock:
            families = Families(self._memory, self._classic)
            received = self._pulled(self)
            for name in overflowing(received):
                self._on_overflow(name)
            resources = [each.resource for data in received for each in data.resource_metrics]
            if resource := self._resource or next(iter(resources), None):
                families.add_info("target", "Target metadata", resource.attributes)
            metrics = list(metrics_of(received))
            written: list[Family] = []
            direct = self._scrapes.unshared(metrics) if encoded and complete and self._classic is False else ()
            for metric in metrics:
                add = partial(self._scrapes.add, families, written) if metric.name in direct else families.add
                self._attempt(metric.name, add, metric)
            if complete and self._native is not None:
                for metric in metrics_of(self._pulled(self._native)):
                    self._attempt(metric.name, families.add_native, metric)
            return [*families.render(complete=complete), *written]

    def others(self, registry: CollectorRegistry) -> Iterator[Family]:
        """Yield the families of a registry without those of this reader; an error in a collector ends the iteration."""
        self._here.is_left_out = True
        try:
            yield from registry.collect()
        except Exception as error:  # noqa: BLE001  (the reader's own metrics are served anyway)
            self.complain("a collector of the application", error)
        finally:
            self._here.is_left_out = False

    @property
    def is_left_out(self) -> bool:
        """Return whether this thread is collecting a registry without this reader."""
        return getattr(self._here, "is_left_out", False)

    def complain(self, name: str, error: Exception) -> None:
        """Count an omitted metric and log it once."""
        self._on_failure()
        if name not in self._complained:
            self._complained.add(name)
            _log.warning("left %s out of /metrics: %s", name, error, exc_info=error)

    def renew(self) -> None:
        """Reset in a forked child, where a scrape of the parent may hold the lock; the resource names the parent."""
        self._resource = None
        self._reset()

    def _reset(self) -> None:
        self._memory = self._make_memory()
        self._scrapes = NativeScrapes(self._memory)
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
    """Collector that exposes a reader in a `prometheus_client` registry, in the text formats."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Family]:
        """Collect all families."""
        return [] if self._reader.is_left_out else self._reader.scrape()

    def describe(self) -> Iterable[Family]:
        """Return no families: names are unknown before the first scrape."""
        return []


_EXPONENTIAL: Final[dict[type, Aggregation]] = {Histogram: ExponentialBucketHistogramAggregation(max_scale=MAX_SCALE)}
_NATIVE: Final[dict[type, Aggregation]] = {
    **_EXPONENTIAL,
    **dict.fromkeys(
        (Counter, UpDownCounter, Gauge, ObservableCounter, ObservableUpDownCounter, ObservableGauge), DropAggregation()
    ),
}
