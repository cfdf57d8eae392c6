"""Reports: what an experiment found, by candidate, score and case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import fsum
from statistics import fmean
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.scores import Case
from pellucid.types import JSONObject
from pellucid_experiments.statistics import Interval, interval_of
from pellucid_experiments.trials import Trial

FORMAT: Final = "pellucid.experiment.report"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A score of a candidate.

    Attributes:
        candidate: Name of the candidate.
        score: Name of the score.
        interval: Its mean over the cases that have a value, with its interval; None if none has.
        runs: Number of runs that have a value.
        not_judged: Number of runs that should have the score, and do not: they failed, could not be replayed, were not
            run, or a scorer failed.
        floor: The mean if these count as 0, with which gates are compared.
        labels: How often it had which label.
    """

    candidate: str
    score: str
    interval: Interval | None
    runs: int
    not_judged: int
    floor: float
    labels: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseMean:
    """A score of a candidate for one case.

    Attributes:
        values: Values of its repeats.
        not_judged: Number of repeats that should have one, and do not.
    """

    values: tuple[float, ...] = ()
    not_judged: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there is none."""
        return fmean(self.values) if self.values else None

    @property
    def floor(self) -> float:
        """The mean if what is not judged counts as 0."""
        values = [*self.values, *[0.0] * self.not_judged]
        return fmean(values) if values else 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of an experiment.

    Attributes:
        name: Name of the experiment.
        plan: Cases (id and digest), candidates, scorers, repeats and mode.
        cases: The cases; empty if the report was read from a file.
        trials: All trials that were planned, also those that were not run.
    """

    name: str
    plan: Mapping[str, Any]
    cases: tuple[Case, ...] = field(repr=False, default=())
    trials: tuple[Trial, ...] = field(repr=False)

    @property
    def candidates(self) -> Sequence[str]:
        """Names of the candidates."""
        return tuple(self.plan["candidates"])

    @cached_property
    def scores(self) -> Sequence[str]:
        """Names of the scores, in the order of their first appearance."""
        return tuple(dict.fromkeys(score.name for trial in self.trials for score in trial.scores))

    @cached_property
    def summaries(self) -> Sequence[Summary]:
        """The scores of the candidates."""
        return [self._summary(candidate, score) for score in self.scores for candidate in self.candidates]

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], Mapping[str, CaseMean]]:
        """Means by case, of each candidate and score; cases that a score does not apply to are left out."""
        values: dict[tuple[str, str], dict[str, list[float]]] = {}
        missing: dict[tuple[str, str], Counter[str]] = {}
        for trial in self.trials:
            for name in self.scores:
                found = [score.value for score in trial.scores if score.name == name and score.value is not None]
                key = trial.candidate, name
                values.setdefault(key, {}).setdefault(trial.case, []).extend(found)
                missing.setdefault(key, Counter())[trial.case] += is_missing(trial, name)
        return {
            key: {
                case: CaseMean(values=tuple(found), not_judged=missing[key][case])
                for case, found in cases.items()
                if found or missing[key][case]
            }
            for key, cases in values.items()
        }

    @property
    def not_judged(self) -> Sequence[Trial]:
        """Trials that have no score, or in which a scorer failed."""
        return [
            trial
            for trial in self.trials
            if trial.status != "judged" or any(score.error_type is not None for score in trial.scores)
        ]

    @property
    def cost(self) -> float | None:
        """US dollars of all model calls of the runs and of judges, as far as they are known."""
        known = [cost for trial in self.trials for cost in (trial.cost, trial.scoring_cost) if cost is not None]
        return fsum(known) if known else None

    @property
    def scoring_cost(self) -> float | None:
        """US dollars of it that judges spent."""
        known = [trial.scoring_cost for trial in self.trials if trial.scoring_cost is not None]
        return fsum(known) if known else None

    def floor(self, candidate: str, score: str) -> float:
        """Return the mean of a score if runs that were not judged count as 0.

        Raises:
            ConfigError: no run has this score, although all were judged; or it has labels only.
        """
        found = next((each for each in self.summaries if (each.candidate, each.score) == (candidate, score)), None)
        if found is not None and found.labels and not found.runs:
            raise ConfigError(f"{score!r} of {candidate} has no values, only labels: {', '.join(found.labels)}")
        if found is not None:
            return found.floor
        if self.not_judged:
            return 0.0
        raise ConfigError(f"no scorer gave {score!r}; they gave {', '.join(self.scores) or 'nothing'}")

    def to_dict(self) -> JSONObject:
        """Return the report as JSON-able data, which a later experiment can be compared with."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.plan,
            "name": self.name,
            "cost": self.cost,
            "summaries": [asdict(summary) for summary in self.summaries],
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def _summary(self, candidate: str, score: str) -> Summary:
        cells = self.cells.get((candidate, score), {})
        means = [cell.mean for cell in cells.values() if cell.mean is not None]
        floors = [cell.floor for cell in cells.values()]
        labels = Counter(
            each.label
            for trial in self.trials
            for each in trial.scores
            if trial.candidate == candidate and each.name == score and each.label is not None
        )
        return Summary(
            candidate=candidate,
            score=score,
            interval=interval_of(means) if means else None,
            runs=sum(len(cell.values) for cell in cells.values()),
            not_judged=sum(cell.not_judged for cell in cells.values()),
            floor=fmean(floors) if floors else 0.0,
            labels=dict(sorted(labels.items())),
        )


def is_missing(trial: Trial, name: str) -> bool:
    """Return whether a trial should have a score and does not.

    Where a scorer failed, each score that is not there is missing: nobody knows which ones it would have given.
    """
    if trial.status != "judged":
        return True
    own = [score for score in trial.scores if score.name == name]
    if own:
        return any(score.error_type is not None for score in own)
    return any(score.error_type is not None for score in trial.scores)
