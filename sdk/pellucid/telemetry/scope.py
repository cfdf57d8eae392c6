"""Scope, the shared state of the boundaries of one run: destinations and common attributes of its telemetry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import anyio
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, format_span_id, format_trace_id
from opentelemetry.util.types import Attributes, AttributeValue

from pellucid import semconv
from pellucid.context import Identity
from pellucid.events import Event, TelemetryError
from pellucid.failures import describe, error_type_of
from pellucid.semconv import Metric
from pellucid.telemetry.capture import CapturePolicy
from pellucid.telemetry.listeners import Fault, Listeners
from pellucid.telemetry.log_lines import LogLines
from pellucid.telemetry.phases import PAYLOADS
from pellucid.telemetry.pipeline import CatalogSink, Pipeline, complete, current_default
from pellucid.text import clean
from pellucid.types import JSONValue
from pellucid.version import __version__

if TYPE_CHECKING:
    from pellucid.telemetry.content import Capturer
    from pellucid.telemetry.metrics import Instruments

_P = ParamSpec("_P")
_T = TypeVar("_T")

DEADLINE_PASSED: Final = "the run's deadline passed"
"""Error of a boundary that the deadline of its run has ended."""

MAX_ERROR: Final = 4 * 1024
"""Maximum characters of an error message."""

_faults_logged: set[str] = set()


class Scope:
    """Telemetry of one run.

    Attributes:
        agent: Name of the agent.
        run_id: Id of the run; empty for work that belongs to no run.
        trace_id: Trace of the run, in hexadecimal digits; all zero before it has one.
        span_id: Its span, in hexadecimal digits; all zero before it has one.
        start: Time at which the run started, in nanoseconds; 0 before.
        identity: Identity of the run.
        iteration: Current iteration, 1-based; 0 before the first.
        deadline: Deadline of the run in seconds, on the event loop's clock.
        expires_at: The same instant as a `datetime`, for contexts.
        cancelled: Whether the run was cancelled on purpose, so that its boundaries do not end as timeouts.
        has_listener: Returns whether a listener is subscribed to events of a name; if not, the event need not be made.
        overdue: Names of the boundaries that the deadline ended, innermost first.
        open: Boundaries that have not ended, innermost last, with the functions that end them.
        degraded: Ids of providers that were skipped because they failed, or had not answered yet.
        listed: Context and catalogues of the pass' last listing of all providers.
        is_continued_elsewhere: Returns whether another process continues the durable run, and ends its spans.
        common: Attributes of every span.
        listeners: Listeners that receive the run's events.
        pipeline: Destinations of the telemetry.
        lines: Log lines of the run.
        policy: Capture policy of the run's content.
        has_early_input: Whether spans have their inputs as soon as these are known, and not only at their end.
        catalog_sinks: Destinations of whole catalogues; none if no content is recorded.
        tracer: Tracer of the pipeline's tracer provider; None if it makes no spans.
        is_measured: Whether measurements reach a meter provider that keeps them.
    """

    trace_id, span_id, start = "0" * 32, "0" * 16, 0
    listed: tuple[Any, Sequence[Any]] | None = None
    overdue: Sequence[str] = ()

    def __init__(
        self,
        *,
        agent: str = "",
        run_id: str = "",
        identity: Identity | None = None,
        pipeline: Pipeline | None = None,
        listeners: Sequence[Listeners] = (),
    ) -> None:
        self.pipeline = pipeline = complete(pipeline)
        self.agent = agent
        self.run_id = run_id
        self.identity = identity
        self.iteration = 0
        self.deadline: float | None = None
        self.expires_at: datetime | None = None
        self.cancelled = False
        self.open: dict[object, Callable[[], None]] = {}
        self._failed: tuple[str, BaseException | None] = ("", None)
        self.degraded: list[str] = []
        self.is_continued_elsewhere: Callable[[], bool] = _no
        self._run_listeners = tuple(listeners)
        own = Listeners(pipeline.listeners) if pipeline.listeners else None
        self.listeners = (*self._run_listeners, own) if own else self._run_listeners
        names = [listeners.names for listeners in self.listeners]
        self.has_listener: Callable[[str], bool] = names[0].__contains__ if len(names) == 1 else _in_any(names)
        policy = pipeline.capture or CapturePolicy.from_environment()
        self.policy = policy.within_attribute_limit()
        sinks: Sequence[CatalogSink] | None = getattr(pipeline, "catalog_sinks", None)
        self.catalog_sinks = sinks if sinks and self.policy.content else ()
        self.has_early_input = bool(getattr(pipeline, "early_input", None))
        self.lines = LogLines(pipeline.log_sinks or ())
        self._meters = pipeline.meter_provider or metrics.get_meter_provider()
        self.is_measured = not _does_nothing(self._meters)
        tracers = pipeline.tracer_provider or trace.get_tracer_provider()
        self.tracer = None if _does_nothing(tracers) else tracers.get_tracer(semconv.SCOPE, __version__)
        self.common: Mapping[str, AttributeValue] = {semconv.RUN_ID: run_id} if run_id else {}
        # A pipeline for tests may have its own clock, which spans, metrics, events and log lines then use.
        clock: Callable[[], int] | None = getattr(pipeline, "clock", None)
        self._clock = clock or time.perf_counter_ns
        self._anchor = 0 if clock is not None else time.time_ns() - time.perf_counter_ns()

    @cached_property
    def capturer(self) -> Capturer:
        """Capturer of the run's content; a run that records nothing does not load it."""
        from pellucid.telemetry.content import Capturer

        return Capturer(self.policy)

    @cached_property
    def instruments(self) -> Instruments:
        """Instruments of the pipeline's meter provider; a run without one loads them if it asks hubs."""
        from pellucid.telemetry.metrics import instruments_of

        return instruments_of(self._meters)

    def detached(self) -> Scope:
        """Return a scope for work that outlives this run, with the same telemetry but without a run."""
        return Scope(agent=self.agent, pipeline=self.pipeline, listeners=self._run_listeners)

    def close(self) -> None:
        """End open boundaries: those of abandoned code, which did not stop when it was cancelled."""
        for end in reversed(list(self.open.values())):
            end()
        self._failed = ("", None)  # an error leads to the frames of its run

    def now(self) -> int:
        """Return nanoseconds since the epoch, monotonic within a run whatever happens to the wall clock."""
        return self._anchor + self._clock()

    def phase_of(self, error: BaseException, phase: str) -> str:
        """Return the phase in which an error of `phase` arose: the one within it that ended by the same error."""
        failed, cause = self._failed
        # Each task has a cancellation of its own, and only the deadline makes one an error.
        is_deadline = not isinstance(error, Exception) and cause is not None and not isinstance(cause, Exception)
        if cause is error or is_deadline:
            return failed
        self._failed = phase, error
        return phase

    def interrupted_by_deadline(self) -> bool:
        """Return whether a cancellation at this moment is due to the run's deadline."""
        if self.cancelled or self.deadline is None:
            return False
        try:
            return anyio.current_time() >= self.deadline
        except RuntimeError:  # no event loop: the run is garbage collected after its loop ended
            return False

    def count(self, metric: Metric, value: float, attributes: Attributes, context: Context | None = None) -> None:
        """Add to a counter, or record in a histogram; the exemplar refers to the span of `context`."""
        if not self.is_measured:
            return
        instrument = self.instruments.by_name.get(metric.name) or self.instruments.added(metric)
        write = instrument.record if metric.kind == "histogram" else instrument.add
        self.guarded("metric", self._write, write, value, attributes, context)

    def _write(self, write: Any, value: float, attributes: Attributes, context: Context | None) -> None:
        write(value, self.instruments.labels.bounded(attributes) if attributes else attributes, context=context)

    def measure(
        self, metric: Metric, start: int, labels: Mapping[str, AttributeValue], context: Context | None = None
    ) -> None:
        """Record the time since `start`, from `now()`, with those labels that the metric has."""
        allowed = {name: value for name, value in labels.items() if name in metric.attributes}
        self.count(metric, (self.now() - start) / 1e9, allowed, context)

    def emit(
        self,
        event: type[Event],
        span: SpanContext,
        payload: Mapping[str, Any],
        *,
        to: Sequence[Listeners] | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Create an event and deliver it to listeners, if any of them is subscribed.

        Args:
            event: Class of the event.
            span: Span that the event belongs to.
            payload: Values of the event's fields; other keys are ignored.
            to: Listeners instead of those of the run.
            fault: Receives faults of listeners instead of `fault`.
        """
        fault, receivers = fault or self.fault, self.listeners if to is None else to
        subscribed = [listeners for listeners in receivers if listeners.has_listener(event.name)]
        if not subscribed:
            return
        try:
            fields: dict[str, Any] = {name: payload.get(name) for name in PAYLOADS[event]}
            emitted = event(identity=self.identity, time=self.now() / 1e9, **self.ids(span), **fields)
            for listeners in subscribed:
                listeners.deliver(emitted, fault, self._dropped)
        except Exception as error:  # noqa: BLE001  (telemetry never changes the run)
            fault("event", error)

    def ids(self, span: SpanContext) -> dict[str, Any]:
        """Return the fields that all events and log lines have."""
        return {
            "agent": self.agent,
            "run_id": self.run_id,
            "iteration": self.iteration,
            "trace_id": format_trace_id(span.trace_id),
            "span_id": format_span_id(span.span_id),
        }

    def add_event(self, span: Span, name: str, facts: Attributes, time: int | None = None) -> None:
        """Add an event to a span, unless the span has ended because its run or attempt was abandoned."""
        if span.is_recording():
            self.guarded("span", span.add_event, name, facts, time)

    def error_facts(self, error: BaseException | None) -> dict[str, str | None]:
        """Return the fields `error` and `error_type` of an event."""
        if error is None:
            return {"error": None, "error_type": None}
        return {"error": self.text_of(error), "error_type": error_type_of(error)}

    def text_of(self, error: BaseException) -> str | None:
        """Return an error message, redacted; None if no content is recorded or `str(error)` fails, which is counted.

        An error without a message is described by its cause or type. A cancellation is an error only because of the
        deadline.
        """
        if not isinstance(error, Exception):
            return self.text(DEADLINE_PASSED, MAX_ERROR)
        text = self.guarded("recording", lambda: str(error) or describe(error))
        return None if text is None else self.text(text, MAX_ERROR)

    def text(self, text: str, limit: int | None = None) -> str | None:
        """Return a text, redacted and cut; None if no content is recorded or a redactor fails, which is counted."""
        return self.guarded("recording", self.capturer.text, text, limit)

    def label(self, text: str) -> str | None:
        """Return a short text as `text` does, cached for repeated use."""
        return self.guarded("recording", self.capturer.label, text)

    def clean(self, value: JSONValue) -> JSONValue:
        """Return a value for an event, redacted and cut; None if no content is recorded or a redactor fails."""
        return self.guarded("recording", self.capturer.clean, value)

    def guarded(self, part: str, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Call code of the application on behalf of a part of telemetry; return None if it fails, which is counted."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (telemetry never changes the run)
            self.fault(part, error)
            return None

    def fault(self, part: str, error: BaseException) -> None:
        """Report a failure of telemetry: count it, log it once per part, and emit `TelemetryError`."""
        try:
            text = self.capturer.text(describe(error))
        except Exception:  # noqa: BLE001  (the redactor itself may have failed, which is counted below)
            text = None
        self._count_fault(part, error)
        if part not in _faults_logged:
            _faults_logged.add(part)
            logging.getLogger("pellucid").warning(
                "telemetry part %r failed (%s); runs are not affected; further faults are only counted",
                part,
                clean(text),
            )
        span = trace.get_current_span().get_span_context()
        # Faults of the listeners of this event are only counted; an event for them could recurse without end.
        self.emit(TelemetryError, span, {"part": part, "error": text}, fault=self._count_fault)

    def _count_fault(self, part: str, _error: BaseException) -> None:
        if part != "metric":
            self.count(semconv.TELEMETRY_ERRORS, 1, {semconv.TELEMETRY_PART: part})

    def _dropped(self) -> None:
        labels = {semconv.TELEMETRY_PART: "listener", semconv.TELEMETRY_REASON: "queue_full"}
        self.count(semconv.TELEMETRY_DROPPED, 1, labels)


def _in_any(names: Sequence[Container[str]]) -> Callable[[str], bool]:
    return lambda name: any(name in listened for listened in names)


def _no() -> bool:
    return False


def _does_nothing(provider: object) -> bool:
    """Return whether a provider is one of OpenTelemetry's API, which all stand for a provider that is missing."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def load_capture(pipeline: Pipeline | None) -> None:
    """Load what records spans, if there are any: it takes 50 ms, which would delay the first step of the first run."""
    if not _does_nothing(complete(pipeline).tracer_provider or trace.get_tracer_provider()):
        import pellucid.telemetry.content  # noqa: F401


_current: ContextVar[Scope | None] = ContextVar("pellucid_scope", default=None)


def current_scope() -> Scope:
    """Return the scope of the current run, or a new one that belongs to no run."""
    return _current.get() or Scope()


SHARED_FOR: Final = 10.0
"""Seconds for which a scope is shared; its clock follows the wall clock only when it is made."""


class _Shared(NamedTuple):
    """Scope that belongs to no run, and what it was made from."""

    scope: Scope
    sources: tuple[object, ...]
    expires: float


_shared: Final[list[_Shared]] = []


def shared_scope() -> Scope:
    """Return the scope of the current run, or one that belongs to no run and that others use at the same time."""
    if (scope := _current.get()) is not None:
        return scope
    sources = (current_default(), trace.get_tracer_provider(), metrics.get_meter_provider())
    now = time.monotonic()
    known = _shared[0] if _shared else None
    if known is None or now > known.expires or any(a is not b for a, b in zip(known.sources, sources, strict=True)):
        known = _Shared(Scope(), sources, now + SHARED_FOR)
        _shared[:] = [known]
    return known.scope


enter_scope: Final = _current.set
"""Make a scope the current one, and return the token for `leave_scope`."""

leave_scope: Final = _current.reset
