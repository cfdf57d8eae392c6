"""The store into which spans and scores of other processes are written."""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_exporters.local.database import Database
from pellucid_exporters.local.options import Local
from pellucid_exporters.local.processes import ProcessIdentity
from pellucid_exporters.local.received import is_new, place
from pellucid_exporters.local.records import span_record
from pellucid_exporters.local.writer import Origin, StoreWriter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_exporters.local.records import EventRecord, SpanRecord
    from pellucid_exporters.local.writer import Record

OTHERS: Final = "otlp"
"""Host of processes whose spans come by OTLP: only what they send tells whether they live."""

_MOST_WRITERS: Final = 16
_ENDED: Final = "SELECT 1 FROM runs WHERE run_id = ? AND ended IS NOT NULL"


def create_store(path: Path) -> None:
    """Create a store, unless there is one.

    Raises:
        ConfigError: it cannot be written to.
    """
    StoreWriter(Local(path), "", dict).check()


class ReceivedStore:
    """A store that is written to as spans and scores arrive. Used by one thread at a time.

    Args:
        path: The store.
        arriving: Called before spans are written, with their traces, and the traces of new runs that have ended by the
            ids of these. What it raises keeps the spans from being written.
    """

    def __init__(self, path: Path, arriving: Callable[[Collection[str], Mapping[str, str]], None]) -> None:
        self._options, self._arriving = Local(path), arriving
        self._database = Database(Path.cwd() / path, lambda: None)
        self._writers: OrderedDict[str, StoreWriter] = OrderedDict()
        self._refused = 0

    def take_spans(self, spans: Iterable[ReadableSpan]) -> int:
        """Write the spans that the store does not have; return the number of those that it can never have.

        Raises:
            OSError, StoreError, sqlite3.Error: the store cannot be written to; a part may be. Give all of it again.
        """
        records: dict[tuple[bytes, bytes], tuple[str, SpanRecord]] = {}
        for span in spans:
            service = str(span.resource.attributes.get("service.name", ""))
            record = span_record(span, _run_of(span))
            records[record.trace_id, record.span_id] = (service, record)
        found = [record for _, record in records.values()]
        self._arriving({record.trace_id.hex() for record in found}, self._new_runs(found))
        return self._write(records.values())

    def take_scores(self, scores: Iterable[tuple[str, EventRecord]]) -> int:
        """Write the scores of services that the store does not have; return the number of those that it never can.

        Raises:
            OSError, StoreError, sqlite3.Error: as for `take_spans`.
        """
        return self._write({(score.payload, score.span_id): (service, score) for service, score in scores}.values())

    def place(self, traces: Iterable[str]) -> None:
        """Give the spans of traces that name no run to one, and say which runs are nested; they must have come.

        Raises:
            OSError, StoreError, sqlite3.Error: the store cannot be written to.
        """
        for trace_id in traces:
            with self._database.transaction() as connection:
                place(connection, bytes.fromhex(trace_id))

    def close(self) -> None:
        """Close the store."""
        for writer in self._writers.values():
            writer.close()
        self._database.close()

    def _new_runs(self, records: Iterable[SpanRecord]) -> dict[str, str]:
        ended = {
            record.run_id: record.trace_id.hex()
            for record in records
            if record.is_own and record.facts.get(semconv.PHASE) == semconv.RUN and record.run_id
        }
        if not ended:
            return {}
        with self._database.transaction() as connection:
            return {run: trace for run, trace in ended.items() if not connection.execute(_ENDED, (run,)).fetchone()}

    def _write(self, records: Iterable[tuple[str, Record]]) -> int:
        """Write records of services; return the number of those that can never be written."""
        batches: dict[str, deque[Record]] = {}
        for service, record in records:
            batches.setdefault(service, deque()).append(record)
        self._refused = 0
        for service, batch in batches.items():
            self._writer(service).append(batch)
        return self._refused

    def _writer(self, service: str) -> StoreWriter:
        if service not in self._writers:
            while len(self._writers) >= _MOST_WRITERS:
                self._writers.popitem(last=False)[1].close()
            process = ProcessIdentity(OTHERS, 0, None, uuid.uuid4().hex)
            origin = Origin(process, is_new)
            self._writers[service] = StoreWriter(self._options, service, dict, self._refuse, origin=origin)
        self._writers.move_to_end(service)
        return self._writers[service]

    def _refuse(self, error: Exception) -> None:
        self._refused += 1


def _run_of(span: ReadableSpan) -> str:
    """Return the run that a span names, or an empty text."""
    run_id = (span.attributes or {}).get(semconv.RUN_ID)
    return run_id if isinstance(run_id, str) else ""
