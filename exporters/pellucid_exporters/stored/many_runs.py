"""Searches and sums of runs over several stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING, TypeVar

from pellucid_exporters.stored.run_groups import RunGroup
from pellucid_exporters.stored.run_search import FoundRuns, HourCount, Match, RunFilter
from pellucid_exporters.stored.scores import ScoreGroup, ScoreRow, newest

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import Reader

_N = TypeVar("_N", int, float)


def search(readers: Sequence[Reader], wanted: RunFilter) -> FoundRuns:
    """Return the runs that match among the newest ones of all stores, over a time of which all were examined."""
    found = [reader.search(wanted) for reader in readers]
    older = max((each.older for each in found if each.older is not None), default=None)
    if older is not None:
        window = replace(wanted, since=max(older, wanted.since or 0))
        found = [reader.search(window) for reader in readers]
    every = [match for each in found for match in each.matches]
    matches: dict[str, Match] = {}
    copies = [match for match in every if matches.setdefault(match.run_id, match) is not match]
    return FoundRuns(
        matches=sorted(matches.values(), key=lambda match: match.start, reverse=True),
        examined=sum(each.examined for each in found) - len(copies),
        older=older,
        tokens=_sum([*(each.tokens for each in found), *(-(copy.tokens or 0) for copy in copies)]),
        cost=_sum([*(each.cost for each in found), *(-(copy.cost or 0) for copy in copies)]),
        hidden=sum(each.hidden for each in found),
    )


def hours(columns: Iterable[Sequence[HourCount]]) -> list[HourCount]:
    """Return the number of runs by hour and outcome."""
    counts: Counter[tuple[int, str]] = Counter()
    for start, outcome, runs in (count for column in columns for count in column):
        counts[start, outcome] += runs
    return [HourCount(start, outcome, runs) for (start, outcome), runs in sorted(counts.items())]


def names(columns: Sequence[dict[str, list[str]]], limit: int) -> dict[str, list[str]]:
    """Return the first names of each kind."""
    kinds = dict.fromkeys(kind for column in columns for kind in column)
    return {kind: sorted({name for column in columns for name in column.get(kind, ())})[:limit] for kind in kinds}


def groups(columns: Iterable[Sequence[RunGroup]]) -> list[RunGroup]:
    """Return groups of several stores, those with the same name and step of time as one."""
    found: dict[tuple[str, int], RunGroup] = {}
    for group in (group for column in columns for group in column):
        key = (group.name, group.step)
        found[key] = _both(found[key], group) if key in found else group
    return list(found.values())


def scores(columns: Iterable[Mapping[str, Sequence[ScoreRow]]]) -> dict[str, tuple[ScoreRow, ...]]:
    """Return the newest score of each name by run."""
    found: dict[str, list[ScoreRow]] = {}
    for column in columns:
        for run_id, rows in column.items():
            found.setdefault(run_id, []).extend(rows)
    return {run_id: newest(rows) for run_id, rows in found.items()}


def score_groups(columns: Iterable[Sequence[ScoreGroup]]) -> list[ScoreGroup]:
    """Return groups of scores of several stores, equal ones as one."""
    found: dict[tuple[str, str, int], ScoreGroup] = {}
    for group in (group for column in columns for group in column):
        key = (group.score, group.name, group.step)
        if (known := found.get(key)) is not None:
            group = replace(  # noqa: PLW2901
                group,
                number=known.number + group.number,
                total=known.total + group.total,
                errors=known.errors + group.errors,
            )
        found[key] = group
    return [found[key] for key in sorted(found)]


def _both(one: RunGroup, other: RunGroup) -> RunGroup:
    return RunGroup(
        name=one.name,
        step=one.step,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        faulty=one.faulty + other.faulty,
        tokens=_sum((one.tokens, other.tokens)),
        cost=_sum((one.cost, other.cost)),
        cached=_sum((one.cached, other.cached)),
        sent=_sum((one.sent, other.sent)),
        durations=list(merge(one.durations, other.durations)),
        first=min(one.first, other.first),
        last=max(one.last, other.last),
    )


def _sum(values: Iterable[_N | None]) -> _N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
