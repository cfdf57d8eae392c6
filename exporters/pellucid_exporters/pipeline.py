"""Setup of OpenTelemetry providers and exporters.

```python
telemetry = configure("support", otlp="http://localhost:4318", prometheus=9464, console=True)
```

After `os.fork()` a child keeps recording through the same `Telemetry`: queues are emptied (what they held is the
parent's to send), connections are made anew, and `/metrics` is not served, since the port is the parent's; a child that
should be scraped calls `shutdown()` and `configure(..., prometheus=0)`. Metrics start at zero (`recorder/forks.py`).
gRPC, whose library does not survive a fork once it was used, needs `GRPC_ENABLE_FORK_SUPPORT=1`; prefer `http/protobuf`
there.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pellucid import semconv
from pellucid.concurrency.forks import in_child, reset_in_child
from pellucid.errors import ConfigError
from pellucid.telemetry.metrics import instruments_of
from pellucid.telemetry.pipeline import LogSink, set_default, unset_default
from pellucid.version import __version__
from pellucid_exporters.argument_checks import check_arguments
from pellucid_exporters.exits import shut_down_at_exit
from pellucid_exporters.faults import Faults
from pellucid_exporters.metric_limits import MetricLimits
from pellucid_exporters.options import (
    Otlp,
    Prometheus,
    Settings,
    resolve_console,
    resolve_file,
    resolve_local,
    resolve_otlp,
    resolve_prometheus,
)
from pellucid_exporters.otlp.delivery import LogOutlet, LogQueue, MetricOutlet, MetricSchedule, SpanOutlet, SpanQueue
from pellucid_exporters.otlp.exporters import log_exporter, metric_exporter, span_exporter
from pellucid_exporters.otlp.log_lines import Loggers, OtlpLogSink
from pellucid_exporters.prometheus.endpoint import MetricsEndpoint
from pellucid_exporters.prometheus.reader import PrometheusReader
from pellucid_exporters.recorder.metrics.reservoir import FEW, MANY
from pellucid_exporters.recorder.names import resolve_recorder
from pellucid_exporters.recorder.providers import make_meter_provider, make_tracer_provider
from pellucid_exporters.resource import make_resource
from pellucid_exporters.sampling.exemplars import SamplingDecisions
from pellucid_exporters.sampling.tail_sampler import TailSampler
from pellucid_exporters.telemetry import Parts, Telemetry
from pellucid_exporters.variables import wrong_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

    from pellucid.telemetry.capture import CapturePolicy
    from pellucid_exporters.console import Console
    from pellucid_exporters.file.options import File
    from pellucid_exporters.local.options import Local
    from pellucid_exporters.local.processor import LocalProcessor
    from pellucid_exporters.recorder.names import Recorder
    from pellucid_exporters.sampling.rules import TailSampling

_log: Final = logging.getLogger(__name__)


class _State:
    """Configuration that is active in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settings: Settings | None = None
        self.telemetry: Telemetry | None = None
        reset_in_child(self, lock=threading.Lock)


_state: Final = _State()


