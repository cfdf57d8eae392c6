"""Pipelines, the destinations of telemetry: the option `telemetry` of an agent, and its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, TypeAlias

from opentelemetry import metrics, trace

from pellucid.concurrency.block import Within
from pellucid.telemetry.capture import CapturePolicy

LogSink: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Receives one log line per ended boundary, already redacted: `event`, `level`, `timestamp` (nanoseconds since the
epoch), `trace_id`, `span_id` (hexadecimal) and flat fields."""

Listener: TypeAlias = Callable[[Any], Any]
"""Receives events; sync (called at once, must not block) or async (called from a bounded queue).

The parameter is `Any`, so that a listener of one kind of event can annotate that kind."""


CatalogSink: TypeAlias = Callable[[Any], None]
"""Receives the `pellucid.tools.catalog_records.CatalogListing` of each discovery in a run that records content; must
not block. `catalog_json` encodes it, which takes too long for an event loop."""


class Pipeline(Protocol):
    """Destinations of telemetry, as created by `pellucid_exporters.configure()` and `capture()`.

    It may also have `catalog_sinks`, `early_input` and a `clock`; see `TelemetryOptions`.

    Attributes:
        tracer_provider: Destination of spans; `None` is OpenTelemetry's global provider, looked up when a run starts.
        meter_provider: Destination of metrics; `None` is OpenTelemetry's global provider, looked up when a run starts.
        log_sinks: Sinks that receive every log line, whatever structlog and logging are set to.
        capture: Capture policy; `None` reads the environment.
        listeners: Patterns, and listeners that receive the matching events of every run.
    """

    @property
    def tracer_provider(self) -> trace.TracerProvider | None:
        """Destination of spans."""

    @property
    def meter_provider(self) -> metrics.MeterProvider | None:
        """Destination of metrics."""

    @property
    def log_sinks(self) -> Sequence[LogSink] | None:
        """Destinations of log lines."""

    @property
    def capture(self) -> CapturePolicy | None:
        """Capture policy."""

    @property
    def listeners(self) -> Sequence[tuple[str, Listener]] | None:
        """Patterns and listeners of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """Pipeline with explicit options. Options that are None come from `configure()`, else from OpenTelemetry's globals.

    ```python
    Agent("support", model=model, telemetry=TelemetryOptions(capture=CapturePolicy("metadata")))
    ```

    Attributes:
        tracer_provider: Destination of spans.
        meter_provider: Destination of metrics.
        log_sinks: Destinations of log lines; `()` for none.
        capture: Capture policy.
        listeners: Patterns, and listeners of the matching events; `()` for none.
        catalog_sinks: Destinations of whole catalogues; `()` for none.
        early_input: Whether spans have their inputs as soon as these are known, for exporters that show them meanwhile.
        clock: Source of all times of a run, in nanoseconds since the epoch; for tests.

    Raises:
        ConfigError: `capture` is not a policy.
    """

    tracer_provider: trace.TracerProvider | None = None
    meter_provider: metrics.MeterProvider | None = None
    log_sinks: Sequence[LogSink] | None = None
    capture: CapturePolicy | None = None
    listeners: Sequence[tuple[str, Listener]] | None = None
    catalog_sinks: Sequence[CatalogSink] | None = None
    early_input: bool | None = None
    clock: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        capture: Any = self.capture
        if not isinstance(capture, CapturePolicy | None):
            from pellucid.caller_checks import not_a_policy

            raise not_a_policy("TelemetryOptions", capture)


_FIELDS: Final = tuple(field.name for field in fields(TelemetryOptions))

_GLOBAL: Final = TelemetryOptions(log_sinks=(), listeners=(), catalog_sinks=())
"""OpenTelemetry's global providers, looked up when a run starts."""

_configured: Final[list[Pipeline]] = []
"""The pipeline of agents without one, if it was set."""

_captures: Final[list[Pipeline]] = []
"""Those of tests, the innermost last."""


Settle: TypeAlias = Callable[[Pipeline | None, float, bool], bool]

unsettled: Final[list[Settle]] = []
"""Background work that still makes telemetry, such as scores; see `settle`."""


def settle(pipeline: Pipeline | None, within: float, *, is_last: bool = False) -> bool:
    """Wait for what still makes telemetry in the background, before it is flushed; return whether all is there.

    Args:
        pipeline: Where the telemetry goes; None for all of it.
        within: Seconds to wait at most.
        is_last: Whether the telemetry ends then, so that what is late is dropped.
    """
    settled = [wait(pipeline, within, is_last) for wait in unsettled]
    return all(settled)


def set_default(pipeline: Pipeline) -> None:
    """Set the pipeline of agents without one, and load what records, before the runs that it would delay."""
    import pellucid.telemetry.content  # noqa: F401

    _configured[:] = [pipeline]


def unset_default(pipeline: Pipeline) -> None:
    """Give agents without a pipeline the global providers again, if `pipeline` is their pipeline."""
    if _configured and _configured[0] is pipeline:
        _configured.clear()


def capturing(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Make a pipeline that of agents without one within the block, also if the block sets another default."""
    return Within(_captures, pipeline)


def current_default() -> Pipeline:
    """Return the pipeline of the innermost capture, or else the default one, or else the global providers."""
    if _captures:
        return _captures[-1]
    return _configured[-1] if _configured else _GLOBAL


def complete(pipeline: Pipeline | None) -> Pipeline:
    """Return a pipeline whose unset options are those of the default."""
    default = current_default()
    if not isinstance(pipeline, TelemetryOptions):
        return pipeline or default
    missing = {name: getattr(default, name, None) for name in _FIELDS if getattr(pipeline, name) is None}
    return replace(pipeline, **missing)
