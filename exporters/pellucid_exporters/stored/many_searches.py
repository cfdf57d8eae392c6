"""Searches and counts of runs over several stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import RunRow
from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, Match, RunFilter

N = TypeVar("N", int, float)


class ManySearches:
    """Part of `ManyReader` that searches and counts. A run that two stores have is listed once, and counts twice."""

    _readers: Sequence[Reader]

    def search(self, wanted: RunFilter) -> FoundRuns:
        """Return the runs that match among the newest ones of each store."""
        found = [reader.search(wanted) for reader in self._readers]
        older = max((each.older for each in found if each.older is not None), default=None)
        # A store whose search went back further than that of another one shows runs of a time that is not whole.
        matches = [match for each in found for match in each.matches if older is None or match.start >= older]
        matches.sort(key=attrgetter("start"), reverse=True)
        return FoundRuns(
            matches=list(_once(matches)),
            examined=sum(each.examined for each in found),
            older=older,
            tokens=_sum(each.tokens for each in found),
            cost=_sum(each.cost for each in found),
        )

    def rows(self, run_ids: Sequence[str]) -> list[RunRow]:
        """Return runs by their ids, in the order of these."""
        found = {row.run_id: row for reader in reversed(self._readers) for row in reader.rows(run_ids)}
        return [found[run_id] for run_id in run_ids if run_id in found]

    def hours(self, since: int, until: int, agent: str | None = None) -> list[HourCount]:
        """Return the number of runs by hour and outcome, of hours that begin between two times."""
        counts = Counter[tuple[int, str]]()
        for reader in self._readers:
            for start, outcome, runs in reader.hours(since, until, agent):
                counts[start, outcome] += runs
        return [HourCount(start, outcome, runs) for (start, outcome), runs in sorted(counts.items())]

    def names(self, limit: int) -> dict[str, list[str]]:
        """Return the first names of each kind by which runs are searched."""
        found = [reader.names(limit) for reader in self._readers]
        kinds = dict.fromkeys(chain.from_iterable(found))
        return {kind: sorted({name for names in found for name in names.get(kind, ())})[:limit] for kind in kinds}

    def groups(
        self,
        by: str | None,
        since: int,
        until: int,
        *,
        step: int | None = None,
        within: tuple[str, str] | None = None,
        has_durations: bool = True,
    ) -> list[RunGroup]:
        """Return the runs that started between two times, counted by a name and by steps of time."""
        groups: dict[tuple[str, int], RunGroup] = {}
        for reader in self._readers:
            for group in reader.groups(by, since, until, step=step, within=within, has_durations=has_durations):
                key = group.name, group.step
                groups[key] = _joined(groups[key], group) if key in groups else group
        return list(groups.values())


def _joined(one: RunGroup, other: RunGroup) -> RunGroup:
    return RunGroup(
        name=one.name,
        step=one.step,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        faulty=one.faulty + other.faulty,
        tokens=_sum([one.tokens, other.tokens]),
        cost=_sum([one.cost, other.cost]),
        cached=_sum([one.cached, other.cached]),
        sent=_sum([one.sent, other.sent]),
        durations=sorted([*one.durations, *other.durations]),
        first=min(one.first, other.first),
        last=max(one.last, other.last),
    )


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _once(matches: Iterable[Match]) -> Iterator[Match]:
    seen = set[str]()
    for match in matches:
        if match.run_id not in seen:
            seen.add(match.run_id)
            yield match
