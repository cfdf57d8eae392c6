"""Log lines of boundaries as OpenTelemetry log records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import get_current_span

from pellucid_exporters.otlp.line_records import LineRecord

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LogRecordProcessor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from pellucid_exporters.otlp.delivery import LogQueue

_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
"""Variables that limit the attributes of log records."""


class Loggers(LoggerProvider):
    """Provider of loggers, whose records are exported, stored, or both.

    Attributes:
        queue: The queue of the exporter; `None` if records are only stored.
        must_emit: Whether lines must pass through the SDK, which takes longer: others read the records too, or the
            environment limits them.
    """

    def __init__(self, resource: Resource, queue: LogQueue | None, store: LogRecordProcessor | None = None) -> None:
        super().__init__(resource=resource, shutdown_on_exit=False)
        for processor in (queue, store):
            if processor is not None:
                super().add_log_record_processor(processor)  # the store leaves out the lines of boundaries
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
        has_span = line.get("trace_id") and line.get("span_id")
        current = None if has_span else get_current_span().get_span_context()
        record = LineRecord(line, time.time_ns(), current, loggers.resource, self._scope)
        if loggers.queue is not None and not loggers.must_emit:
            loggers.queue.put(record)
            return
        self._logger.emit(record.log_record)
