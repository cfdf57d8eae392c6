"""Log records of log lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.util.types import AnyValue

SEVERITIES: Final[Mapping[str, SeverityNumber]] = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}

_RECORD_FIELDS: Final = frozenset({"event", "level", "timestamp", "trace_id", "span_id"})
_PLAIN: Final = frozenset({str, bool, int, float})


class LineRecord:
    """Log record of a line, computed where it is exported; to exporters it is as the SDK's `ReadableLogRecord`.

    Attributes:
        line: The line.
        observed: Nanoseconds since the epoch at which the sink got it.
        resource, instrumentation_scope: Where the line comes from.
        dropped_attributes: Always 0.
    """

    dropped_attributes = 0

    __slots__ = ("_current", "instrumentation_scope", "line", "observed", "resource")

    def __init__(
        self,
        line: Mapping[str, Any],
        observed: int,
        current: SpanContext | None,
        resource: Resource,
        scope: InstrumentationScope,
    ) -> None:
        self.line = line
        self.observed = observed
        self._current = current
        self.resource = resource
        self.instrumentation_scope = scope

    @property
    def log_record(self) -> LogRecord:
        """The record as OpenTelemetry's API has it."""
        trace_id, span_id = (int.from_bytes(number, "big") for number in self.ids)
        span = self._current or SpanContext(trace_id, span_id, is_remote=False)
        return LogRecord(
            timestamp=self.line.get("timestamp"),
            observed_timestamp=self.observed,
            context=set_span_in_context(NonRecordingSpan(span)),
            severity_text=self.level,
            severity_number=self.severity,
            body=self.line.get("event"),
            attributes=self.attributes,
            event_name=self.line.get("event"),
        )

    @property
    def ids(self) -> tuple[bytes, bytes]:
        """Ids of trace and span: those of the line, else of the span that was current; zeros if there was none."""
        current, line = self._current, self.line
        if current is not None:
            return current.trace_id.to_bytes(16, "big"), current.span_id.to_bytes(8, "big")
        return int(line["trace_id"], 16).to_bytes(16, "big"), int(line["span_id"], 16).to_bytes(8, "big")

    @property
    def flags(self) -> int:
        """Trace flags; those of a span that only the line names are unknown."""
        return 0 if self._current is None else self._current.trace_flags

    @property
    def level(self) -> str:
        """Name of the level."""
        return str(self.line.get("level", "info"))

    @property
    def severity(self) -> SeverityNumber:
        """Severity of the level."""
        return SEVERITIES.get(self.level, SeverityNumber.UNSPECIFIED)

    @property
    def attributes(self) -> dict[str, Any]:
        """Fields without a place of their own."""
        return {
            key: value if value.__class__ in _PLAIN else _attribute(value)
            for key, value in self.line.items()
            if key not in _RECORD_FIELDS and value is not None
        }


def _attribute(value: Any) -> AnyValue:
    if isinstance(value, (str, bool, int, float, bytes)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _attribute(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_attribute(item) for item in value]
    return str(value)
