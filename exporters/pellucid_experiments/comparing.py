"""Comparisons: a candidate against another one, or against an earlier experiment, case by case."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid_experiments import journal
from pellucid_experiments.journal import read_journal
from pellucid_experiments.report import FORMAT, VERSION, Report
from pellucid_experiments.statistics import Difference, difference_of, reaches
from pellucid_experiments.trials import Trial, trial_of

SIGNIFICANT: Final = 0.05
"""The p value below which a lower mean is a regression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A case whose mean differs."""

    case: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """Below 0 if it is worse."""
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A score of a candidate against that of another one.

    Attributes:
        score: Name of the score.
        candidate, against: The two sides; the second is the baseline.
        difference: Difference of the means and what it is worth; None if no case has a value on both sides.
        changes: The cases that have a value on both sides, the worst first.
        unpaired: Number of cases that have a value on one side only, or that were changed since.
        problem: Why nothing was compared; empty if something was.
    """

    score: str
    candidate: str
    against: str
    difference: Difference | None
    changes: tuple[Change, ...]
    unpaired: int
    problem: str = ""

    @property
    def is_regression(self) -> bool:
        """True if the mean is lower by more than chance explains: p is below 0.05."""
        found = self.difference
        return self.is_worse and found is not None and found.p < SIGNIFICANT

    @property
    def is_worse(self) -> bool:
        """True if the mean is lower by more than rounding."""
        return self.difference is not None and not reaches(self.difference.interval.mean, 0.0)


def compared(report: Report, baseline: Report | None = None) -> Sequence[Comparison]:
    """Return the comparisons of a report, the worst first.

    A score that the baseline has, and the candidate has not, is one without a `difference`, and so is at least one of
    each candidate of which nothing can be compared. A score that is new, and one that has labels only, is left out.

    Args:
        report: Its candidates are compared.
        baseline: With the candidate of the same name of this one, or its only one; without it, with the first one of
            the report.

    Raises:
        ConfigError: the baseline has several candidates, and none of the same name.
    """
    pairs: list[tuple[str, Report, str, str]] = []
    if baseline is None:
        first = report.candidates[0]
        pairs = [(name, report, first, first) for name in report.candidates[1:]]
    else:
        for name in report.candidates:
            other = counterpart(name, baseline)
            pairs.append((name, baseline, other, f"{baseline.name} {other}"))
    found = [
        _comparison(report, name, score, other, candidate, label)
        for name, other, candidate, label in pairs
        for score in _scores(report, name, other, candidate)
    ]
    return sorted(found, key=lambda each: each.difference.interval.mean if each.difference is not None else 0.0)


def counterpart(name: str, baseline: Report) -> str:
    """Return the candidate of a baseline that a candidate is compared with.

    Raises:
        ConfigError: it has several, and none of the same name.
    """
    if name in baseline.candidates:
        return name
    if len(baseline.candidates) == 1:
        return baseline.candidates[0]
    known = ", ".join(baseline.candidates)
    raise ConfigError(
        f"the baseline {baseline.name!r} has no candidate {name!r}; it has {known}: name it the same "
        "(--agent NAME=MODULE:NAME)"
    )


def _scores(report: Report, name: str, other: Report, candidate: str) -> Sequence[str]:
    """Return the scores to compare; if none has a value, all there are, so that this is said."""
    both = list(dict.fromkeys((*other.scores, *report.scores)))
    found = [
        score
        for score in both
        if _has_values(other, candidate, score, report.plan["cases"])
        or (score in other.scores and _has_values(report, name, score, report.plan["cases"]))
    ]
    return found or both or list(report.plan["scorers"] or ["score"])


def _has_values(report: Report, candidate: str, score: str, cases: Collection[str]) -> bool:
    return any(cell.values and case in cases for case, cell in report.cells.get((candidate, score), {}).items())


def _comparison(report: Report, name: str, score: str, other: Report, candidate: str, label: str) -> Comparison:
    mine, its = report.cells.get((name, score), {}), other.cells.get((candidate, score), {})
    changes, changed = [], False
    for case, cell in mine.items():
        before = its[case].mean if case in its else None
        is_same = report.plan["cases"].get(case) == other.plan["cases"].get(case)
        if cell.mean is not None and before is not None:
            changed = changed or not is_same
            changes += [Change(case=case, before=before, after=cell.mean)] if is_same else []
    problem = "no case has a value on both sides"
    if changed:
        problem = "each case with a value on both sides was changed since"
    for side, cells in ((label, its), (name, mine)):
        problem = problem if any(cell.values for cell in cells.values()) else f"{side} has no value of it"
    return Comparison(
        score=score,
        candidate=name,
        against=label,
        difference=difference_of([change.difference for change in changes]) if changes else None,
        changes=tuple(sorted(changes, key=lambda change: change.difference)),
        unpaired=len({*mine, *its}) - len(changes),
        problem="" if changes else problem,
    )


def load_report(path: Path) -> Report:
    """Return the report of a file of `--out`, or of the journal of an experiment.

    Raises:
        ConfigError: the file cannot be read, or is neither.
    """
    try:
        with path.open("rb") as file:
            start = file.readline(1_000_000)
    except OSError as error:
        raise ConfigError(f"{path}: the experiment cannot be read ({error.strerror})") from None
    if f'"{journal.FORMAT}"'.encode() in start:
        head, trials = read_journal(path)
        return _report(path, head, trials)
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT or data["version"] > VERSION:
            raise ConfigError(f"{path}: this is no report of an experiment, or one of a later version")
        return _report(path, data, [trial_of(trial) for trial in data["trials"]])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: this is no report of an experiment; give a file of --out") from error


def _report(path: Path, head: Any, trials: Sequence[Trial]) -> Report:
    plan = {name: head.get(name) for name in ("name", "cases", "candidates", "scorers", "repeat", "mode")}
    if not isinstance(plan["cases"], dict) or not isinstance(plan["candidates"], list):
        raise ConfigError(f"{path}: the experiment lacks its cases or candidates; run it again")
    latest = {trial.key: trial for trial in trials}  # one that a budget ended may have been asked again
    return Report(name=str(plan["name"]), plan=plan, trials=tuple(latest.values()))
