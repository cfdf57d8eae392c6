"""Boundary, the one primitive of telemetry: the observation of a phase.

```python
with boundary(run, DISCOVERY, provider.id, provider_id=provider.id) as b:
    tools = ...
    b.note(tool_count=len(tools))
    b.output(tools)
```

The clock is read once at the start and once at the end; span, metric, events and log line all use these two readings,
so they agree. A boundary that starts ends exactly once, whatever ends it. A failure of a listener, processor,
serialiser or exporter never fails the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Token
from functools import cache
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, StatusCode
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import PassLost, RunCancelled
from pellucid.failures import contained, error_kind_of, error_type_of, is_exit, stack_of
from pellucid.telemetry.log_lines import LEVELS, LOGGER
from pellucid.telemetry.phases import Phase
from pellucid.telemetry.scope import Scope
from pellucid.types import JSONValue

if TYPE_CHECKING:
    from pellucid.telemetry.content import CapturedValue, CaptureFunction, Capturer, Content

MAX_STACK: Final = 16 * 1024
"""Maximum characters of a stack trace."""

_ALWAYS_LOGGED: Final = ("outcome", "duration_ms", "error", "error_type")
_LEVELS: Final = {semconv.FAILED: "error", semconv.TIMEOUT: "error", semconv.LOST: "error"}


class Boundary:
    """Observation of one phase, from its start to its end.

    Attributes:
        start: Start in nanoseconds since the epoch.
        span: Span of the phase.
        context: OpenTelemetry context with the span.
        records: Whether the span is recording.
    """

    # What few boundaries have is replaced, never changed in place.
    _labels: Mapping[str, Any] = MappingProxyType({})
    _extra: Mapping[str, AttributeValue] = MappingProxyType({})
    _error: BaseException | None = None
    _afterwards: Callable[[], object] | None = None
    _attached: Token[Context] | None = None
    _content: Content | None = None

    def __init__(
        self, scope: Scope, phase: Phase, target: str, notes: dict[str, Any], start: int | None, end: int | None
    ) -> None:
        self._scope = scope
        self._phase, self._target = phase, target
        self._notes = notes
        self.start = scope.now() if start is None else start
        self._end_time = end
        self._outer = otel_context.get_current()
        self.span, self.context = self._start_span() if scope.tracer is not None else _no_span(self._outer)
        self.records = self.span.is_recording()
        if self.records:
            self._later: dict[str, Any] = {}
            self._content = scope.capturer.content(self.span) if scope.policy.mode != "off" else None

    def __enter__(self) -> Self:
        if self.context is not self._outer:
            self._attached = otel_context.attach(self.context)
        self._scope.open[self] = self.abandon
        if (event := self._phase.started) is not None and self._scope.has_listener(event.name):
            try:
                self._scope.emit(event, self.span.get_span_context(), self._notes)
            except BaseException as error:  # a listener's interrupt
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A coroutine that is garbage collected is closed in another context; its own context no longer exists.
        if self._attached is not None and kind is not GeneratorExit:
            otel_context.detach(self._attached)
        if self._scope.open.pop(self, None) is not None:
            self._end(contained(error) if error is not None and is_exit(error) else error or self._error)

    def abandon(self) -> None:
        """End a boundary whose code was abandoned; the later exit of that code then has no effect."""
        if self._scope.open.pop(self, None) is not None:
            self._end(_Abandoned())

    def note(self, **notes: Any) -> None:
        """Set facts by the keys of the phase's `names`; `None` means unknown and is omitted."""
        self._notes.update(notes)
        if self.records:
            self._later.update(notes)

    @property
    def parent(self) -> SpanContext:
        """Context of the span that was current at the start; invalid if there was none."""
        return trace.get_current_span(self._outer).get_span_context()

    def facts(self) -> dict[str, Any]:
        """Return the facts so far that are attributes of the span and JSON."""
        return {name: value for name, value in self._notes.items() if name in self._phase.names and value is not None}

    def noted(self, name: str) -> Any:
        """Return a fact that was set with `note`, or None."""
        return self._notes.get(name)

    def label(self, **labels: Any) -> None:
        """Set labels of the metric that differ from the span's attributes, to limit their cardinality."""
        self._labels = labels

    def attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes that are not in the phase's `names`."""
        self._extra = {**self._extra, **attributes}

    def event(self, name: str, facts: Mapping[str, AttributeValue], time: int | None = None) -> None:
        """Add an event to the span, unless the span has ended because its run was abandoned."""
        self._scope.add_event(self.span, name, facts, self._end_time if time is None else time)

    def fail(self, error: Exception) -> None:
        """Mark the phase as failed although it returns, such as a tool whose failure is a result for the model."""
        self._error = error

    def end_at(self, end: int) -> None:
        """Set an end before the exit of the context, in nanoseconds, from `scope.now()`."""
        self._end_time = end

    def afterwards(self, function: Callable[[], object]) -> None:
        """Call `function` once the phase has ended, such as to emit what follows from its failure."""
        self._afterwards = function

    def link(self, other: SpanContext) -> None:
        """Link to the span that did the work."""
        self._scope.guarded("span", self.span.add_link, other)

    def input(self, value: JSONValue) -> None:
        """Record the input."""
        if self._content is not None:
            self.capture_input(lambda capturer: capturer.value(value))

    def output(self, value: JSONValue) -> None:
        """Record the output."""
        self.capture_output(lambda capturer: capturer.value(value))

    def capture_input(self, record: CaptureFunction) -> None:
        """Record the input that `record` returns."""
        if self._content is not None:
            digest, size = semconv.INPUT_DIGEST, semconv.INPUT_BYTES
            self._scope.guarded("recording", self._content.add, self._phase.input, record, digest, size)
            self._show_input()

    def capture_output(self, record: CaptureFunction) -> None:
        """Record the output that `record` returns."""
        if self._content is not None:
            digest, size = semconv.OUTPUT_DIGEST, semconv.OUTPUT_BYTES
            self._scope.guarded("recording", self._content.add, self._phase.output, record, digest, size)

    def content(self, attribute: str, version: str, record: CaptureFunction) -> None:
        """Record content as an attribute of its own, unless the run has already recorded this version of it."""
        if self._content is not None:
            self._scope.guarded("recording", self._content.add_new, attribute, version, record)
            self._show_input()

    def _show_input(self) -> None:
        """Set the content so far on the span, if somebody reads it before it ends."""
        if self._scope.has_early_input and self._content is not None:
            self._scope.guarded("span", self.span.set_attributes, self._content.attributes)

    @property
    def _name(self) -> str:
        """Name of the span."""
        return f"{self._phase.operation} {self._target}" if self._target else self._phase.operation

    def _start_span(self) -> tuple[Span, Context]:
        """Return a span and the context with it."""
        scope, phase, outer = self._scope, self._phase, self._outer
        assert scope.tracer is not None
        attributes = {**scope.common, **phase.attributes, **_attributes(phase, self._notes)}
        if scope.iteration:
            attributes[semconv.ITERATION] = scope.iteration
        start = scope.tracer.start_span
        span = scope.guarded("span", start, self._name, outer, phase.kind, attributes, start_time=self.start)
        if span is None:
            return _not_recording(trace.get_current_span(outer), outer)
        return span, trace.set_span_in_context(span, outer)

    def _end(self, error: BaseException | None) -> None:
        self._conclude(error)
        if self._afterwards is not None:
            self._afterwards()

    def _conclude(self, error: BaseException | None) -> None:
        scope, phase, notes = self._scope, self._phase, self._notes
        outcome, error_type = self._outcome_of(error) if error is not None else (semconv.COMPLETED, None)
        event = phase.completed if outcome == semconv.COMPLETED else phase.failed
        level = _LEVELS.get(outcome, "info")
        is_emitted = event is not None and scope.has_listener(event.name)
        is_logged = scope.lines.is_kept or (LOGGER.isEnabledFor(LEVELS[level]) and scope.lines.is_enabled(level))
        if not (is_emitted or is_logged or scope.is_measured or scope.tracer is not None):
            return
        end = self._end_time or scope.now()
        notes["outcome"], notes["duration_ms"] = outcome, (end - self.start) / 1e6
        if error is not None and error_type:
            notes["error"], notes["error_type"] = scope.text_of(error), error_type
            notes["failed_phase"] = scope.phase_of(error, phase.name)
        is_described = error is not None and (self.records or phase.exception is not None)
        described = self._described(error) if is_described else None
        if scope.tracer is not None and not (phase.is_journalled and scope.is_continued_elsewhere()):
            scope.guarded("span", self._end_span, end, error, described)
        # When a lost process ended is not known.
        if scope.is_measured and phase.is_measured and outcome != semconv.LOST:
            scope.guarded("metric", self._measure, end)
        if event is not None and is_emitted:
            scope.emit(event, self.span.get_span_context(), notes)
        if described is not None and phase.exception is not None:
            fields = {**scope.ids(self.span.get_span_context()), **described}
            scope.lines.sink("warning", phase.exception, fields, end, scope.guarded)
        if is_logged:
            fields = scope.ids(self.span.get_span_context())
            for note in (*phase.logged, *_ALWAYS_LOGGED):
                if (value := notes.get(note)) is not None:
                    fields[note] = value
            name = event.name if event is not None else f"{phase.operation}.{outcome}"
            scope.lines.write(level, name, fields, end, scope.guarded, self.context)

    def _outcome_of(self, error: BaseException) -> tuple[str, str | None]:
        """Return the outcome and `error.type` of a phase that did not complete."""
        if isinstance(error, PassLost):
            return semconv.LOST, error.error_type
        if isinstance(error, Exception) and not isinstance(error, RunCancelled):
            error_type = error_type_of(error)
            return (semconv.TIMEOUT if error_type == semconv.TIMEOUT else semconv.FAILED), error_type
        if not isinstance(error, RunCancelled) and self._scope.interrupted_by_deadline():
            self._scope.overdue = (*self._scope.overdue, self._name)
            return semconv.TIMEOUT, semconv.TIMEOUT
        return semconv.CANCELLED, None

    def _end_span(self, end: int, error: BaseException | None, described: Mapping[str, AttributeValue] | None) -> None:
        span, notes = self.span, self._notes
        try:
            if self.records:
                content = self._content.attributes if self._content is not None else {}
                later = _attributes(self._phase, self._later)
                attributes = {**later, **self._extra, **content, semconv.OUTCOME: notes["outcome"]}
                if error is not None and (error_type := notes.get("error_type")):
                    attributes[semconv.ERROR_TYPE] = error_type
                    # A cancellation has an `error.type` only if it is due to the deadline.
                    kind = (
                        self._scope.guarded("span", error_kind_of, error) if isinstance(error, Exception) else "timeout"
                    )
                    attributes[semconv.ERROR_KIND] = kind or "unknown"
                    span.set_status(StatusCode.ERROR, notes["error"])
                span.set_attributes(attributes)
                if described is not None:
                    span.add_event("exception", described, timestamp=end)
        finally:
            span.end(end_time=end)

    def _described(self, error: BaseException | None) -> dict[str, AttributeValue] | None:
        """Return the attributes of an exception; None if it has no text, or the text cannot be redacted."""
        text = self._notes.get("error")
        if not isinstance(error, Exception) or text is None:
            return None
        stack = self._scope.text(stack_of(error), MAX_STACK)
        if stack is None:
            return None
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return {"exception.type": kind, "exception.message": text, "exception.stacktrace": stack}

    def _measure(self, end: int) -> None:
        phase = self._phase
        notes = {**self._notes, **self._labels} if self._labels else self._notes
        constant, noted = _labels(phase)
        labels = constant.copy()
        for note, name in noted:
            if (value := notes.get(note)) is not None:
                labels[name] = value
        if (error_type := notes.get("error_type")) and semconv.ERROR_TYPE in phase.duration.attributes:
            labels[semconv.ERROR_TYPE] = error_type
            if phase.failures is not None:
                by_phase = {semconv.AGENT_NAME: notes["agent"], semconv.PHASE: notes["failed_phase"]}
                self._scope.count(phase.failures, 1, {**by_phase, semconv.ERROR_TYPE: error_type}, self.context)
        instruments, seconds = self._scope.instruments, (end - self.start) / 1e9
        bounded = instruments.labels.bounded(labels)
        instruments.by_name[phase.duration.name].record(seconds, bounded, context=self.context)
        if phase.late is not None and (objective := notes.get("objective")) is not None:
            late = int(seconds > objective)  # 0 creates the series, so that its first increase is visible
            instruments.by_name[phase.late.name].add(late, bounded, context=self.context)


