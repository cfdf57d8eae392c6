"""One reader over several stores, such as those of the services of one machine: rows by time, hubs added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from pellucid_exporters.stored import many_runs
from pellucid_exporters.stored.log_lines import LogLineCounts, LogLineWindow
from pellucid_exporters.stored.quantiles import quantiles, summed
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import CallRow, EventRow, HubRow, RunRow, SpanRow
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, RunFilter
from pellucid_exporters.stored.scores import ScoreGroup, ScoreRow

_K = TypeVar("_K")
_T = TypeVar("_T")
_SHARES: Final = (0.5, 0.95, 0.99)


class ManyReader:
    """Reader over several readers; see `Reader`.

    A run that several stores have, such as one that was imported, is that of the first of them; hours, groups and hubs
    count it in each.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    def runs(self, *, before: int | None = None, limit: int = 100, **filters: Any) -> list[RunRow]:
        """Return the runs that match, newest first; see `StoreReader.runs`."""
        rows = [row for reader in self._readers for row in reader.runs(before=before, limit=limit, **filters)]
        rows.sort(key=attrgetter("start"), reverse=True)
        return self._scored(islice(_once(rows, attrgetter("run_id")), limit))

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id, a prefix of it that no other run in any of the stores has, or its trace id."""
        runs = [run for reader in self._readers if (run := reader.run(run_id)) is not None]
        found = [run for run in runs if run.run_id == run_id]
        if not found:
            found = sorted((run for run in runs if run.trace_id == run_id), key=attrgetter("start"))
        if not found and len({run.run_id for run in runs}) == 1:
            found = runs
        return self._scored(found[:1])[0] if found else None

    def search(self, wanted: RunFilter) -> FoundRuns:
        """Return the runs that match among the newest ones of all stores."""
        return many_runs.search(self._readers, wanted)

    def rows(self, run_ids: Sequence[str]) -> list[RunRow]:
        """Return runs by their ids, in the order of these."""
        found = {row.run_id: row for reader in reversed(self._readers) for row in reader.rows(run_ids)}
        return self._scored(found[run_id] for run_id in run_ids if run_id in found)

    def hours(self, since: int, until: int, agent: str | None = None) -> list[HourCount]:
        """Return the number of runs by hour and outcome, of hours that begin between two times."""
        return many_runs.hours(reader.hours(since, until, agent) for reader in self._readers)

    def names(self, limit: int) -> dict[str, list[str]]:
        """Return the first names of each kind by which runs are searched."""
        return many_runs.names([reader.names(limit) for reader in self._readers], limit)

    def groups(self, by: str | None, since: int, until: int, **options: Any) -> list[RunGroup]:
        """Return the runs that started between two times, counted by a name and by steps of time."""
        return many_runs.groups(reader.groups(by, since, until, **options) for reader in self._readers)

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace in start order."""
        rows = [row for reader in self._readers for row in reader.trace(trace_id)]
        return self._scored(sorted(_once(rows, attrgetter("run_id")), key=attrgetter("start")))

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run in start order; of those that belong to no run for the id `""`."""
        found = [spans for reader in self._readers if (spans := reader.spans(run_id))]
        if len(found) < 2:  # noqa: PLR2004  (of one store)
            return found[0] if found else []
        ended = sorted((span for spans in found for span in spans), key=lambda span: span.end is None)
        once = sorted(_once(ended, attrgetter("span_id")), key=lambda span: (span.start, -(span.end or span.start)))
        return [replace(span, sequence=number) for number, span in enumerate(once)]

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return large texts by their digests."""
        return self._by_digest(digests, lambda reader, wanted: reader.bodies(wanted))

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return whole catalogues by `pellucid.catalog.digest`."""
        return self._by_digest(digests, lambda reader, wanted: reader.catalogs(wanted))

    def events(self, run_id: str) -> list[EventRow]:
        """Return the events of a run in the order of their times."""
        rows = [row for reader in self._readers for row in reader.events(run_id)]
        return sorted(_once(rows, _event_key), key=attrgetter("time"))

    def log_lines(
        self, run_id: str, span_id: str | None = None, *, last: int | None = None, limit: int = 100
    ) -> LogLineWindow:
        """Return the last log lines of a run, or of one of its spans, from the first store that has any."""
        found = (reader.log_lines(run_id, span_id, last=last, limit=limit) for reader in self._readers)
        return next((window for window in found if window.total), LogLineWindow())

    def log_line_counts(self, run_id: str) -> LogLineCounts:
        """Return how many log lines a run has in the first store that has any."""
        found = (reader.log_line_counts(run_id) for reader in self._readers)
        return next((counts for counts in found if counts.total), LogLineCounts())

    def scores(self, run_id: str) -> list[ScoreRow]:
        """Return the scores of a run in the order of their times, whichever store has them."""
        rows = [row for reader in self._readers for row in reader.scores(run_id)]
        return sorted(_once(rows, lambda row: row), key=attrgetter("time"))

    def newest_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[ScoreRow, ...]]:
        """Return the newest score of each name of some runs."""
        return many_runs.scores([reader.newest_scores(run_ids) for reader in self._readers])

    def score_values(self, name: str, run_ids: Sequence[str]) -> dict[str, tuple[int, float | None]]:
        """Return the time and the value of the newest score of a name, of some runs."""
        found: dict[str, tuple[int, float | None]] = {}
        for reader in self._readers:
            for run_id, (time, value) in reader.score_values(name, run_ids).items():
                found[run_id] = max(found.get(run_id, (time, value)), (time, value), key=lambda score: score[0])
        return found

    def score_groups(self, by: str | None, since: int, until: int, **options: Any) -> list[ScoreGroup]:
        """Return the scores of a window of time, counted by their name, another name, and steps of time."""
        left_out = self.unmeasured(self.strangers(since, until)) | set(options.pop("without", ()))
        return many_runs.score_groups(
            reader.score_groups(by, since, until, without=left_out, **options) for reader in self._readers
        )

    def strangers(self, since: int, until: int) -> set[str]:
        """Return the ids of runs with scores of a window of time that one of the stores has, without the run."""
        return {run_id for reader in self._readers for run_id in reader.strangers(since, until)}

    def unmeasured(self, run_ids: Iterable[str]) -> set[str]:
        """Return which of some runs are replays or of experiments, in any of the stores."""
        wanted = set(run_ids)
        return {run_id for reader in self._readers for run_id in reader.unmeasured(wanted)} if wanted else set()

    def events_named(self, name: str, since: int, until: int) -> list[EventRow]:
        """Return the events of all runs with a name in a window of time, the newest first."""
        rows = [row for reader in self._readers for row in reader.events_named(name, since, until)]
        return sorted(_once(rows, _event_key), key=attrgetter("time"), reverse=True)

    def hubs(self, since: int, until: int) -> list[HubRow]:
        """Return the hubs that answered in a window of time, each with the requests of all stores."""
        rows: dict[str, list[HubRow]] = {}
        for reader in self._readers:
            for row in reader.hubs(since, until):
                rows.setdefault(row.provider_id, []).append(row)
        return [_hub(rows[name]) if len(rows[name]) > 1 else rows[name][0] for name in sorted(rows)]

    def calls(self, since: int, until: int, phases: Collection[str], step: int | None = None) -> list[CallRow]:
        """Return the boundaries of some phases that ended in a window of time, counted by process, labels, and step."""
        number = len(self._readers)
        return [
            replace(row, process=row.process * number + place)  # each store has its own numbers of processes
            for place, reader in enumerate(self._readers)
            for row in reader.calls(since, until, phases, step)
        ]

    def in_flight(self) -> list[SpanRow]:
        """Return the boundaries of live processes that have begun and not ended, the oldest first."""
        return sorted((row for reader in self._readers for row in reader.in_flight()), key=attrgetter("start"))

    def changes(self) -> int:
        """Return a number that grows with each write."""
        return sum(reader.changes() for reader in self._readers)

    def _scored(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Return runs with the newest scores that any of the stores has: the service that scores may be another."""
        runs = list(rows)
        scores = self.newest_scores([run.run_id for run in runs])
        return [replace(run, scores=scores.get(run.run_id, ())) for run in runs]

    def _by_digest(
        self, digests: Iterable[str], read: Callable[[Reader, Collection[str]], Mapping[str, _T]]
    ) -> dict[str, _T]:
        wanted, found = set(digests), dict[str, _T]()
        for reader in self._readers:
            if wanted:
                found.update(read(reader, wanted))
                wanted -= found.keys()
        return found


