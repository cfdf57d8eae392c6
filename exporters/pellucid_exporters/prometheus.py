"""`/metrics`: a reader of our own over `prometheus_client`, with exemplars, that no single instrument can break.

OpenTelemetry's Prometheus exporter drops exemplars and fails the whole scrape on an exponential histogram. This one
serves OpenMetrics 1.0 with exemplars on classic buckets to those who ask for it, and plain text to the others.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import Metric, MetricReader, MetricsData
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from pellucid.errors import ConfigError
from pellucid_exporters.families import ExemplarMemory, Families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.simple_server import WSGIServer

    from opentelemetry.sdk.resources import Resource
    from prometheus_client.core import Metric as Family

    from pellucid_exporters.options import Prometheus

_log: Final = logging.getLogger(__name__)


class PrometheusReader(MetricReader):
    """Collects cumulative metrics when scraped.

    Aggregation is the SDK's default, so histograms have the explicit buckets of their instruments' advice. An
    instrument that cannot be shown is left out, counted through `on_failure` and logged once. Only a callback that
    blocks for longer than the collection may take empties a scrape: OpenTelemetry then gives out nothing.
    """

    def __init__(
        self,
        *,
        resource: Resource,
        exemplar_ttl: float = 300.0,
        on_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._resource = resource
        self._on_failure = on_failure
        self._memory = ExemplarMemory(exemplar_ttl, clock)
        self._received: list[MetricsData] = []
        self._lock = threading.Lock()
        self._complained: set[str] = set()

    def scrape(self) -> Iterable[Family]:
        """Collect all instruments and return their families; never raises."""
        with self._lock:
            families = Families(self._memory)
            families.add_info("target", "Target metadata", self._resource.attributes)
            for metric in self._collected():
                try:
                    families.add(metric)
                except Exception as error:  # noqa: BLE001  (whatever is wrong with one, the others are served)
                    self._complain(metric.name, error)
            return list(families.render())

    def renew(self) -> None:
        """Start afresh in a forked child, where another thread's scrape may have held the lock for ever."""
        self._lock = threading.Lock()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: what is there is collected by the next scrape."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: the server is closed by whoever started it."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        self._received.append(metrics_data)

    def _collected(self) -> Iterable[Metric]:
        self._received.clear()
        try:
            self.collect()
        except Exception as error:  # noqa: BLE001  (an empty answer says more to a scraper than an error 500)
            self._complain("the collection itself", error)
        resources = [resource for received in self._received for resource in received.resource_metrics]
        return [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]

    def _complain(self, name: str, error: Exception) -> None:
        self._on_failure()
        if name not in self._complained:
            self._complained.add(name)
            _log.warning("left %s out of /metrics: %s", name, error, exc_info=error)


class PrometheusCollector(Collector):
    """Lets a `prometheus_client` registry scrape a reader."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Family]:
        """Return all families."""
        return self._reader.scrape()

    def describe(self) -> Iterable[Family]:
        """Return nothing: the names are not known before the first scrape."""
        return []


class MetricsEndpoint:
    """Serves a reader on `/metrics` from a daemon thread; the content type is negotiated by `prometheus_client`.

    Attributes:
        url: Where; `None` without a port and once closed.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, options: Prometheus, reader: PrometheusReader) -> None:
        self._registry = options.registry or CollectorRegistry()
        self._server: WSGIServer | None = None
        self.url: str | None = None
        if options.port is not None:
            self._server, self._thread = _serve(options.host, options.port, self._registry)
            shown = f"[{options.host}]" if ":" in options.host else options.host
            self.url = f"http://{shown}:{self._server.server_port}/metrics"
        self._collector: PrometheusCollector | None = PrometheusCollector(reader)
        self._registry.register(self._collector)

    def close(self) -> None:
        """Stop serving, give the port back and leave the registry as it was."""
        if self._collector is not None:
            self._registry.unregister(self._collector)
            self._collector = None
        server, self._server, self.url = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def renew(self) -> None:
        """Let go of the parent's socket in a forked child, which has no thread that could answer on it."""
        server, self._server, self.url = self._server, None, None
        if server is not None:
            server.socket.close()


def _serve(host: str, port: int, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    try:
        return start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"serving /metrics on {host}:{port} failed: {error.strerror or error}; "
            f"stop what uses port {port}, or choose another (0 takes any free one)"
        ) from error
