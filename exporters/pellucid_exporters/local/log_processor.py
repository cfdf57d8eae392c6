"""Log records of any bridge to OpenTelemetry's logs, for the local store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.sdk._logs import LogRecordProcessor
from opentelemetry.trace import SpanContext, TraceFlags

from pellucid_exporters.local.log_lines import WrittenLine

if TYPE_CHECKING:
    from opentelemetry._logs import LogRecord
    from opentelemetry.sdk._logs import ReadWriteLogRecord

    from pellucid_exporters.local.processor import LocalProcessor


class LocalLogProcessor(LogRecordProcessor):
    """Processor of log records that writes those of spans to the store."""

    def __init__(self, store: LocalProcessor) -> None:
        self._store = store

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a record."""
        record, scope = log_record.log_record, log_record.instrumentation_scope
        flags = record.trace_flags or TraceFlags.get_default()
        span = SpanContext(record.trace_id or 0, record.span_id or 0, is_remote=False, trace_flags=flags)
        self._store.log_lines.add(span, scope.name if scope is not None else "", partial(_written, record))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write queued items; return whether all of them are in the store."""
        return self._store.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Do nothing: the store is closed as a processor of spans, the last of which may come later."""


def _written(record: LogRecord) -> WrittenLine:
    attributes = dict(record.attributes or {})
    if record.event_name:
        attributes["event.name"] = record.event_name
    severity = record.severity_number
    return WrittenLine(
        time=record.timestamp or record.observed_timestamp or 0,
        severity=severity.value if severity is not None else 0,
        level=record.severity_text or "",
        body=record.body,
        attributes=attributes,
    )
