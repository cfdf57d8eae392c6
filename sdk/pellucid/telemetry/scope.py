"""What the boundaries of one run share: where their telemetry goes, and what all of it says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import anyio
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.context import Identity
from pellucid.events import Event, TelemetryError
from pellucid.failures import describe
from pellucid.telemetry.capture import CapturePolicy
from pellucid.telemetry.listeners import Listeners
from pellucid.telemetry.log_lines import LogLines
from pellucid.telemetry.metrics import instruments_of
from pellucid.telemetry.pipeline import Pipeline, complete
from pellucid.telemetry.recording import Recorder
from pellucid.text import clean
from pellucid.types import JSONValue
from pellucid.version import __version__

MAX_ERROR: Final = 4 * 1024
"""Characters of what an error says."""

_faults_logged: set[str] = set()


class Scope:
    """The telemetry of one run.

    Attributes:
        run_id: Empty for work that belongs to no run.
        iteration: 1-based; 0 before the first.
        common: Attributes of every span.
        deadline: When the run must be over, on the event loop's clock.
        cancelled: Set when the run was cancelled on purpose, so that what ends then is not called a timeout.
        open: Boundaries that have not ended, innermost last, and how to end them.
        degraded: Ids of providers that were left out because they failed.
    """

    __slots__ = (
        "_anchor",
        "_clock",
        "_given",
        "agent",
        "cancelled",
        "common",
        "deadline",
        "degraded",
        "identity",
        "instruments",
        "iteration",
        "lines",
        "listeners",
        "open",
        "pipeline",
        "recorder",
        "run_id",
        "tracer",
    )

    def __init__(
        self,
        *,
        agent: str = "",
        run_id: str = "",
        identity: Identity | None = None,
        pipeline: Pipeline | None = None,
        listeners: Sequence[Listeners] = (),
    ) -> None:
        pipeline = complete(pipeline)
        self.pipeline = pipeline
        self.agent = agent
        self.run_id = run_id
        self.identity = identity
        self.iteration = 0
        self.deadline: float | None = None
        self.cancelled = False
        self.open: dict[object, Callable[[], None]] = {}
        self.degraded: list[str] = []
        self._given = tuple(listeners)
        own = Listeners(pipeline.listeners) if pipeline.listeners else None
        self.listeners = (*self._given, own) if own else self._given
        policy = pipeline.capture or CapturePolicy.from_environment()
        self.recorder = Recorder(policy.within_attribute_limit())
        self.lines = LogLines(pipeline.log_sinks or ())
        self.instruments = instruments_of(pipeline.meter_provider or metrics.get_meter_provider())
        tracers = pipeline.tracer_provider or trace.get_tracer_provider()
        self.tracer = tracers.get_tracer(semconv.SCOPE, __version__)
        self.common: Mapping[str, AttributeValue] = {semconv.RUN_ID: run_id} if run_id else {}
        # A pipeline for tests may bring a clock of its own; then spans, metrics, events and log lines all go by it.
        clock: Callable[[], int] | None = getattr(pipeline, "clock", None)
        self._clock = clock or time.perf_counter_ns
        self._anchor = 0 if clock is not None else time.time_ns() - time.perf_counter_ns()

    def detached(self) -> Scope:
        """Return a scope for work that outlives this run: the same telemetry, but no run."""
        return Scope(agent=self.agent, pipeline=self.pipeline, listeners=self._given)

    def close(self) -> None:
        """End what is still open: boundaries of code that did not let itself be cancelled and was left behind."""
        for end in reversed(list(self.open.values())):
            end()

    def now(self) -> int:
        """Nanoseconds since the epoch that never go back within a run, whatever is done to the wall clock."""
        return self._anchor + self._clock()

    def interrupted_by_deadline(self) -> bool:
        """Whether a cancellation that arrives now is the run's deadline."""
        if self.cancelled or self.deadline is None:
            return False
        try:
            return anyio.current_time() >= self.deadline
        except RuntimeError:  # no event loop: the run was thrown away after its own had ended
            return False

    def count(
        self,
        metric: semconv.Metric,
        value: float,
        attributes: Mapping[str, AttributeValue],
        context: Context | None = None,
    ) -> None:
        """Add to a counter, or record in a histogram; its exemplar points to the span of `context`."""
        try:
            instrument = self.instruments.by_name[metric.name]
            (instrument.record if metric.kind == "histogram" else instrument.add)(value, attributes, context=context)
        except Exception as error:  # noqa: BLE001  (metric readers are the application's)
            self.fault("metric", error)

    def heard(self, name: str) -> bool:
        """Whether anybody listens to events of this name; if not, the event need not be made."""
        for listeners in self.listeners:  # noqa: SIM110  (asked ten times an iteration; a generator costs three times as much)
            if listeners.heard(name):
                return True
        return False

    def emit(
        self,
        event: type[Event],
        span: SpanContext,
        payload: Mapping[str, Any],
        *,
        to: Sequence[Listeners] | None = None,
    ) -> None:
        """Make an event and deliver it to all listeners or to some, if any of them listens."""
        heard = [listeners for listeners in (self.listeners if to is None else to) if listeners.heard(event.name)]
        if not heard:
            return
        try:
            made = self._event(event, span, payload)
            for listeners in heard:
                listeners.deliver(made, self.fault, self._dropped)
        except Exception as error:  # noqa: BLE001  (telemetry never changes the run)
            self.fault("event", error)

    def _event(self, event: type[Event], span: SpanContext, payload: Mapping[str, Any]) -> Event:
        return event(
            run_id=self.run_id,
            agent=self.agent,
            iteration=self.iteration,
            identity=self.identity,
            trace_id=format_trace_id(span.trace_id),
            span_id=format_span_id(span.span_id),
            time=self.now() / 1e9,
            **payload,
        )

    def text_of(self, error: BaseException) -> str | None:
        """Return what an error says, redacted; None if no content is recorded, or its text fails, which is counted.

        An error that says nothing is told by its cause or type; a cancellation only ever is an error by the deadline.
        """
        try:
            text = (str(error) or describe(error)) if isinstance(error, Exception) else "the run's deadline passed"
        except Exception as failure:  # noqa: BLE001  (errors are the application's)
            self.fault("recording", failure)
            return None
        return self.text(text, MAX_ERROR)

    def text(self, text: str, limit: int | None = None) -> str | None:
        """Return a text, redacted and cut; None if no content is recorded, or a redactor fails, which is counted."""
        found: str | None = self._guarded(self.recorder.text, text, limit)
        return found

    def label(self, text: str) -> str | None:
        """Return a short text that is needed again and again as `text` does."""
        found: str | None = self._guarded(self.recorder.label, text)
        return found

    def clean(self, value: JSONValue) -> JSONValue:
        """Return a value for an event, redacted and cut; None if no content is recorded, or a redactor fails."""
        return self._guarded(self.recorder.clean, value)

    def _guarded(self, redact: Callable[..., Any], *what: Any) -> Any:
        try:
            return redact(*what)
        except Exception as failure:  # noqa: BLE001  (redactors are the application's)
            self.fault("recording", failure)
            return None

    def fault(self, part: str, error: BaseException) -> None:
        """Note that something which only observes failed: counted always, logged once for each part, and told."""
        try:
            text = self.recorder.text(describe(error))
        except Exception:  # noqa: BLE001  (the redactor may be what failed, and it is being counted)
            text = None
        self._count_fault(part, error)
        if part not in _faults_logged:
            _faults_logged.add(part)
            logging.getLogger("pellucid").warning(
                "telemetry part %r failed (%s); runs are not affected; further faults are only counted",
                part,
                clean(text),
            )
        if self.heard(TelemetryError.name):
            span = trace.get_current_span().get_span_context()
            event = self._event(TelemetryError, span, {"part": part, "error": text})
            # Faults of those who hear this are counted and told to nobody, or it would never end.
            for listeners in self.listeners:
                listeners.deliver(event, self._count_fault, self._dropped)

    def _count_fault(self, part: str, _error: BaseException) -> None:
        if part != "metric":
            self.count(semconv.TELEMETRY_ERRORS, 1, {semconv.TELEMETRY_PART: part})

    def _dropped(self) -> None:
        self.count(semconv.TELEMETRY_DROPPED, 1, {semconv.TELEMETRY_PART: "listener"})


_current: ContextVar[Scope | None] = ContextVar("pellucid_scope", default=None)


def current_scope() -> Scope:
    """Return the scope of the run that this code runs in, or a new one that belongs to no run."""
    return _current.get() or Scope()


enter_scope: Final = _current.set
"""Make a scope the current one; returns the token for `leave_scope`."""

leave_scope: Final = _current.reset
