"""Filters and results of searches for runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pellucid_exporters.stored.rows import ALL
from pellucid_exporters.stored.scores import ScoreCondition

BOUND: Final = 2_000
"""Runs that a search examines at most, the newest first: its cost does not grow with the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Filter of a search for runs; `None` matches all.

    Attributes:
        outcome: Status; see `STATUSES`.
        text: Part of the question, the answer, the error or the id, in any case of letters.
        everywhere: Whether to look for the text in all recorded content, which reads all texts of the store.
        min_duration: Seconds that a run took at least.
        min_cost: US dollars that it cost at least, with the runs nested in it.
        since, until: Times of the start, the latter exclusive.
        faulty: Whether to return only runs in which a boundary failed.
        outermost: Whether to leave out runs nested in others.
        score: Condition on the newest score of a name.
        kind: `agent` for runs that are neither of judges nor of experiments, `judge`, `experiment`, or `all`.
    """

    agent: str | None = None
    outcome: str | None = None
    hub: str | None = None
    tool: str | None = None
    model: str | None = None
    tag: str | None = None
    user: str | None = None
    tenant: str | None = None
    conversation: str | None = None
    version: str | None = None
    error_type: str | None = None
    text: str | None = None
    everywhere: bool = False
    min_duration: float | None = None
    min_cost: float | None = None
    since: int | None = None
    until: int | None = None
    faulty: bool = False
    outermost: bool = False
    score: ScoreCondition | None = None
    kind: str = ALL


class Match(NamedTuple):
    """A run that was found. Tokens and cost are those with the runs nested in it; so far, if it has not ended."""

    run_id: str
    parent_run_id: str | None
    agent: str
    status: str
    start: int
    end: int | None
    user: str | None
    tenant: str | None
    conversation: str | None
    version: str | None
    question: str | None
    answer: str | None
    tokens: int | None
    cost: float | None
    faults: int | None
    spans: int

    @property
    def duration(self) -> int | None:
        """Nanoseconds, if it has ended."""
        return self.end - self.start if self.end is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRuns:
    """Result of a search.

    Attributes:
        matches: The runs, the newest first.
        examined: Number of runs that were examined.
        older: If older runs were not examined, the time before which these started.
        tokens, cost: Sums of the matches and the runs nested in them, each counted once.
        hidden: Number of runs that would match if they were of the kind.
    """

    matches: Sequence[Match] = ()
    examined: int = 0
    older: int | None = None
    tokens: int | None = None
    cost: float | None = None
    hidden: int = 0


class HourCount(NamedTuple):
    """Number of runs that started in an hour, by its start in nanoseconds; `outcome` is empty for those under way."""

    start: int
    outcome: str
    runs: int