def configure(
    service_name: str,
    *,
    otlp: Otlp | str | bool | None = None,
    prometheus: Prometheus | str | int | None = None,
    console: Console | bool = False,
    file: File | str | os.PathLike[str] | None = None,
    local: Local | str | os.PathLike[str] | bool | None = None,
    tail_sampling: TailSampling | None = None,
    metric_limits: MetricLimits | None = None,
    capture: CapturePolicy | None = None,
    resource: Resource | Mapping[str, AttributeValue] | None = None,
    recorder: Recorder | None = None,
    set_global: bool = True,
) -> Telemetry:
    """Configure where the telemetry of all agents, and of all other OpenTelemetry instrumentation, is sent.

    The same arguments again return the same `Telemetry`. With `set_global=False` each call returns a new one that only
    those use who are given it, such as `Agent(..., telemetry=telemetry)`; it is theirs to shut down.

    The `OTEL_*` variables hold as OpenTelemetry specifies them: `OTEL_SDK_DISABLED`, `OTEL_SERVICE_NAME` (wins over
    `service_name`), `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_*`; and
    `OTEL_{TRACES,METRICS,LOGS}_EXPORTER` (`otlp`, `prometheus`, `console`, `none`) where an argument leaves it open.
    Values that cannot work are logged as warnings.

    Args:
        service_name: Name of this service.
        otlp: Base URL of a collector, `True` for where the environment says, or full options. `False` is off.
        prometheus: Port for `/metrics` on this machine, "host:port", `True` for port 9464, or full options.
        console: Show each run as a tree: live in a terminal and in a notebook, elsewhere as plain text when it ends.
        file: Path of a file for spans, events and boundaries as JSON Lines, or full options.
        local: `True` for the local store in `.pellucid/telemetry.db`, the path of another one, or full options.
        tail_sampling: Export the spans of failed, slow and costly runs, and of a share of the others.
        metric_limits: Bounds of the series that each instrument makes, and of its labels.
        capture: Capture policy for the content of runs; by default that of the environment, else redacted content.
        resource: Additional resource attributes, such as `{"deployment.environment.name": "staging"}`.
        recorder: `"fast"` for Pellucid's own recorder, `"sdk"` for the OpenTelemetry SDK's, which takes longer and
            records the same; by default `PELLUCID_RECORDER`, else the own one unless only the SDK's can do what the
            environment asks for, such as metrics about the SDK itself.
        set_global: Whether this is the configuration of the process, which OpenTelemetry's global providers and all
            agents without one of their own use.

    Raises:
        ConfigError: an option cannot work, the port is taken, or another configuration is active.
    """
    check_arguments(
        service_name,
        otlp=otlp,
        prometheus=prometheus,
        console=console,
        file=file,
        local=local,
        tail_sampling=tail_sampling,
        metric_limits=metric_limits,
        capture=capture,
        resource=resource,
    )
    settings = Settings(
        service_name=service_name,
        otlp=resolve_otlp(otlp),
        prometheus=resolve_prometheus(prometheus),
        console=resolve_console(console),
        file=resolve_file(file),
        local=resolve_local(local),
        tail_sampling=tail_sampling,
        metric_limits=metric_limits,
        capture=capture,
        resource=resource,
        recorder=resolve_recorder(recorder),
    )
    if not set_global:
        _warn_of_variables()
        return build(settings.effective)
    with _state.lock:
        if _state.telemetry is not None:
            if _state.settings == settings:
                return _state.telemetry
            raise ConfigError(
                f"configure({service_name!r}) with other arguments than the configuration that is active; "
                f"call shutdown() on the Telemetry of the first one before"
            )
        _warn_of_variables()
        telemetry = build(settings.effective)
        _state.settings, _state.telemetry = settings, telemetry
        _set_globals(telemetry)
        set_default(telemetry)
    return telemetry


def _warn_of_variables() -> None:
    """Log each variable with an invalid value; most of them are otherwise ignored silently."""
    for name, problem in wrong_values():
        _log.warning("configure(): the environment variable %s %s", name, problem)


def build(settings: Settings) -> Telemetry:
    """Create providers and exporters without global side effects, except exit handlers of the process."""
    parts = Parts()
    try:
        telemetry = _connect(settings, parts)
    except BaseException:
        parts.close()
        raise
    shut_down_at_exit(telemetry)
    in_child(telemetry, Telemetry.renew)
    return telemetry


def _connect(settings: Settings, parts: Parts) -> Telemetry:
    faults = Faults()
    decisions = SamplingDecisions()
    resource = make_resource(settings.service_name, settings.resource)
    meter_provider = _meter_provider(settings, resource, parts, faults, decisions)
    faults.bind(meter_provider)
    if settings.file is not None:
        from pellucid_exporters.file.processor import FileProcessor

        parts.file = FileProcessor(
            settings.file,
            resource,
            on_failure=partial(faults.count_failure, "file"),
            on_drop=partial(faults.count_drop, "file"),
        )
        parts.renewable.append(parts.file)
    if settings.local is not None:
        parts.local = _local_processor(settings.local, settings.capture, resource, faults, meter_provider)
        parts.renewable.append(parts.local)
    tracer_provider = make_tracer_provider(settings.recorder, resource=resource, shutdown_on_exit=False)
    for processor in _span_processors(settings, parts, faults, decisions, meter_provider):
        tracer_provider.add_span_processor(processor)
    logger_provider = _logger_provider(settings, resource, parts, faults)
    log_sinks: tuple[LogSink, ...] = ()
    if logger_provider is not None and logger_provider.queue is not None:
        log_sinks = (OtlpLogSink(logger_provider, InstrumentationScope(semconv.SCOPE, __version__)),)
    recordings = [part for part in (parts.file, parts.local) if part is not None]
    return Telemetry(
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        logger_provider=logger_provider,
        log_sinks=log_sinks,
        capture=settings.capture,
        listeners=[listener for part in recordings for listener in part.listeners],
        catalog_sinks=[sink for part in recordings for sink in part.catalog_sinks],
        early_input=settings.local is not None,
        parts=parts,
        on_shutdown=_forget,
    )


def _local_processor(
    options: Local, capture: CapturePolicy | None, resource: Resource, faults: Faults, meter_provider: MeterProvider
) -> LocalProcessor:
    from pellucid_exporters.local.hub_minutes import objectives_of
    from pellucid_exporters.local.processor import LocalProcessor

    return LocalProcessor(
        options,
        resource,
        partial(objectives_of, instruments_of(meter_provider).hubs),
        on_failure=partial(faults.count_failure, "local"),
        on_drop=partial(faults.count_drop, "local"),
        capture=capture,
    )


