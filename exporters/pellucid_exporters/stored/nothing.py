"""A reader without telemetry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pellucid_exporters.stored.log_lines import LogLineCounts, LogLineWindow
from pellucid_exporters.stored.rows import ALL, CallRow, EventRow, HubRow, RunRow, SpanRow
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, RunFilter
from pellucid_exporters.stored.scores import ScoreGroup, ScoreRow


class NoTelemetry:
    """Reader of a store in which there is nothing, for pages that show other things; see `Reader`."""

    def runs(self, **filters: Any) -> list[RunRow]:
        """Return no runs."""
        return []

    def run(self, run_id: str) -> RunRow | None:
        """Return no run."""
        return None

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return no runs."""
        return []

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return no spans."""
        return []

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return no texts."""
        return {}

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return no catalogues."""
        return {}

    def events(self, run_id: str) -> list[EventRow]:
        """Return no events."""
        return []

    def log_lines(
        self, run_id: str, span_id: str | None = None, *, last: int | None = None, limit: int = 100
    ) -> LogLineWindow:
        """Return no log lines."""
        return LogLineWindow()

    def log_line_counts(self, run_id: str) -> LogLineCounts:
        """Return that there are none."""
        return LogLineCounts()

    def search(self, wanted: RunFilter) -> FoundRuns:
        """Return no runs."""
        return FoundRuns()

    def rows(self, run_ids: Sequence[str]) -> list[RunRow]:
        """Return no runs."""
        return []

    def hours(self, since: int, until: int, agent: str | None = None) -> list[HourCount]:
        """Return no hours."""
        return []

    def names(self, limit: int) -> dict[str, list[str]]:
        """Return no names."""
        return {}

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
        """Return no runs."""
        return []

    def scores(self, run_id: str) -> list[ScoreRow]:
        """Return no scores."""
        return []

    def newest_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[ScoreRow, ...]]:
        """Return no scores."""
        return {}

    def score_values(self, name: str, run_ids: Sequence[str]) -> dict[str, tuple[int, float | None]]:
        """Return no scores."""
        return {}

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
        """Return no scores."""
        return []

    def strangers(self, since: int, until: int) -> set[str]:
        """Return no ids."""
        return set()

    def unmeasured(self, run_ids: Iterable[str]) -> set[str]:
        """Return no ids."""
        return set()

    def events_named(self, name: str, since: int, until: int) -> list[EventRow]:
        """Return no events."""
        return []

    def hubs(self, since: int, until: int) -> list[HubRow]:
        """Return no hubs."""
        return []

    def calls(self, since: int, until: int, phases: Collection[str], step: int | None = None) -> list[CallRow]:
        """Return no boundaries."""
        return []

    def in_flight(self) -> list[SpanRow]:
        """Return no boundaries."""
        return []

    def changes(self) -> int:
        """Return the number of writes: none."""
        return 0
