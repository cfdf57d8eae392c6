"""Reader of recordings in JSON Lines: of the file exporter, and of `pellucid store export`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.errors import ConfigError
from pellucid_exporters.file.line_file import rotated_files
from pellucid_exporters.file.recording_index import Index, index_of, read
from pellucid_exporters.file.stored_lines import event_row, log_line_row, span_row, times_of
from pellucid_exporters.stored.log_lines import LogLineWindow
from pellucid_exporters.stored.rows import ALL, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pellucid_exporters.file.stored_lines import Line
    from pellucid_exporters.stored.rows import EventRow, RunRow, SpanRow


class FileReader:
    """Reader of a recording, with the files that rotation has put aside; for any thread.

    Files are read once, and again when they have changed; rows are read from them when they are asked for. Of a run
    whose own span is missing the status is `interrupted`, although it may be running.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a recording.

        Raises:
            ConfigError: the file is missing, cannot be read, or is no recording.
        """
        self._path = Path.cwd() / path
        self._index = Index(state=())
        self._current()

    def runs(
        self,
        *,
        agent: str | None = None,
        outcome: str | None = None,
        hub: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        tag: str | None = None,
        stop_reason: str | None = None,
        text: str | None = None,
        min_duration: float | None = None,
        min_cost: float | None = None,
        before: int | None = None,
        replays: bool = True,
        conversation: str | None = None,
        kind: str = ALL,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return the runs that match, newest first; see `StoreReader.runs`."""
        index = self._current()
        found: list[RunRow] = []
        for run in sorted(index.runs.values(), key=lambda run: run.start, reverse=True):
            if (
                agent in (None, run.agent)
                and outcome in (None, run.status)
                and stop_reason in (None, run.stop_reason)
                and (hub is None or hub in run.hubs)
                and (tool is None or tool in run.tools)
                and (model is None or model in run.models)
                and (tag is None or tag in run.tags)
                and (min_cost is None or _costs(run, min_cost))
                and (min_duration is None or (run.end is not None and run.end - run.start >= min_duration * 1e9))
                and (replays or run.replay_of is None)
                and conversation in (None, run.conversation)
                and kind in (ALL, kind_of(run.conversation))
                and (before is None or run.start < before)
                and (text is None or _has_text(index, run, text))
            ):
                found.append(run)
                if len(found) >= limit:
                    break
        return found

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id, an unambiguous prefix of it, or its trace id (the outermost run)."""
        runs = self._current().runs
        if run_id in runs or not run_id:
            return runs.get(run_id)
        if traced := self.trace(run_id):
            return traced[0]
        named = [run for name, run in runs.items() if name.startswith(run_id)]
        return named[0] if len(named) == 1 else None

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace in start order."""
        runs = [run for run in self._current().runs.values() if run.trace_id == trace_id]
        return sorted(runs, key=lambda run: run.start)

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run in start order; of those that belong to no run for the id `""`."""
        lines = read(self._current().spans.get(run_id, {}).values())
        ordered = sorted(lines, key=lambda line: (*_order(line), line["span_id"]))
        return [span_row(line, run_id, sequence) for sequence, line in enumerate(ordered)]

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return nothing: a recording has large texts in their places."""
        return {}

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return whole catalogues by `pellucid.catalog.digest`; without those that the recording does not have."""
        known = self._current().catalogs
        wanted = [digest for digest in dict.fromkeys(digests) if digest in known]
        lines = read(known[digest] for digest in wanted)
        hidden = {"type", "time", "service", "digest"}
        return {line["digest"]: {name: line[name] for name in line if name not in hidden} for line in lines}

    def events(self, run_id: str) -> list[EventRow]:
        """Return the events of a run in the order of their times."""
        rows = map(event_row, read(self._current().events.get(run_id, ())))
        return sorted(rows, key=lambda row: row.time)

    def log_lines(
        self, run_id: str, span_id: str | None = None, *, last: int | None = None, limit: int = 100
    ) -> LogLineWindow:
        """Return the last log lines of a run, or of one of its spans; see `StoreReader.log_lines`."""
        places = self._current().log_lines.get(run_id, [])  # in the order of their times
        if span_id is None:
            end = min(last if last is not None else len(places), len(places))
            rows = list(map(log_line_row, read(places[max(0, end - limit) : end])))
            return LogLineWindow(rows=rows, last=end, total=len(places))
        rows = [row for row in map(log_line_row, read(places)) if row.span_id == span_id]
        end = min(last if last is not None else len(rows), len(rows))
        return LogLineWindow(rows=rows[max(0, end - limit) : end], last=end, total=len(rows))

    def _current(self) -> Index:
        """Return the index of the files as they are now.

        Raises:
            ConfigError: the file is missing, cannot be read, or is no recording.
        """
        try:
            if not self._path.is_file():
                raise ConfigError(f"there is no recording {str(self._path)!r}; write one with configure(..., file=...)")
            files = [*rotated_files(self._path.resolve()), self._path]
            state = tuple((file, (found := file.stat()).st_ino, found.st_size, found.st_mtime_ns) for file in files)
            if state != self._index.state:
                self._index = index_of(files, state)
        except OSError as error:
            raise ConfigError(f"the recording {str(self._path)!r} cannot be read ({error.strerror})") from error
        if self._index.is_foreign:
            raise ConfigError(
                f"{str(self._path)!r} is no recording: it has no line of the file exporter or of `pellucid store "
                f"export`; a local store is read with StoreReader"
            )
        return self._index


def _costs(run: RunRow, least: float) -> bool:
    """Return whether a run cost some dollars at least, with the runs nested in it."""
    cost = run.total.cost if run.total is not None else run.cost
    return cost is not None and cost >= least


def _order(line: Line) -> tuple[int, float]:
    """Return the start, and a number by which longer spans come first and those without an end last."""
    start, end = times_of(line)
    return start, start - end if end is not None else 1


def _has_text(index: Index, run: RunRow, text: str) -> bool:
    wanted = text.casefold()
    if any(wanted in (value or "").casefold() for value in (run.run_id, run.agent, run.error)):
        return True
    lines = read(index.spans.get(run.run_id, {}).values())
    escaped = json.dumps(wanted, ensure_ascii=False)[1:-1]
    return any(escaped in json.dumps(line["attributes"], ensure_ascii=False).casefold() for line in lines)