def _once(rows: Iterable[_T], key: Callable[[_T], Any]) -> Iterator[_T]:
    """Yield the first of the rows with each key."""
    seen = set[Any]()
    for row in rows:
        if (value := key(row)) not in seen:
            seen.add(value)
            yield row


def _event_key(event: EventRow) -> tuple[Any, ...]:
    return event.run_id, event.time, event.name, event.span_id, str(event.payload)


def _hub(rows: Sequence[HubRow]) -> HubRow:
    """Return one hub of several stores."""
    latest = max(rows, key=lambda row: row.last_success or 0)
    samples = _joined([row.samples for row in rows], lambda columns: [sample for each in columns for sample in each])
    every = [sample for each in samples.values() for sample in each]
    p50, p95, p99 = quantiles(every, _SHARES)
    calls, failures, delayed = (sum(getattr(row, name) for row in rows) for name in ("calls", "failures", "delayed"))
    return HubRow(
        provider_id=latest.provider_id,
        objective=latest.objective if latest.objective is not None else _first(row.objective for row in rows),
        slo=latest.slo if latest.slo is not None else _first(row.slo for row in rows),
        calls=calls,
        failures=failures,
        outcomes=_sum(row.outcomes for row in rows),
        by_minute=_joined([row.by_minute for row in rows], lambda columns: summed(columns, len(columns[0]))),
        bounds=latest.bounds,
        samples=samples,
        exemplars={bucket: place for row in rows for bucket, place in row.exemplars.items()},
        p50=p50,
        p95=p95,
        p99=p99,
        cache=_sum(row.cache for row in rows),
        in_flight_since=min((row.in_flight_since for row in rows if row.in_flight_since is not None), default=None),
        late=_sum(row.late for row in rows),
        delayed=delayed,
        last_success=max((row.last_success for row in rows if row.last_success is not None), default=None),
        unanswered_since=_unanswered_since(rows),
    )


def _sum(counts: Iterable[Mapping[_K, int]]) -> dict[_K, int]:
    total: Counter[_K] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _joined(columns: Sequence[Mapping[int, Any]], join: Callable[[list[Any]], Any]) -> dict[int, Any]:
    """Return what several stores have by minute, joined, in the order of the minutes."""
    minutes = sorted({minute for column in columns for minute in column})
    return {minute: join([column[minute] for column in columns if minute in column]) for minute in minutes}


def _unanswered_since(rows: Sequence[HubRow]) -> int | None:
    """Return the first minute with requests after the latest one in which a request was answered, in any store."""
    asked = sorted(minute for row in rows for minute in row.by_minute)
    answered = [
        minute
        for row in rows
        for minute in row.by_minute
        if row.unanswered_since is None or minute < row.unanswered_since
    ]
    latest = max(answered, default=-1)
    return next((minute for minute in asked if minute > latest), None)


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)
