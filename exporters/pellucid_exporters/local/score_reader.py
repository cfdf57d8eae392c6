"""The part of a reader of the store that reads scores."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from pellucid_exporters.local import score_rows
from pellucid_exporters.stored.scores import ScoreGroup, ScoreRow

_T = TypeVar("_T")


class ScoreReader(ABC):
    """Reader of scores."""

    @abstractmethod
    def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what some work reads in one state of the store."""

    def scores(self, run_id: str) -> list[ScoreRow]:
        """Return the scores of a run in the order of their times; of those that belong to no run for the id `""`."""
        return self._read(lambda connection: score_rows.scores_of(connection, run_id))

    def newest_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[ScoreRow, ...]]:
        """Return the newest score of each name of some runs, without explanations; also of runs of other stores."""
        return self._read(lambda connection: score_rows.newest_scores(connection, run_ids))

    def score_values(self, name: str, run_ids: Sequence[str]) -> dict[str, tuple[int, float | None]]:
        """Return the time and the value of the newest score of a name, of some runs."""
        return self._read(lambda connection: score_rows.values_of(connection, name, run_ids))

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
        """Return the scores that were given between two times, counted by their name, another one, and steps of time.

        Scores of replays and of runs of experiments are left out.

        Args:
            by: `agent`, `version` or `model`; only by the name of the score if it is None.
            since: Start of the window.
            until: Its end, exclusive.
            step: Nanoseconds of a step of time.
            within: One of these and a name: only scores that have it are counted.
            without: Ids of further runs whose scores are left out.
        """
        options = (step, within, without)
        return self._read(lambda connection: score_rows.score_groups(connection, by, since, until, *options))

    def strangers(self, since: int, until: int) -> set[str]:
        """Return the ids of runs with scores of a window of time that the store does not have."""
        return self._read(lambda connection: score_rows.strangers(connection, since, until))

    def unmeasured(self, run_ids: Iterable[str]) -> set[str]:
        """Return which of some runs are replays or of experiments, as far as the store has them."""
        return self._read(lambda connection: score_rows.unmeasured(connection, run_ids))
