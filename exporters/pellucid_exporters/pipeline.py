"""The one place that makes OpenTelemetry providers and connects them to where telemetry goes.

```python
telemetry = configure("support", otlp="http://localhost:4318", prometheus=9464, console=True)
```

After `os.fork()` a child keeps recording through the same `Telemetry`: queues are emptied (what they held is the
parent's to send), connections are made anew, and `/metrics` is not served, since the port is the parent's; a child that
should be scraped calls `shutdown()` and `configure(..., prometheus=0)`. Two limits are OpenTelemetry's own: counters go
on from the parent's values, and gRPC, whose library does not survive a fork once it was used, needs
`GRPC_ENABLE_FORK_SUPPORT=1`; prefer `http/protobuf` there. A fork taken in the very microseconds in which another thread
records a measurement copies the lock of that instrument locked.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.telemetry.metrics import instruments_of
from pellucid.telemetry.pipeline import LogSink, current_default, set_default
from pellucid_exporters.options import (
    Otlp,
    Prometheus,
    Settings,
    is_disabled,
    resolve_console,
    resolve_otlp,
    resolve_prometheus,
)
from pellucid_exporters.otlp import OtlpLogSink, log_exporter, metric_exporter, span_exporter
from pellucid_exporters.outlets import LogOutlet, MetricOutlet, SpanOutlet, SpanQueue
from pellucid_exporters.prometheus import MetricsEndpoint, PrometheusReader
from pellucid_exporters.resource import make_resource
from pellucid_exporters.telemetry import Parts, Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.util.types import AttributeValue

    from pellucid.telemetry.capture import CapturePolicy
    from pellucid_exporters.console import Console

_log: Final = logging.getLogger(__name__)


class _State:
    """What is active in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settings: Settings | None = None
        self.telemetry: Telemetry | None = None
        self.alive: weakref.WeakSet[Telemetry] = weakref.WeakSet()


_state: Final = _State()


def configure(
    service_name: str,
    *,
    otlp: Otlp | str | bool | None = None,
    prometheus: Prometheus | str | int | None = None,
    console: Console | bool = False,
    capture: CapturePolicy | None = None,
    resource: Resource | Mapping[str, AttributeValue] | None = None,
) -> Telemetry:
    """Send the telemetry of all agents, and of everything else that speaks OpenTelemetry, to where you say.

    The same arguments again return the same `Telemetry`. The `OTEL_*` variables hold as OpenTelemetry specifies them:
    `OTEL_SDK_DISABLED`, `OTEL_SERVICE_NAME` (wins over `service_name`), `OTEL_RESOURCE_ATTRIBUTES`,
    `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_*`; and `OTEL_{TRACES,METRICS,LOGS}_EXPORTER` (`otlp`,
    `prometheus`, `console`, `none`) where an argument leaves it open.

    Args:
        service_name: Name of this service.
        otlp: Base URL of a collector, `True` for where the environment says, or full options. `False` is off.
        prometheus: Port for `/metrics` on this machine, "host:port", `True` for port 9464, or full options.
        console: Show runs as a live tree in the terminal.
        capture: What runs record of their content; by default what the environment says, else redacted content.
        resource: More attributes of this service, such as `{"deployment.environment.name": "staging"}`.

    Raises:
        ConfigError: an option cannot work, the port is taken, or another configuration is active.
    """
    settings = Settings(
        service_name=service_name,
        otlp=resolve_otlp(otlp),
        prometheus=resolve_prometheus(prometheus),
        console=resolve_console(console),
        capture=capture,
        resource=resource,
    )
    with _state.lock:
        if _state.telemetry is not None:
            if _state.settings == settings:
                return _state.telemetry
            raise ConfigError(
                f"configure({service_name!r}) with other arguments than the configuration that is active; "
                f"call shutdown() on the Telemetry of the first one before"
            )
        telemetry = build(settings)
        _state.settings, _state.telemetry = settings, telemetry
        _set_globals(telemetry)
        set_default(telemetry)
    return telemetry


def build(settings: Settings) -> Telemetry:
    """Make providers and exporters without touching anything global but the handler for the process's exit."""
    resource = make_resource(settings.service_name, settings.resource)
    faults = _Faults()
    parts = Parts()
    readers: list[MetricReader] = []
    otlp, prometheus = (None, None) if is_disabled() else (settings.otlp, settings.prometheus)
    if prometheus is not None:  # first: a taken port is found before anything has been started
        reader = PrometheusReader(
            resource=resource, exemplar_ttl=prometheus.exemplar_ttl, on_failure=faults.count_failure
        )
        parts.endpoint = MetricsEndpoint(prometheus, reader)
        parts.renewable.append(reader)
        readers.append(reader)
    if otlp is not None and otlp.metrics:
        outlet = MetricOutlet(partial(metric_exporter, otlp), faults.count_failure)
        interval = otlp.metric_interval and otlp.metric_interval * 1000
        readers.append(PeriodicExportingMetricReader(outlet, export_interval_millis=interval))
        parts.outlets.append(outlet)
    meter_provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    faults.bind(meter_provider)
    telemetry = Telemetry(
        tracer_provider=_tracer_provider(settings, otlp, resource, parts, faults),
        meter_provider=meter_provider,
        logger_provider=_logger_provider(otlp, resource, parts, faults),
        capture=settings.capture,
        parts=parts,
        on_shutdown=_forget,
    )
    atexit.register(telemetry.shutdown)
    _state.alive.add(telemetry)
    return telemetry


def _tracer_provider(
    settings: Settings, otlp: Otlp | None, resource: Resource, parts: Parts, faults: _Faults
) -> TracerProvider:
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if settings.console is not None and not is_disabled():
        from pellucid_exporters.console import ConsoleProcessor

        provider.add_span_processor(ConsoleProcessor(settings.console))
    if otlp is not None and otlp.traces:
        outlet = SpanOutlet(partial(span_exporter, otlp), faults.count_failure)
        queue = SpanQueue(outlet, faults.count_drop)
        provider.add_span_processor(queue)
        parts.outlets.append(outlet)
        parts.renewable.append(queue)
    return provider


def _logger_provider(otlp: Otlp | None, resource: Resource, parts: Parts, faults: _Faults) -> LoggerProvider | None:
    if otlp is None or not otlp.logs:
        return None
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    outlet = LogOutlet(partial(log_exporter, otlp), faults.count_failure)
    provider.add_log_record_processor(BatchLogRecordProcessor(outlet))
    parts.outlets.append(outlet)
    return provider
