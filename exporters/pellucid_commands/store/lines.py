"""Lines of an export: runs, spans, events, log lines and catalogues, with large texts in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid_commands.store.selection import needed
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.log_lines import LogLineRow
from pellucid_exporters.stored.rows import DERIVED, EventRow, RunRow, SpanRow

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import LoggedRecording, Recording

    Row = RunRow | SpanRow | EventRow | LogLineRow

_PAGE: Final = 500
_LOG_LINES: Final = 5_000
"""Log lines that are read at once."""
_MOST_TEXT: Final = 32 * 2**20
"""Characters of large texts that are kept, because many spans have the same ones."""

_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name not in DERIVED)
    for kind in (RunRow, SpanRow, EventRow, LogLineRow)
}
_VALUES: Final = {kind: attrgetter(*names) for kind, names in _NAMES.items()}


def exported(reader: LoggedRecording, name: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of one run with those that it needs, or of all runs, the newest first, and of what has no run.

    Raises:
        ConfigError: there is no such run, or there are several.
    """
    lines = _Lines(reader)
    if name is None:
        for row in all_runs(reader):
            yield from lines.of_run(row)
        yield from lines.of_run(None)
        return
    named = reader.run(name)
    if named is None:
        raise ConfigError(f"--run {name}: the store has no such run, or several; give the whole id")
    for row in needed(reader, named):
        yield from lines.of_run(row)


def all_runs(reader: Recording) -> Iterator[RunRow]:
    """Yield all runs of a store, the newest first."""
    before: int | None = None
    limit, seen = _PAGE, set[str]()
    while rows := reader.runs(before=before, limit=limit):
        yield from (row for row in rows if row.run_id not in seen)
        if len(rows) < limit:
            return
        before = rows[-1].start + 1  # again those that started with the last one: there may be more of them
        seen = {row.run_id for row in rows if row.start == rows[-1].start}
        limit = _PAGE + len(seen)


def log_lines_of(reader: LoggedRecording, run_id: str) -> Iterator[LogLineRow]:
    """Yield the log lines of a run in the order of their times."""
    total = reader.log_lines(run_id, limit=0).total
    for last in range(_LOG_LINES, total + _LOG_LINES, _LOG_LINES):
        yield from reader.log_lines(run_id, last=last, limit=_LOG_LINES - max(0, last - total)).rows


class _Lines:
    def __init__(self, reader: LoggedRecording) -> None:
        self._reader = reader
        self._catalogs: set[str] = set()
        self._texts: dict[str, str] = {}
        self._size = 0

    def of_run(self, run: RunRow | None) -> Iterator[dict[str, Any]]:
        """Yield the lines of a run, or of what belongs to none, with the catalogues that no line had so far."""
        if run is not None:
            yield _line("run", run)
        run_id = run.run_id if run is not None else ""
        spans = self._reader.spans(run_id)
        events = self._reader.events(run_id)
        digests = (span.attributes.get(semconv.CATALOG_DIGEST) for span in spans)
        new = {digest for digest in digests if isinstance(digest, str)} - self._catalogs
        self._catalogs |= new
        for digest, catalog in self._reader.catalogs(sorted(new)).items() if new else ():
            yield {"type": "catalog", "digest": digest, **catalog}
        large = [value for span in spans for value in _large(span)] + [event.payload for event in events]
        self._load(set(digests_in(large)))
        for span in spans:
            line = _line("span", span)
            line["attributes"] = self._whole(span.attributes)
            if span.events:
                line["events"] = filled(span.events, self._texts)
            yield line
        for event in events:
            line = _line("event", event)
            yield {**line, "payload": filled(line["payload"], self._texts)}
        for log_line in log_lines_of(self._reader, run_id):
            yield _line("log", log_line)

    def _whole(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: filled(item, self._texts) if type(item) is dict else item for name, item in attributes.items()}

    def _load(self, digests: set[str]) -> None:
        """Read large texts, so that those of these digests are at hand."""
        if not digests - self._texts.keys():
            return
        if self._size > _MOST_TEXT:
            self._texts, self._size = {}, 0
        found = self._reader.bodies(digests - self._texts.keys())
        self._size += sum(map(len, found.values()))
        self._texts |= found


def _large(span: SpanRow) -> Iterator[Any]:
    """Yield what may refer to a large text."""
    yield from (value for value in span.attributes.values() if type(value) is dict)
    yield from span.events


def _line(kind: str, row: Row) -> dict[str, Any]:
    """Return a row as a line; its values are not copied."""
    return {"type": kind, **dict(zip(_NAMES[type(row)], _VALUES[type(row)](row), strict=True))}
