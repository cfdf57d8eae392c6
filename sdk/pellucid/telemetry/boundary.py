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
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, StatusCode, format_span_id, format_trace_id
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import RunCancelled
from pellucid.events import Event
from pellucid.failures import contained, error_type_of, is_exit, stack_of
from pellucid.telemetry.phases import Phase
from pellucid.telemetry.recording import Content, Record, Recorded, Recorder
from pellucid.telemetry.scope import Scope
from pellucid.types import JSONValue

MAX_STACK: Final = 16 * 1024
"""Maximum characters of a stack trace."""

_ALWAYS_LOGGED: Final = ("outcome", "duration_ms", "error", "error_type")
_LEVELS: Final = {
    semconv.COMPLETED: "info",
    semconv.CANCELLED: "info",
    semconv.FAILED: "error",
    semconv.TIMEOUT: "error",
}


class Boundary:
    """Observation of one phase, from its start to its end.

    Attributes:
        span: Span of the phase.
        context: OpenTelemetry context with the span.
        records: Whether the span is recording.
    """

    def __init__(self, scope: Scope, phase: Phase, target: str, notes: dict[str, Any], began: int | None) -> None:
        self._scope = scope
        self._phase = phase
        self._notes = notes
        self._later: dict[str, Any] = {}
        self._labels: Mapping[str, Any] = {}
        self._extra: Mapping[str, AttributeValue] = {}
        self._error: BaseException | None = None
        self._start = scope.now() if began is None else began
        self.span = self._start_span(f"{phase.operation} {target}" if target else phase.operation)
        self.context = trace.set_span_in_context(self.span)
        self.records = self.span.is_recording()
        self._content = (
            Content(scope.recorder, self.span) if self.records and scope.recorder.policy.mode != "off" else None
        )

    def __enter__(self) -> Self:
        self._attached = otel_context.attach(self.context)
        self._scope.open[self] = self._abandon
        if self._phase.started is not None:
            try:
                self._emit(self._phase.started, self._notes)
            except BaseException as error:  # a listener's interrupt
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A coroutine that is garbage collected is closed in another context; its own context no longer exists.
        if kind is not GeneratorExit:
            otel_context.detach(self._attached)
        if self._scope.open.pop(self, None) is not None:
            self._end(contained(error) if error is not None and is_exit(error) else error or self._error)

    def _abandon(self) -> None:
        """End a boundary whose code was abandoned; the later exit of that code then has no effect."""
        if self._scope.open.pop(self, None) is not None:
            self._end(_Abandoned())

    def note(self, **notes: Any) -> None:
        """Set facts by the keys of the phase's `names`; `None` means unknown and is omitted."""
        self._notes.update(notes)
        self._later.update(notes)

    def noted(self, name: str) -> Any:
        """Return a fact that was set with `note`, or None."""
        return self._notes.get(name)

    def label(self, **labels: Any) -> None:
        """Set labels of the metric that differ from the span's attributes, to limit their cardinality."""
        self._labels = labels

    def attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes that are not in the phase's `names`."""
        self._extra = {**self._extra, **attributes}

    def event(self, name: str, facts: Mapping[str, AttributeValue]) -> None:
        """Add an event to the span, unless the span has ended because its run was abandoned."""
        self._scope.add_event(self.span, name, facts)

    def fail(self, error: Exception) -> None:
        """Mark the phase as failed although it returns, such as a tool whose failure is a result for the model."""
        self._error = error

    def link(self, other: SpanContext) -> None:
        """Link to the span that did the work."""
        try:
            self.span.add_link(other)
        except Exception as error:  # noqa: BLE001  (spans are the application's)
            self._scope.fault("span", error)

    def input(self, value: JSONValue) -> None:
        """Record the input."""
        self.record_input(lambda recorder: recorder.value(value))

    def output(self, value: JSONValue) -> None:
        """Record the output."""
        self.record_output(lambda recorder: recorder.value(value))

    def record_input(self, record: Record) -> None:
        """Record the input that `record` returns."""
        self._record(Content.add_end, self._phase.input, semconv.INPUT_DIGEST, semconv.INPUT_BYTES, record)

    def record_output(self, record: Record) -> None:
        """Record the output that `record` returns."""
        self._record(Content.add_end, self._phase.output, semconv.OUTPUT_DIGEST, semconv.OUTPUT_BYTES, record)

    def content(self, attribute: str, version: str, record: Record) -> None:
        """Record content as an attribute of its own, unless the run has already recorded this version of it."""
        self._record(Content.add_new, attribute, version, record)

    def _record(self, add: Callable[..., object], *args: Any) -> None:
        if self._content is None:
            return
        try:
            add(self._content, *args)
        except Exception as error:  # noqa: BLE001  (redactors and content are the application's)
            self._scope.fault("recording", error)

    def _start_span(self, name: str) -> Span:
        scope, phase = self._scope, self._phase
        attributes = {**scope.common, **phase.attributes, **_attributes(phase, self._notes)}
        if scope.iteration:
            attributes[semconv.ITERATION] = scope.iteration
        try:
            return scope.tracer.start_span(name, kind=phase.kind, attributes=attributes, start_time=self._start)
        except Exception as error:  # noqa: BLE001  (span processors are the application's)
            scope.fault("span", error)
            return NonRecordingSpan(trace.get_current_span().get_span_context())

    def _end(self, error: BaseException | None) -> None:
        end = self._scope.now()
        outcome, error_type = self._outcome_of(error)
        text = self._scope.text_of(error) if error is not None and error_type else None
        is_described = self.records or self._phase.exception is not None
        described = (
            self._described(error, text) if is_described and isinstance(error, Exception) and text is not None else None
        )
        try:
            self._end_span(end, outcome, error_type, text, described)
        except Exception as fault:  # noqa: BLE001  (span processors are the application's)
            self._scope.fault("span", fault)
        try:
            self._measure(end, error_type)
        except Exception as fault:  # noqa: BLE001  (metric readers are the application's)
            self._scope.fault("metric", fault)
        event = self._phase.completed if outcome == semconv.COMPLETED else self._phase.failed
        ended = self._notes
        ended["outcome"], ended["duration_ms"] = outcome, (end - self._start) / 1e6
        if error_type:
            ended["error"], ended["error_type"] = text, error_type
        if event is not None:
            self._emit(event, ended)
        if described is not None and self._phase.exception is not None:
            self._scope.lines.sink(
                "warning", self._phase.exception, {**self._ids(), **described}, end, self._scope.fault
            )
        if self._scope.lines.is_enabled(_LEVELS[outcome]):
            self._log(event.name if event is not None else f"{self._phase.operation}.{outcome}", outcome, end)

    def _outcome_of(self, error: BaseException | None) -> tuple[str, str | None]:
        """Return the outcome and `error.type`."""
        if error is None:
            return semconv.COMPLETED, None
        if isinstance(error, RunCancelled):
            return semconv.CANCELLED, None
        if not isinstance(error, Exception):
            if self._scope.interrupted_by_deadline():
                return semconv.TIMEOUT, semconv.TIMEOUT
            return semconv.CANCELLED, None
        error_type = error_type_of(error)
        return (semconv.TIMEOUT if error_type == semconv.TIMEOUT else semconv.FAILED), error_type

    def _end_span(
        self,
        end: int,
        outcome: str,
        error_type: str | None,
        text: str | None,
        described: Mapping[str, AttributeValue] | None,
    ) -> None:
        span = self.span
        try:
            if self.records:
                content = self._content.attributes if self._content is not None else {}
                later = _attributes(self._phase, self._later)
                attributes = {**later, **self._extra, **content, semconv.OUTCOME: outcome}
                if error_type:
                    attributes[semconv.ERROR_TYPE] = error_type
                    span.set_status(StatusCode.ERROR, text)
                span.set_attributes(attributes)
                if described is not None:
                    span.add_event("exception", described, timestamp=end)
        finally:
            span.end(end_time=end)

    def _described(self, error: Exception, text: str) -> dict[str, AttributeValue] | None:
        """Return the attributes of an exception; None if redacting the stack trace fails, which is counted."""
        stack = self._scope.text(stack_of(error), MAX_STACK)
        if stack is None:
            return None
        return {
            "exception.type": f"{type(error).__module__}.{type(error).__qualname__}",
            "exception.message": text,
            "exception.stacktrace": stack,
        }

    def _measure(self, end: int, error_type: str | None) -> None:
        phase = self._phase
        notes = {**self._notes, **self._labels} if self._labels else self._notes
        labels, noted = _labels(phase)
        labels = labels.copy()
        for note, name in noted:
            if (value := notes.get(note)) is not None:
                labels[name] = value
        if error_type and semconv.ERROR_TYPE in phase.duration.attributes:
            labels[semconv.ERROR_TYPE] = error_type
        instruments, seconds = self._scope.instruments.by_name, (end - self._start) / 1e9
        instruments[phase.duration.name].record(seconds, labels, context=self.context)
        if phase.late is not None and (objective := notes.get("objective")) is not None:
            late = int(seconds > objective)  # 0 creates the series, so that its first increase is visible
            instruments[phase.late.name].add(late, labels, context=self.context)

    def _log(self, event: str, outcome: str, end: int) -> None:
        fields = self._ids()
        for name in (*self._phase.logged, *_ALWAYS_LOGGED):
            if (value := self._notes.get(name)) is not None:
                fields[name] = value
        self._scope.lines.write(_LEVELS[outcome], event, fields, end, self._scope.fault)

    def _ids(self) -> dict[str, Any]:
        """Return the fields common to all log records of this boundary."""
        scope, span = self._scope, self.span.get_span_context()
        return {
            "agent": scope.agent,
            "run_id": scope.run_id,
            "iteration": scope.iteration,
            "trace_id": format_trace_id(span.trace_id),
            "span_id": format_span_id(span.span_id),
        }

    def _emit(self, event: type[Event], notes: Mapping[str, Any]) -> None:
        self._scope.emit(event, self.span.get_span_context(), notes)


