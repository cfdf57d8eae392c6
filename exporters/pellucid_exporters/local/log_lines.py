"""Log lines of the application: from any thread to the queue of the store, and from there to its table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from pellucid.failures import describe, stack_of
from pellucid.telemetry.boundary import MAX_STACK
from pellucid.telemetry.pipeline import TelemetryOptions
from pellucid.telemetry.scope import MAX_ERROR, Scope, shared_scope
from pellucid_exporters.local import shapes
from pellucid_exporters.local.run_rows import RunChange
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.plain_json import plain_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator

    from opentelemetry.trace import SpanContext

    from pellucid.telemetry.capture import CapturePolicy

OWN: Final = frozenset({"pellucid", "pellucid_exporters", "pellucid_commands"})
"""Roots of the loggers of Pellucid, whose lines repeat what spans say."""

NAMES: Final = ("exception.type", "code.file.path", "code.function.name", "code.line.number")
"""Attributes that are no content."""

LONGEST_INLINE: Final = 1_000
"""Characters of the longest text of a line that is stored with it: texts of lines differ."""

_LONGEST_NAME: Final = 200
_OVERHEAD: Final = 200

_INSERT: Final = "INSERT OR REPLACE INTO log_lines VALUES (?, ?, ?, ?, ?, ?, ?)"
_RUN: Final = "SELECT key FROM runs WHERE trace_id = ? ORDER BY start LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLine:
    """A log line as the application has written it.

    Attributes:
        time: Nanoseconds since the epoch.
        severity: Number of OpenTelemetry's log data model; 0 if it is not known.
        level: Name of the level.
        body: Text, or another value.
        error: Exception that the line reports.
    """

    time: int
    severity: int
    level: str
    body: Any
    attributes: Mapping[str, Any]
    error: BaseException | None = None


@final
@dataclass(slots=True, eq=False)
class LogLine:
    """A log line as it is stored.

    Attributes:
        run_id: Id of its run; empty if it is not known.
        content: Level, logger, text and attributes, as JSON.
        bodies: Large texts by digest.
    """

    trace_id: bytes
    span_id: bytes
    time: int
    severity: int
    content: bytes
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    run_id: str = ""

    def __len__(self) -> int:
        """Return about how many bytes it takes to write it."""
        return _OVERHEAD + len(self.content) + sum(map(len, self.bodies.values()))


class LogLines:
    """Intake of log lines, from any thread."""

    def __init__(
        self, put: Callable[[LogLine], None], on_failure: Callable[[], None], policy: CapturePolicy | None
    ) -> None:
        """Create an intake.

        Args:
            put: Queues a line.
            on_failure: Called for each line that cannot be stored.
            policy: Capture policy of lines that are written where no run is known; that of the process without it.
        """
        self._put = put
        self._on_failure = on_failure
        self._outside = Scope(pipeline=TelemetryOptions(capture=policy)) if policy is not None else None
        self._thread = threading.local()

    def add(self, span: SpanContext, logger: str, read: Callable[[], WrittenLine]) -> None:
        """Queue a line of a sampled span as the policy of its run says; never raise.

        Args:
            span: Span that was current when the line was written.
            logger: Name of the logger.
            read: Returns the line.
        """
        if not (span.is_valid and span.trace_flags.sampled) or logger.partition(".")[0] in OWN:
            return
        if getattr(self._thread, "is_adding", False):  # a redactor, or a `__str__`, writes lines itself
            return
        self._thread.is_adding = True
        try:
            scope = shared_scope()
            self._put(_line(span, logger, read(), scope if scope.run_id else self._outside or scope))
        except Exception:  # noqa: BLE001  (values of the application may do anything; counted)
            self._on_failure()
        finally:
            self._thread.is_adding = False


def _line(span: SpanContext, logger: str, written: WrittenLine, scope: Scope) -> LogLine:
    """Return a line, redacted and bounded as content of spans is; without its text if no content is recorded."""
    body = scope.clean(written.body) if written.body is not None else None
    return log_line(
        (span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big")),
        written.time,
        written.severity,
        level=written.level[:_LONGEST_NAME],
        logger=logger[:_LONGEST_NAME],
        body=body if body is None or isinstance(body, str) else plain_json(body).decode(),
        attributes=dict(_attributes(written, scope)),
    )


def log_line(
    ids: tuple[bytes, bytes],
    time: int,
    severity: int,
    *,
    level: str,
    logger: str,
    body: str | None,
    attributes: Mapping[str, Any],
    run_id: str = "",
) -> LogLine:
    """Return a line as it is stored; `ids` are those of the trace and the span.

    Raises:
        ValueError: its time is out of range.
    """
    if not 0 <= time <= LARGEST:
        raise ValueError(f"a log line at {time}")
    bodies: dict[bytes, bytes] = {}
    content = {
        "level": level,
        "logger": logger,
        "body": body if body is None or len(body) <= LONGEST_INLINE else shapes.lighten(body, bodies),
        "attributes": shapes.lighten(attributes, bodies),
    }
    kept = plain_json({name: value for name, value in content.items() if value not in (None, "", {})})
    return LogLine(*ids, time, severity, kept, bodies, run_id)


def _attributes(written: WrittenLine, scope: Scope) -> Iterator[tuple[str, Any]]:
    given, error = written.attributes, written.error
    if not scope.policy.content:
        for name in NAMES:
            if isinstance(value := given.get(name), (str, int)):
                yield name, value[:_LONGEST_NAME] if isinstance(value, str) else value
    elif given and isinstance(cleaned := scope.clean(dict(given)), dict):
        yield from cleaned.items()
    if error is None:
        return
    yield "exception.type", f"{type(error).__module__}.{type(error).__qualname__}"
    if scope.policy.content:
        yield "exception.message", scope.text(describe(error), MAX_ERROR)
        yield "exception.stacktrace", scope.text(stack_of(error), MAX_STACK)


def write_log_lines(
    connection: sqlite3.Connection,
    lines: Iterable[LogLine],
    runs: Mapping[str, tuple[int, bytes | None]],
    process: int,
    numbers: Iterator[int],
) -> None:
    """Write lines; those of no run that the store knows are left out.

    Args:
        connection: The store, in a transaction.
        lines: The lines.
        runs: Keys of runs that the transaction has written, by id.
        process: Id of this process in the store.
        numbers: Numbers of the lines that this process writes.
    """
    keys: dict[str | bytes, int | None] = {run_id: key for run_id, (key, _) in runs.items() if run_id}
    rows: list[tuple[Any, ...]] = []
    for line in lines:
        run = line.run_id or line.trace_id
        if run not in keys:
            keys[run] = _key(connection, line, process)
        if (key := keys[run]) is not None:
            rows.append((key, line.span_id, line.time, process, next(numbers), line.severity, line.content))
    connection.executemany(_INSERT, rows)


def _key(connection: sqlite3.Connection, line: LogLine, process: int) -> int | None:
    """Return the key of the run of a line, whose first span may be written later; the first run of its trace."""
    if line.run_id:
        return RunChange(line.run_id, line.trace_id, line.time, line.time).write(connection, process)[0]
    found = connection.execute(_RUN, (line.trace_id,)).fetchone()
    return int(found[0]) if found is not None else None
