"""Import of the rows of a reader: of another store, or of a recording in JSON Lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_commands.store.imports.keys import event_key, log_key
from pellucid_commands.store.imports.rows_as_spans import event_of, record_of_line, span_of
from pellucid_commands.store.imports.target import Imported
from pellucid_commands.store.lines import all_runs, log_lines_of
from pellucid_exporters.local.bodies import pack
from pellucid_exporters.local.catalogs import CatalogRecord
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.records import StartRecord, span_record
from pellucid_exporters.plain_json import plain_json
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.stored.rows import RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pellucid_commands.store.imports.target import Writers
    from pellucid_exporters.local.writer import Record
    from pellucid_exporters.stored.reader import LoggedRecording
    from pellucid_exporters.stored.rows import EventRow, RunRow, SpanRow

_BATCH: Final = 2_000


class RowImport:
    """Import of the rows of a reader."""

    def __init__(self, source: LoggedRecording, store: Path, writers: Writers) -> None:
        self._source, self._writers = source, writers
        self._target = StoreReader(store) if store.exists() else None
        self._catalogs: set[str] = set()
        self.counts = Imported()

    def all(self) -> Imported:
        """Import all runs, the oldest first, and what belongs to none."""
        for run in sorted(all_runs(self._source), key=lambda run: run.start):
            self._of_run(run.run_id, run)
        self._of_run("", None)
        return self.counts

    def _of_run(self, run_id: str, run: RunRow | None) -> None:
        target = self._target if run is None or self._has(run_id) else None
        there = {(span.span_id, span.end is None) for span in target.spans(run_id)} if target is not None else set()
        heard = set(map(_key, target.events(run_id))) if target is not None else set()
        found, all_events = self._source.spans(run_id), self._source.events(run_id)
        spans = [span for span in found if not _is_in(there, span) and span.status != RUNNING]
        events = [event for event in all_events if _key(event) not in heard]
        under_way = sum(span.status == RUNNING for span in found)
        self.counts.left_out += under_way
        self.counts.there += len(found) - under_way - len(spans) + len(all_events) - len(events)
        self.counts.spans += len(spans)
        self.counts.events += len(events)
        self.counts.runs += run is not None and target is None
        self._write(list(self._catalog_records(spans)), run)
        for start in range(0, len(spans), _BATCH):
            self._write(list(self._span_records(spans[start : start + _BATCH], run)), run)
        texts = self._texts([event.payload for event in events])
        self._write([event_of(event, filled(event.payload, texts)) for event in events], run)
        if run is not None:
            self._add_log_lines(run, target)

    def _add_log_lines(self, run: RunRow, target: StoreReader | None) -> None:
        there = set(map(log_key, log_lines_of(target, run.run_id))) if target is not None else set()
        lines: list[Record] = []
        for row in log_lines_of(self._source, run.run_id):
            if log_key(row) in there:
                self.counts.there += 1
                continue
            self.counts.log_lines += 1
            lines.append(record_of_line(row, run.trace_id))
            if len(lines) >= _BATCH:
                self._write(lines, run)
                lines = []
        self._write(lines, run)

    def _has(self, run_id: str) -> bool:
        found = self._target.run(run_id) if self._target is not None else None
        return found is not None and found.run_id == run_id

    def _span_records(self, spans: Sequence[SpanRow], run: RunRow | None) -> Iterable[Record]:
        texts = self._texts([(span.attributes, span.events) for span in spans])
        for row in spans:
            span = span_of(row, texts)
            run_id = run.run_id if run is not None else ""
            parent = run.parent_run_id if run is not None and row.phase == semconv.RUN else None
            yield span_record(span, run_id, parent) if row.end is not None else StartRecord(span, run_id, parent)

    def _catalog_records(self, spans: Sequence[SpanRow]) -> Iterable[CatalogRecord]:
        digests = {str(span.attributes.get(semconv.CATALOG_DIGEST)) for span in spans} - self._catalogs
        self._catalogs |= digests
        for digest, catalog in self._source.catalogs(digests).items():
            yield CatalogRecord(bytes.fromhex(digest), pack(plain_json(catalog)))

    def _texts(self, values: Sequence[Any]) -> dict[str, str]:
        digests = set(digests_in(values))
        return self._source.bodies(digests) if digests else {}

    def _write(self, records: Sequence[Record], run: RunRow | None) -> None:
        if records:
            self._writers.write(run.service if run is not None else "", records, run.seen_until if run else None)


def _is_in(there: set[tuple[str, bool]], span: SpanRow) -> bool:
    """Return whether a store with some spans has a span; as one that has begun, if it has ended, does not count."""
    return (span.span_id, False) in there or (span.end is None and (span.span_id, True) in there)


def _key(event: EventRow) -> tuple[Any, ...]:
    return event_key(event.time, event.name, event.span_id, event.payload)