class _Abandoned(GeneratorExit):
    """Stand-in for the cancellation that the code did not honour."""


def boundary(scope: Scope, phase: Phase, target: str = "", /, *, began: int | None = None, **notes: Any) -> Boundary:
    """Observe a phase from this call to the exit of the context.

    Args:
        scope: Scope of the run, or any other scope.
        phase: One of `pellucid.telemetry.phases`.
        target: Object of the operation; the second word of the span's name.
        began: Earlier start in nanoseconds, from `scope.now()`.
        notes: Facts known at the start, which a sampler may use.
    """
    return Boundary(scope, phase, target, notes, began)


def once(cache: dict[object, Recorded], record: Record) -> Record:
    """Return `record` with its result cached per policy in `cache`, which belongs to the recorded object."""

    def cached(recorder: Recorder) -> Recorded:
        recorded = cache.get(recorder.policy)
        if recorded is None:
            recorded = cache[recorder.policy] = record(recorder)
        return recorded

    return cached


def _attributes(phase: Phase, notes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    names = phase.names
    return {names[note]: value for note, value in notes.items() if value is not None and note in names}


@cache
def _labels(phase: Phase) -> tuple[dict[str, AttributeValue], tuple[tuple[str, str], ...]]:
    """Return the constant labels of a phase, and the names of the notes and labels that vary."""
    allowed = phase.duration.attributes
    constant = {name: value for name, value in phase.attributes.items() if name in allowed}
    return constant, tuple((note, name) for note, name in phase.names.items() if name in allowed)
