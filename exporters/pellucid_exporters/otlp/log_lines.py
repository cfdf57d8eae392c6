"""Log lines of boundaries as OpenTelemetry log records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LogRecordProcessor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.util.types import AnyValue

    from pellucid_exporters.otlp.delivery import LogQueue

SEVERITIES: Final[Mapping[str, SeverityNumber]] = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}

_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
"""Variables that limit the attributes of log records."""

_RECORD_FIELDS: Final = frozenset({"event", "level", "timestamp", "trace_id", "span_id"})


class Loggers(LoggerProvider):
    """Provider of loggers that export.

    Attributes:
        queue: The queue of the exporter.
        must_emit: Whether lines must pass through the SDK, which takes longer: others read the records too, or the
            environment limits them.
    """

    def __init__(self, resource: Resource, queue: LogQueue) -> None:
        super().__init__(resource=resource, shutdown_on_exit=False)
        super().add_log_record_processor(queue)
        self.queue = queue
        self.must_emit = any(os.environ.get(name) for name in _LIMITS)

    def add_log_record_processor(self, log_record_processor: LogRecordProcessor) -> None:
        """Add a processor of the application."""
        super().add_log_record_processor(log_record_processor)
        self.must_emit = True


class OtlpLogSink:
    """Log sink that exports one log line per boundary as a log record with the context of its span."""

    __slots__ = ("_logger", "_loggers", "_scope")

    def __init__(self, loggers: Loggers, scope: InstrumentationScope) -> None:
        self._loggers = loggers
        self._scope = scope
        self._logger = loggers.get_logger(scope.name, scope.version)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Emit one line."""
        loggers = self._loggers
        span = _span_context(line)
        record = LineRecord(line, time.time_ns(), span, loggers.resource, self._scope)
        if not loggers.must_emit:
            loggers.queue.put(record)
            return
        facts = record.log_record
        self._logger.emit(
            LogRecord(
                timestamp=facts.timestamp,
                observed_timestamp=facts.observed_timestamp,
                context=set_span_in_context(NonRecordingSpan(span)),
                severity_text=facts.severity_text,
                severity_number=facts.severity_number,
                body=facts.body,
                attributes=facts.attributes,
                event_name=facts.event_name,
            )
        )


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What an exporter reads of `opentelemetry._logs.LogRecord`."""

    timestamp: int | None
    observed_timestamp: int
    trace_id: int
    span_id: int
    trace_flags: TraceFlags
    severity_text: str
    severity_number: SeverityNumber
    body: AnyValue
    attributes: Mapping[str, AnyValue]
    event_name: str | None


class LineRecord:
    """What an exporter reads of the SDK's `ReadableLogRecord`; computed in its thread.

    Attributes:
        resource, instrumentation_scope: Where the line comes from.
        dropped_attributes: Always 0.
    """

    dropped_attributes = 0

    def __init__(
        self, line: Mapping[str, Any], observed: int, span: SpanContext, resource: Resource, scope: InstrumentationScope
    ) -> None:
        self.resource = resource
        self.instrumentation_scope = scope
        self._line = line
        self._observed = observed
        self._span = span

    @cached_property
    def log_record(self) -> RecordFacts:
        """The record."""
        line, span = self._line, self._span
        level = str(line.get("level", "info"))
        return RecordFacts(
            timestamp=line.get("timestamp"),
            observed_timestamp=self._observed,
            trace_id=span.trace_id,
            span_id=span.span_id,
            trace_flags=span.trace_flags,
            severity_text=level,
            severity_number=SEVERITIES.get(level, SeverityNumber.UNSPECIFIED),
            body=line.get("event"),
            attributes={
                key: _attribute(value) for key, value in line.items() if key not in _RECORD_FIELDS and value is not None
            },
            event_name=line.get("event"),
        )


def _span_context(line: Mapping[str, Any]) -> SpanContext:
    """Return the span of a line, or the current one."""
    trace_id, span_id = line.get("trace_id"), line.get("span_id")
    if not trace_id or not span_id:
        return get_current_span().get_span_context()
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False)


def _attribute(value: Any) -> AnyValue:
    if isinstance(value, (str, bool, int, float, bytes)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _attribute(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_attribute(item) for item in value]
    return str(value)
