"""Import of the log records of OTLP in JSON: log lines of runs, and scores."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from pellucid_commands.receiving.decoding import log_line_of, score_of
from pellucid_commands.store.imports.keys import event_key, log_key
from pellucid_commands.store.imports.otlp_json import read_log_records
from pellucid_commands.store.imports.rows_as_spans import record_of_line
from pellucid_commands.store.lines import log_lines_of
from pellucid_exporters.local.log_lines import OWN
from pellucid_exporters.local.reader import StoreReader

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_commands.store.imports.target import Imported, Writers
    from pellucid_exporters.local.writer import Record
    from pellucid_exporters.stored.rows import RunRow


def import_log_records(source: Path, store: Path, writers: Writers, counts: Imported) -> None:
    """Import the log records of a file that belong to runs of a store, and count them.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    records = _LogRecords(store, counts)
    writers.write_all(
        (service, found)
        for service, logger, record in read_log_records(source)
        if (found := records.new(logger, record)) is not None
    )


class _LogRecords:
    """Log records for a store, each once."""

    def __init__(self, store: Path, counts: Imported) -> None:
        self._target = StoreReader(store) if store.exists() else None
        self._counts = counts
        self._there: dict[str, set[Any]] = {}
        self._run_of = lru_cache(maxsize=1_000)(self._first_run)

    def new(self, logger: str, record: Any) -> Record | None:
        """Return what is to be written for a log record; None if there is nothing, or the store has it."""
        run = self._run_of(record.trace_id.hex())
        score = score_of(record)
        if run is None or (score is None and logger.partition(".")[0] in OWN):
            self._counts.unwanted += 1
            return None
        if score is not None:
            payload = from_json(score.payload)
            key = event_key(score.time, score.name, score.span_id.hex(), payload)
            if self._is_there(run, key):
                return None
            self._counts.events += 1
            return score
        line = log_line_of(record, logger, run.run_id)
        if line is None:
            self._counts.unwanted += 1
            return None
        if self._is_there(run, log_key(line)):
            return None
        self._counts.log_lines += 1
        return record_of_line(line, run.trace_id)

    def _is_there(self, run: RunRow, key: Any) -> bool:
        assert self._target is not None  # it has the run
        if run.run_id not in self._there:
            events = self._target.events(run.run_id)
            self._there[run.run_id] = {
                *map(log_key, log_lines_of(self._target, run.run_id)),
                *(event_key(event.time, event.name, event.span_id, event.payload) for event in events),
            }
        there = self._there[run.run_id]
        if key in there:
            self._counts.there += 1
            return True
        there.add(key)
        return False

    def _first_run(self, trace_id: str) -> RunRow | None:
        if self._target is None or not trace_id:
            return None
        return next(iter(self._target.trace(trace_id)), None)
