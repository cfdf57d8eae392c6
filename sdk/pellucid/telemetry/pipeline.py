"""Where telemetry goes: what an agent accepts as `telemetry`, and the default for what it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, TypeAlias

from opentelemetry import metrics, trace

from pellucid.telemetry.capture import CapturePolicy

LogSink: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Takes one log line per ended boundary, already redacted: `event`, `level`, `timestamp` (nanoseconds since the epoch),
`trace_id`, `span_id` (hexadecimal) and flat fields."""

Listener: TypeAlias = Callable[[Any], Any]
"""Hears events; sync (called at once, must not block) or async (called from a bounded queue).

It takes `Any` so that a listener of one kind of event can say so in its own signature."""


class Pipeline(Protocol):
    """The way out of a process, as `pellucid_exporters.configure()` and `capture()` make it.

    Attributes:
        tracer_provider: `None` is OpenTelemetry's global one, looked up when a run starts.
        meter_provider: The same.
        log_sinks: Each gets every log line, whatever structlog and logging are set to.
        capture: What is recorded; `None` asks the environment.
        listeners: Patterns and listeners that hear the events of every run.
    """

    @property
    def tracer_provider(self) -> trace.TracerProvider | None:
        """Where spans go."""
        ...

    @property
    def meter_provider(self) -> metrics.MeterProvider | None:
        """Where metrics go."""
        ...

    @property
    def log_sinks(self) -> Sequence[LogSink] | None:
        """Where log lines go."""
        ...

    @property
    def capture(self) -> CapturePolicy | None:
        """What is recorded."""
        ...

    @property
    def listeners(self) -> Sequence[tuple[str, Listener]] | None:
        """Who hears events."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """A pipeline put together by hand. What is None comes from `configure()`, else from OpenTelemetry's globals.

    ```python
    Agent("support", model=model, telemetry=TelemetryOptions(capture=CapturePolicy("metadata")))
    ```

    Attributes:
        tracer_provider: Where spans go.
        meter_provider: Where metrics go.
        log_sinks: Where log lines go; `()` is nowhere.
        capture: What is recorded.
        listeners: Patterns and the listeners of events that match them; `()` is none.
        clock: Source of all times of a run, in nanoseconds since the epoch; for tests.
    """

    tracer_provider: trace.TracerProvider | None = None
    meter_provider: metrics.MeterProvider | None = None
    log_sinks: Sequence[LogSink] | None = None
    capture: CapturePolicy | None = None
    listeners: Sequence[tuple[str, Listener]] | None = None
    clock: Callable[[], int] | None = None


_FIELDS: Final = tuple(field.name for field in fields(TelemetryOptions))

_GLOBAL: Final = TelemetryOptions(log_sinks=(), listeners=())
"""OpenTelemetry's global providers, looked up when a run starts."""

_default: Pipeline | None = None


def set_default(pipeline: Pipeline | None) -> Pipeline | None:
    """Use `pipeline` in agents that are given none and return the previous one; `None` is the global providers."""
    global _default
    previous, _default = _default, pipeline
    return previous


def current_default() -> Pipeline:
    """Return the default pipeline, or the global providers of this moment."""
    return _default or _GLOBAL


def complete(pipeline: Pipeline | None) -> Pipeline:
    """Return a pipeline whose open fields are those of the default."""
    default = current_default()
    if not isinstance(pipeline, TelemetryOptions):
        return pipeline or default
    missing = {name: getattr(default, name, None) for name in _FIELDS if getattr(pipeline, name) is None}
    return replace(pipeline, **missing)
