"""The part of a reader of the store that reads log lines."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from pellucid_exporters.local.bodies import unpack
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.log_lines import ERROR, WARNING, LogLineCounts, LogLineRow, LogLineWindow
from pellucid_exporters.stored.rows import text_of

_T = TypeVar("_T")

_KEY: Final = "SELECT key FROM runs WHERE run_id = ?"
_OF_SPAN: Final = "run = :key AND span_id = :span"
_OF_RUN: Final = "run = :key"
_COUNT: Final = "SELECT count(*) FROM log_lines WHERE {0}"
_WINDOW: Final = """
SELECT span_id, time, severity, content FROM log_lines WHERE {0}
ORDER BY time DESC, process DESC, number DESC LIMIT :limit OFFSET :later
"""
_FAULTS: Final = f"""
SELECT total(severity < {ERROR}) AS warnings, total(severity >= {ERROR}) AS errors
FROM log_lines WHERE run = :key AND severity >= {WARNING}
"""
_BODY: Final = "SELECT content FROM bodies WHERE digest = ?"


class LogLineReader(ABC):
    """Reader of log lines."""

    @abstractmethod
    def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what some work reads in one state of the store."""

    def log_lines(
        self, run_id: str, span_id: str | None = None, *, last: int | None = None, limit: int = 100
    ) -> LogLineWindow:
        """Return the last log lines of a run, or of one of its spans, with their large texts in place.

        Args:
            run_id: Id of the run.
            span_id: Id of the span; all of the run's without it.
            last: Number of the last line to return, from 1 on; that of the newest without it.
            limit: Maximum number of lines.
        """

        def read(connection: sqlite3.Connection) -> LogLineWindow:
            values: dict[str, Any] = {"key": _key(connection, run_id)}
            condition = _OF_RUN
            if span_id is not None:
                condition, values["span"] = _OF_SPAN, _binary(span_id)
            (total,) = connection.execute(_COUNT.format(condition), values).fetchone()
            end = total if last is None else min(last, total)
            window = {"limit": min(limit, end), "later": total - end}
            found = connection.execute(_WINDOW.format(condition), {**values, **window}).fetchall()
            return LogLineWindow(rows=_rows(connection, found[::-1], run_id), last=end, total=total)

        return self._read(read)

    def log_line_counts(self, run_id: str) -> LogLineCounts:
        """Return how many log lines a run has."""

        def read(connection: sqlite3.Connection) -> LogLineCounts:
            values = {"key": _key(connection, run_id)}
            (total,) = connection.execute(_COUNT.format(_OF_RUN), values).fetchone()
            warnings, errors = connection.execute(_FAULTS, values).fetchone() if total else (0, 0)
            return LogLineCounts(total=total, warnings=int(warnings), errors=int(errors))

        return self._read(read)


def _key(connection: sqlite3.Connection, run_id: str) -> int | None:
    row = connection.execute(_KEY, (run_id,)).fetchone()
    return row[0] if row is not None else None


def _binary(hexadecimal: str) -> bytes:
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError:
        return b""  # nothing has it


def _rows(connection: sqlite3.Connection, rows: Sequence[sqlite3.Row], run_id: str) -> list[LogLineRow]:
    """Return lines with their large texts in place."""
    contents = [_content(row["content"]) for row in rows]
    texts: dict[str, str] = {}
    for digest in dict.fromkeys(digests_in(contents)):
        found = connection.execute(_BODY, (_binary(digest),)).fetchone()
        if found is not None:
            texts[digest] = unpack(found["content"])
    return [_row(row, filled(content, texts), run_id) for row, content in zip(rows, contents, strict=True)]


def _content(content: bytes) -> Mapping[str, Any]:
    """Return the object of a line; an empty one if it is damaged."""
    try:
        found = from_json(content)
    except (ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _row(row: sqlite3.Row, content: Mapping[str, Any], run_id: str) -> LogLineRow:
    attributes = content.get("attributes")
    return LogLineRow(
        run_id=run_id,
        span_id=row["span_id"].hex(),
        time=row["time"],
        severity=row["severity"],
        level=text_of(content, "level") or "",
        logger=text_of(content, "logger") or "",
        body=text_of(content, "body"),
        attributes=attributes if isinstance(attributes, dict) else {},
    )
