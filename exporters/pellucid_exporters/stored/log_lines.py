"""Log lines of an application, as a reader of the store returns them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any, Final

from pellucid_exporters.plain_json import plain_json
from pellucid_exporters.stored.text import duration, short, visible

WARNING: Final = 13
"""Least severity of a warning."""

ERROR: Final = 17
"""Least severity of an error."""

_LEAST: Final = (1, 5, 9, WARNING, ERROR, 21)
_WORDS: Final = ("", "trace", "debug", "info", "warning", "error", "critical")

STACK: Final = "exception.stacktrace"
"""Attribute with the stack trace of an exception."""

CODE: Final = ("code.file.path", "code.line.number", "code.function.name")
"""Attributes with where a line was written."""

_ERROR: Final = ("exception.message", "exception.type")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineRow:
    """One log line of the application, written while a span was current.

    Attributes:
        time: Nanoseconds since the epoch.
        severity: Number of OpenTelemetry's log data model: 9 for information, 13 for a warning, 17 for an error.
        level: Name of the level, as the application says it.
        logger: Name of the logger.
        body: The text; `None` if it was not recorded.
        attributes: Further values, with `exception.*` and `code.*`.
    """

    run_id: str
    span_id: str
    time: int
    severity: int = 0
    level: str = ""
    logger: str = ""
    body: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """Word for the severity; the level if it is not known."""
        return _WORDS[bisect_right(_LEAST, self.severity)] or self.level

    @property
    def error(self) -> str:
        """Message of its exception, or else the type; empty if there is none."""
        return next((str(self.attributes[name]) for name in _ERROR if self.attributes.get(name)), "")

    @property
    def facts(self) -> dict[str, Any]:
        """Attributes that say neither where it was written nor what its exception is."""
        return {name: value for name, value in self.attributes.items() if name not in {*CODE, *_ERROR, STACK}}

    @property
    def place(self) -> str:
        """Name of the file, and number of the line, in which it was written; empty if they are not known."""
        file, number, _ = map(self.attributes.get, CODE)
        return f"{PureWindowsPath(file).name}:{number}" if isinstance(file, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineWindow:
    """Some of the log lines of a run or span, in the order of their times.

    Attributes:
        last: Number of the last of them, from 1 on; 0 if there are none.
        total: Number of all.
    """

    rows: Sequence[LogLineRow] = ()
    last: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineCounts:
    """Numbers of log lines of a run.

    Attributes:
        total: All of them.
        warnings: Warnings.
        errors: Errors, and what is worse.
    """

    total: int = 0
    warnings: int = 0
    errors: int = 0


def log_line(row: LogLineRow, start: int, longest: int) -> str:
    """Return a log line as text on one line, with its time after a start; what is long is cut."""
    facts = [f"{name}={plain_json(value).decode()}" for name, value in row.facts.items()]
    words = (row.word.upper(), row.logger, row.body or "", row.error, *facts)
    shown = [" ".join(visible(short(word, longest)).split()) for word in words if word]
    return short("  ".join([f"+{duration(max(0, row.time - start))}", *shown]), 2 * longest)