class _Abandoned(GeneratorExit):
    """Stand-in for the cancellation that the code did not honour."""


def boundary(
    scope: Scope,
    phase: Phase,
    target: str = "",
    /,
    *,
    start: int | None = None,
    end: int | None = None,
    **notes: Any,
) -> Boundary:
    """Observe a phase from this call to the exit of the context.

    Args:
        scope: Scope of the run, or any other scope.
        phase: One of `pellucid.telemetry.phases`.
        target: Object of the operation; the second word of the span's name.
        start: Earlier start in nanoseconds, from `scope.now()`.
        end: Earlier end in nanoseconds, not before the start.
        notes: Facts known at the start, which a sampler may use.
    """
    return Boundary(scope, phase, target, notes, start, end)


def once(cache: dict[object, CapturedValue], record: CaptureFunction) -> CaptureFunction:
    """Return `record` with its result cached per policy in `cache`, which belongs to the recorded object."""

    def cached(capturer: Capturer) -> CapturedValue:
        recorded = cache.get(capturer.policy)
        if recorded is None:
            recorded = cache[capturer.policy] = record(capturer)
        return recorded

    return cached


def _no_span(outer: Context) -> tuple[Span, Context]:
    """Return the span and the context of the outer boundary, because no tracer makes spans."""
    current = trace.get_current_span(outer)
    return (current, outer) if isinstance(current, NonRecordingSpan) else _not_recording(current, outer)


def _not_recording(current: Span, outer: Context) -> tuple[Span, Context]:
    """Return a span that has only the span context of the current one, and the context with it."""
    span = NonRecordingSpan(current.get_span_context())
    return span, trace.set_span_in_context(span, outer)


def _attributes(phase: Phase, notes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    names = phase.names
    return {names[note]: value for note, value in notes.items() if value is not None and note in names}


@cache
def _labels(phase: Phase) -> tuple[dict[str, AttributeValue], tuple[tuple[str, str], ...]]:
    """Return the constant labels of a phase, and the names of the notes and labels that vary."""
    allowed = phase.duration.attributes
    constant = {name: value for name, value in phase.attributes.items() if name in allowed}
    return constant, tuple((note, name) for note, name in phase.names.items() if name in allowed)
