"""Interface of readers of stored telemetry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pellucid_exporters.stored.log_lines import LogLineCounts, LogLineWindow
from pellucid_exporters.stored.rows import ALL, CallRow, EventRow, HubRow, RunRow, SpanRow
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, RunFilter
from pellucid_exporters.stored.scores import ScoreGroup, ScoreRow


class Recording(Protocol):
    """Read-only access to recorded runs, from any thread."""

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
        """Return the runs that match, newest first; with `before`, those that started before that time."""
        ...

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id, an unambiguous prefix of it, or its trace id."""
        ...

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace in start order."""
        ...

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run in start order."""
        ...

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return large texts by their digests."""
        ...

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return whole catalogues by `pellucid.catalog.digest`: `provider_id` and `tools`, as `catalog_json` says."""
        ...

    def events(self, run_id: str) -> list[EventRow]:
        """Return the events of a run in the order of their times."""
        ...


class LoggedRecording(Recording, Protocol):
    """Recording with log lines."""

    def log_lines(
        self, run_id: str, span_id: str | None = None, *, last: int | None = None, limit: int = 100
    ) -> LogLineWindow:
        """Return the last log lines of a run, or of one of its spans, up to the one with a number."""
        ...


class Reader(LoggedRecording, Protocol):
    """Read-only access to stored telemetry, from any thread."""

    def search(self, wanted: RunFilter) -> FoundRuns:
        """Return the runs that match among the newest ones; see `BOUND`."""
        ...

    def rows(self, run_ids: Sequence[str]) -> list[RunRow]:
        """Return runs by their ids, in the order of these."""
        ...

    def hours(self, since: int, until: int, agent: str | None = None) -> list[HourCount]:
        """Return the number of runs by hour and outcome, of hours that begin between two times."""
        ...

    def names(self, limit: int) -> dict[str, list[str]]:
        """Return the first names of each kind by which runs are searched."""
        ...

    def groups(
        self,
        by: str | None,
        since: int,
        until: int,
        *,
        step: int | None = None,
        within: tuple[str, str] | None = None,
        has_durations: bool = True,
        kind: str = ALL,
    ) -> list[RunGroup]:
        """Return the runs that started between two times, counted by a name and by steps of time; see `RunGroup`."""
        ...

    def scores(self, run_id: str) -> list[ScoreRow]:
        """Return the scores of a run in the order of their times."""
        ...

    def newest_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[ScoreRow, ...]]:
        """Return the newest score of each name of some runs, without explanations."""
        ...

    def score_values(self, name: str, run_ids: Sequence[str]) -> dict[str, tuple[int, float | None]]:
        """Return the time and the value of the newest score of a name, of some runs."""
        ...

    def score_groups(
        self,
        by: str | None,
        since: int,
        until: int,
        *,
        step: int | None = None,
        within: tuple[str, str] | None = None,
        without: Collection[str] = (),
    ) -> list[ScoreGroup]:
        """Return the scores of a window of time, counted by their name, another name, and steps of time."""
        ...

    def strangers(self, since: int, until: int) -> set[str]:
        """Return the ids of runs with scores of a window of time that it does not have."""
        ...

    def unmeasured(self, run_ids: Iterable[str]) -> set[str]:
        """Return which of some runs are replays or of experiments, as far as it has them."""
        ...

    def events_named(self, name: str, since: int, until: int) -> list[EventRow]:
        """Return the events of all runs with a name in a window of time, the newest first."""
        ...

    def log_line_counts(self, run_id: str) -> LogLineCounts:
        """Return how many log lines a run has."""
        ...

    def hubs(self, since: int, until: int) -> list[HubRow]:
        """Return the hubs that answered in a window of time."""
        ...

    def calls(self, since: int, until: int, phases: Collection[str], step: int | None = None) -> list[CallRow]:
        """Return the boundaries of some phases that ended in a window of time, counted by process, labels, and step."""
        ...

    def in_flight(self) -> list[SpanRow]:
        """Return the boundaries of live processes that have begun and not ended."""
        ...

    def changes(self) -> int:
        """Return a number that grows with each write."""
        ...
