"""Telemetry of a process, as returned by `configure`: providers, flush and shutdown."""

from __future__ import annotations

import atexit
import logging
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pellucid.telemetry.pipeline import settle
from pellucid_exporters.worker import Call, WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from pellucid.telemetry.capture import CapturePolicy
    from pellucid.telemetry.pipeline import CatalogSink, Listener, LogSink
    from pellucid_exporters.file.processor import FileProcessor
    from pellucid_exporters.local.processor import LocalProcessor
    from pellucid_exporters.otlp.delivery import Outlet
    from pellucid_exporters.prometheus.endpoint import MetricsApp, MetricsEndpoint

_log: Final = logging.getLogger(__name__)


class Renewable(Protocol):
    """Object that must be reset in a forked child."""

    def renew(self) -> None:
        """Discard locks, threads and connections of the parent."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """Components behind the providers.

    Attributes:
        renewable: Components in the order in which a forked child resets them.
    """

    endpoint: MetricsEndpoint | None = None
    file: FileProcessor | None = None
    local: LocalProcessor | None = None
    outlets: list[Outlet[Any]] = field(default_factory=list)
    renewable: list[Renewable] = field(default_factory=list)

    def close(self) -> None:
        """Stop serving, and interrupt exports in progress."""
        if self.endpoint is not None:
            self.endpoint.close()
        if self.file is not None:
            self.file.shutdown()
        if self.local is not None:
            self.local.shutdown()
        for outlet in self.outlets:
            outlet.shutdown()


@dataclass(eq=False, slots=True, weakref_slot=True, kw_only=True)
class Telemetry:
    """The telemetry of one process; agents take it as `telemetry=`, or find it as the default.

    Attributes:
        tracer_provider: Provider of tracers.
        meter_provider: Provider of meters.
        logger_provider: Provider of OpenTelemetry loggers; `None` unless logs are exported by OTLP, or there is a
            local store, which has those of spans.
        log_sinks: Destinations of the log line of each boundary, in addition to structlog.
        capture: Capture policy for the content of runs; `None` reads the environment.
        listeners: Patterns and listeners that subscribe to the events of every run.
        catalog_sinks: Destinations of whole catalogues.
        early_input: Whether spans have their inputs as soon as these are known: the local store shows them meanwhile.
        parts: Components behind the providers.
        on_shutdown: Called once, on shutdown.
    """

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    logger_provider: LoggerProvider | None = None
    log_sinks: Sequence[LogSink] = ()
    capture: CapturePolicy | None = None
    listeners: Sequence[tuple[str, Listener]] = ()
    catalog_sinks: Sequence[CatalogSink] = ()
    early_input: bool = False
    parts: Parts = field(default_factory=Parts, repr=False)
    on_shutdown: Callable[[Telemetry], None] = field(default=lambda _: None, repr=False)
    _workers: list[WorkerThread] = field(init=False, repr=False)
    _is_shut: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        self._workers = [WorkerThread(f"pellucid-{type(provider).__name__}") for provider in self._providers()]

    @property
    def prometheus_url(self) -> str | None:
        """URL of `/metrics`; `None` if it is not served, as after a shutdown or in a forked child."""
        return self.parts.endpoint.url if self.parts.endpoint is not None else None

    @property
    def metrics_app(self) -> MetricsApp | None:
        """WSGI and ASGI app of `/metrics`, for the application's own server; `None` without `prometheus=`."""
        return self.parts.endpoint.app if self.parts.endpoint is not None else None

    def flush(self, timeout: float = 5.0) -> bool:
        """Send queued telemetry; return whether all of it arrived within `timeout` seconds.

        Telemetry that did not arrive in time is still being sent when this returns.
        """
        if self._is_shut:
            return False
        is_settled, timeout = self._settle(timeout)
        failed = self._failures()
        futures = self._start([provider.force_flush for provider in self._providers()])
        is_done = _await(futures, timeout)
        for future in futures:
            future.cancel()  # one that has not begun: the next flush includes it
        return is_settled and is_done and self._failures() == failed

    def shutdown(self, timeout: float = 5.0) -> None:
        """Send queued telemetry for at most `timeout` seconds and close everything. Idempotent.

        Called automatically when the process exits.
        """
        if self._is_shut:
            return
        self._is_shut = True
        atexit.unregister(self.shutdown)
        _, timeout = self._settle(timeout, is_last=True)
        self.on_shutdown(self)
        if self.parts.endpoint is not None:
            self.parts.endpoint.close()
        futures = self._start([provider.shutdown for provider in self._providers()])
        if not _await(futures, timeout):  # late ones follow a flush that runs, which ends with the parts
            _log.warning("telemetry was not delivered within %g s of shutdown; undelivered items are lost", timeout)
        self.parts.close()
        for workers in self._workers:
            workers.stop()

    def _settle(self, timeout: float, *, is_last: bool = False) -> tuple[bool, float]:
        """Wait for scores that are still made, for half of the time; return whether all are there, and the rest."""
        start = time.monotonic()
        is_settled = settle(self, timeout / 2, is_last=is_last)
        return is_settled, timeout - (time.monotonic() - start)

    def renew(self) -> None:
        """Reset for use in a forked child; see the module `pipeline`."""
        if self._is_shut:
            return
        if self.parts.endpoint is not None:
            self.parts.endpoint.renew()
        for part in [*self.parts.outlets, *self.parts.renewable, *self._workers]:
            part.renew()

    def _providers(self) -> list[Any]:
        """Return the providers; `Any` because the SDK's providers share no base class."""
        providers = [self.tracer_provider, self.meter_provider, self.logger_provider]
        return [provider for provider in providers if provider is not None]

    def _failures(self) -> int:
        return sum(outlet.failures for outlet in self.parts.outlets)

    def _start(self, calls: Sequence[Call]) -> list[Future[object]]:
        """Call all providers concurrently."""
        return [workers.run(call) for workers, call in zip(self._workers, calls, strict=True)]


def _await(futures: Sequence[Future[object]], timeout: float) -> bool:
    """Return whether all calls succeeded before the deadline."""
    done, late = wait(futures, timeout=timeout)
    return not late and all(_succeeded(future) for future in done)


def _succeeded(future: Future[object]) -> bool:
    error = future.exception()
    if error is not None:
        _log.warning("the OpenTelemetry SDK failed: %s", error)
    return error is None and future.result() is not False