def _meter_provider(
    settings: Settings, resource: Resource, parts: Parts, faults: Faults, decisions: SamplingDecisions
) -> MeterProvider:
    readers: list[MetricReader] = []
    if settings.prometheus is not None:  # first: fail on a port in use before anything has started
        reader = PrometheusReader(
            resource=resource,
            native_histograms=settings.prometheus.native_histograms,
            classic=settings.prometheus.classic,
            exemplar_ttl=settings.prometheus.exemplar_ttl,
            on_failure=faults.count_failure,
            is_dropped=decisions.is_dropped,
            is_undecided=decisions.is_undecided,
            on_overflow=faults.count_overflow,
        )
        parts.endpoint = MetricsEndpoint(settings.prometheus, reader)
        parts.renewable.append(reader)
        readers += reader.all
    if settings.otlp is not None and settings.otlp.metrics:
        exporter = partial(metric_exporter, settings.otlp, exemplars=MANY if settings.tail_sampling else FEW)
        on_loss = partial(faults.count_drop, "metric")
        outlet = MetricOutlet(
            exporter,
            faults.count_failure,
            on_loss,
            is_dropped=decisions.is_dropped,
            is_undecided=decisions.is_undecided,
            on_overflow=faults.count_overflow,
        )
        parts.outlets.append(outlet)
        interval = settings.otlp.metric_interval and settings.otlp.metric_interval * 1000
        schedule = MetricSchedule(outlet, export_interval_millis=interval)
        parts.renewable.append(schedule)
        readers.append(schedule)
    limits = settings.metric_limits or MetricLimits()
    provider = make_meter_provider(
        settings.recorder, readers, resource=resource, shutdown_on_exit=False, views=list(limits.views())
    )
    limits.apply(instruments_of(provider).labels)
    return provider


def _span_processors(
    settings: Settings, parts: Parts, faults: Faults, decisions: SamplingDecisions, meter_provider: MeterProvider
) -> Iterator[SpanProcessor]:
    if settings.console is not None:
        from pellucid_exporters.console import ConsoleProcessor

        console = ConsoleProcessor(settings.console)
        parts.renewable.append(console)
        yield console
    if parts.local is not None:  # before the tail sampler: it also receives starts, and has a retention of its own
        yield parts.local
    queues = list(_span_queues(settings, parts, faults))
    if settings.tail_sampling is not None and queues:
        sampler = TailSampler(
            settings.tail_sampling,
            queues,
            decisions=decisions,
            meter_provider=meter_provider,
            on_fault=faults.count_sampler_fault,
        )
        parts.renewable.append(sampler)
        yield sampler
    else:
        yield from queues


def _span_queues(settings: Settings, parts: Parts, faults: Faults) -> Iterator[SpanProcessor]:
    if parts.file is not None:  # first: it completes at once, while an unreachable collector blocks its queue
        yield parts.file
    if settings.otlp is not None and settings.otlp.traces:
        on_drop = partial(faults.count_drop, "span")
        outlet = SpanOutlet(partial(span_exporter, settings.otlp), faults.count_failure, on_drop)
        parts.outlets.append(outlet)
        yield SpanQueue(outlet, on_drop)


def _logger_provider(settings: Settings, resource: Resource, parts: Parts, faults: Faults) -> Loggers | None:
    queue, store = None, None
    if settings.otlp is not None and settings.otlp.logs:
        on_drop = partial(faults.count_drop, "log")
        outlet = LogOutlet(partial(log_exporter, settings.otlp), faults.count_failure, on_drop)
        parts.outlets.append(outlet)
        queue = LogQueue(outlet, on_drop)
    if parts.local is not None:
        from pellucid_exporters.local.log_processor import LocalLogProcessor

        store = LocalLogProcessor(parts.local)
    return Loggers(resource, queue, store) if queue is not None or store is not None else None


def _set_globals(telemetry: Telemetry) -> None:
    """Set the providers as OpenTelemetry's global ones, which is possible once per process."""
    trace.set_tracer_provider(telemetry.tracer_provider)
    metrics.set_meter_provider(telemetry.meter_provider)
    taken = [
        name
        for name, ours, present in (
            ("tracer", telemetry.tracer_provider, trace.get_tracer_provider()),
            ("meter", telemetry.meter_provider, metrics.get_meter_provider()),
        )
        if ours is not present
    ]
    if telemetry.logger_provider is not None:
        _logs.set_logger_provider(telemetry.logger_provider)
        if _logs.get_logger_provider() is not telemetry.logger_provider:
            taken.append("logger")
    if taken:
        _log.warning(
            "OpenTelemetry's global %s provider was set before configure() and cannot be replaced: agents, and code "
            "that is given the returned Telemetry, use this configuration; other instrumentation does not. "
            "Call configure() once, and before anything else sets the global providers",
            " and ".join(taken),
        )


def _forget(telemetry: Telemetry) -> None:
    """Clear the active configuration, so that another one can be set."""
    if _state.telemetry is telemetry:
        _state.settings = _state.telemetry = None
    unset_default(telemetry)
