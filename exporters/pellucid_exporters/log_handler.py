"""Handler of the standard library's logging that writes to the local store."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import get_current_span

from pellucid.telemetry.pipeline import Pipeline, current_default
from pellucid.telemetry.scope import shared_scope
from pellucid_exporters.local.log_lines import WrittenLine
from pellucid_exporters.telemetry import Telemetry

if TYPE_CHECKING:
    from pellucid_exporters.local.processor import LocalProcessor

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Members of all records."""

_LARGEST: Final = 24
"""Greatest severity."""


class LogHandler(logging.NullHandler):
    """Handler that writes the lines of an application to the local store, each with the span in which it was written.

    ```python
    logging.getLogger().addHandler(LogHandler())
    ```

    The store is that of `telemetry`, else that of the run's telemetry, else that of `configure(local=...)`. Lines that
    are written while no span is current are left out, and so are Pellucid's own, which repeat what spans say. The
    capture policy of the run applies: secrets are masked, and in the modes `metadata` and `off` no text is stored.
    Nothing here raises.

    Being a `NullHandler`, it does not make Pellucid write a line for each boundary.
    """

    def __init__(self, level: int | str = logging.NOTSET, *, telemetry: Telemetry | None = None) -> None:
        """Create a handler.

        Args:
            level: Least level of the lines that are stored.
            telemetry: Telemetry with the store.
        """
        super().__init__(level)
        self._telemetry = telemetry

    def handle(self, record: logging.LogRecord) -> bool:
        """Store a record that passes the filters; return whether it does."""
        passed: Any = self.filter(record)  # since Python 3.12, filters may return another record
        if passed:
            self.emit(record if passed is True else passed)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record, if a span of a sampled trace is current."""
        span = get_current_span().get_span_context()
        if span.trace_flags.sampled and (store := self._store()) is not None:
            store.log_lines.add(span, record.name, partial(_written, record))

    def _store(self) -> LocalProcessor | None:
        if self._telemetry is not None:
            return self._telemetry.parts.local
        return _store_of(shared_scope().pipeline) or _store_of(current_default())


def _store_of(pipeline: Pipeline) -> LocalProcessor | None:
    return pipeline.parts.local if isinstance(pipeline, Telemetry) else None


def _written(record: logging.LogRecord) -> WrittenLine:
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"}
    body: Any = record.msg
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(body, Mapping) and not record.args:  # structlog's `ProcessorFormatter` renders it in other handlers
        extra |= body
        body = extra.pop("event", None)
        error = error or _error_of(extra.pop("exc_info", None))
    else:
        body = record.getMessage()
    return WrittenLine(
        time=round(record.created * 1e6) * 1000,
        severity=_severity(record.levelno),
        level=record.levelname,
        body=body,
        attributes={**extra, **dict(_code(record))},
        error=error,
    )


def _severity(level: int) -> int:
    """Return the severity of a level: 10, `DEBUG`, is 5, and each further level 4 more."""
    return max(1, min(_LARGEST, level // 10 * 4 + 1 + min(level % 10, 3)))


def _error_of(value: object) -> BaseException | None:
    """Return the exception that structlog was given."""
    if isinstance(value, tuple):
        value = value[1] if len(value) == len(sys.exc_info()) else None
    return value if isinstance(value, BaseException) else sys.exception() if value is True else None


def _code(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield where the line was written, as OpenTelemetry names it."""
    yield "code.file.path", record.pathname
    yield "code.line.number", record.lineno
    yield "code.function.name", record.funcName
    if record.stack_info:
        yield "code.stacktrace", record.stack_info
