"""Contents of a report as tables and notes, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pellucid.run.start import conversation
from pellucid.scores.evidence import question_of
from pellucid.text import excerpt
from pellucid_experiments.comparing import Comparison
from pellucid_experiments.report import CaseMean, Report
from pellucid_experiments.statistics import FEW, TOLERANCE, Interval

MOST: Final = 50
"""Rows of cases that are shown."""

_TEXT: Final = 200
_QUESTION: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table.

    Attributes:
        title: Its title.
        columns: Titles of the columns.
        rows: Cells.
        right: Columns of numbers.
        texts: Columns that give way where it is narrow.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def headline(report: Report) -> str:
    """Return one line on an experiment."""
    plan = report.plan
    judged = sum(trial.status == "judged" for trial in report.trials)
    how = "called live" if plan["mode"] == "live" else "replayed"
    parts = [
        _counted(len(plan["cases"]), "case"),
        _counted(len(report.candidates), "candidate"),
        _counted(plan["repeat"], "repeat"),
    ]
    cost = f", ${report.cost:.4f}" if report.cost is not None else ""
    cost += f", of which ${report.scoring_cost:.4f} by judges" if report.scoring_cost is not None else ""
    return f"{report.name}: {', '.join(parts)}: {judged:,} of {len(report.trials):,} runs judged, {how}{cost}"


def sections(report: Report, comparisons: Sequence[Comparison]) -> Iterator[Section]:
    """Yield the tables of a report: what became worse comes first."""
    if comparisons:
        yield Section(
            title="Comparisons",
            columns=("SCORE", "CANDIDATE", "AGAINST", "DIFFERENCE", "95 % INTERVAL", "P", "CASES", ""),
            rows=[_compared(each) for each in comparisons],
            right=("DIFFERENCE", "P", "CASES"),
        )
    yield Section(
        title="Scores",
        columns=("SCORE", "CANDIDATE", "MEAN", "95 % INTERVAL", "CASES", "RUNS", "NOT JUDGED", "LABELS"),
        rows=[
            (
                each.score,
                each.candidate,
                _number(each.interval.mean) if each.interval is not None else "-",
                _bounds(each.interval),
                f"{each.interval.cases if each.interval is not None else 0:,}",
                f"{each.runs:,}",
                f"{each.not_judged:,}",
                ", ".join(f"{label} {count:,}" for label, count in each.labels.items()),
            )
            for each in report.summaries
        ],
        right=("MEAN", "CASES", "RUNS", "NOT JUDGED"),
        texts=("LABELS",),
    )
    yield _cases(report, comparisons)
    problems = [
        (
            trial.case,
            trial.candidate,
            str(trial.repeat),
            trial.outcome.replace("scorer_", "scorer "),
            trial.run_id[:12],
            excerpt(why, _TEXT),
        )
        for trial in report.not_judged
        for why in trial.problems
    ]
    if problems:
        yield Section(
            title="Not judged",
            columns=("CASE", "CANDIDATE", "REPEAT", "STATUS", "RUN", "WHY"),
            rows=problems[:MOST],
            right=("REPEAT",),
            texts=("WHY",),
        )


def notes(report: Report, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield what a reader must know to read the numbers."""
    count = len(report.plan["cases"])
    if count < FEW:
        yield f"{_counted(count, 'case')}: intervals of fewer than {FEW} are rough, and rather too narrow."
    least = {each.difference.least_p: len(each.changes) for each in comparisons if each.difference is not None}
    for p, pairs in least.items():
        if p >= 0.05:  # noqa: PLR2004  (see SIGNIFICANT)
            yield f"With {_counted(pairs, 'pair')}, p is at least {p:.3f}: too few to find a regression by."
    unpaired = max((each.unpaired for each in comparisons), default=0)
    if unpaired:
        yield f"{_counted(unpaired, 'case')} could not be compared: changed since, or without a value on one side."
    retries = sum(max(0, trial.attempts - 1) for trial in report.trials)
    if retries:
        yield f"{_counted(retries, 'further attempt')} after failures that passed, or did not."
    if report.not_judged:
        count = len(report.not_judged)
        yield f"{_counted(count, 'run')} not judged: each counts as 0 in gates on the scores that it lacks."


def _cases(report: Report, comparisons: Sequence[Comparison]) -> Section:
    """Return the table of cases: those that became worse first, or else the worst."""
    changes: dict[tuple[str, str], float] = {}
    for each in comparisons:
        for item in each.changes:
            key = item.case, each.score
            changes[key] = min(item.difference, changes.get(key, item.difference))
    inputs = {case.id: excerpt(question_of(conversation((), case.input)), _QUESTION) for case in report.cases}
    rows: list[tuple[float, tuple[str, ...]]] = []
    for case in report.plan["cases"]:
        for score in report.scores:
            cells = [report.cells.get((name, score), {}).get(case) for name in report.candidates]
            if all(cell is None for cell in cells):
                continue
            change = changes.get((case, score))
            worst = min((cell.floor for cell in cells if cell is not None), default=0.0)
            shown = (_signed(change) if change is not None else "-",) if comparisons else ()
            rows.append(
                (
                    change if change is not None else worst,
                    (case, score, *map(_cell, cells), *shown, inputs.get(case, "")),
                )
            )
    rows.sort(key=lambda row: row[0])
    added = ("CHANGE",) if comparisons else ()
    left = len(rows) - MOST
    return Section(
        title=f"Cases, the worst {MOST} of {len(rows)}" if left > 0 else "Cases",
        columns=("CASE", "SCORE", *report.candidates, *added, "INPUT"),
        rows=[row for _, row in rows[:MOST]],
        right=(*report.candidates, *added),
        texts=("INPUT",),
    )


def _compared(each: Comparison) -> tuple[str, ...]:
    found = each.difference
    if found is None:
        return each.score, each.candidate, each.against, "-", "-", "-", "0", f"not compared: {each.problem}"
    mean = found.interval.mean
    verdict = "REGRESSION" if each.is_regression else "worse, not significant" if each.is_worse else ""
    return (
        *(each.score, each.candidate, each.against, _signed(mean), _bounds(found.interval, signed=True)),
        *(f"{found.p:.3f}", f"{found.interval.cases:,}", verdict),
    )


def _cell(cell: CaseMean | None) -> str:
    if cell is None:
        return "-"
    mean = _number(cell.mean) if cell.mean is not None else "-"
    return f"{mean} ({cell.not_judged} not judged)" if cell.not_judged else mean


def _number(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float) -> str:
    return f"{value if abs(value) > TOLERANCE else 0.0:+.3f}"


def _bounds(interval: Interval | None, *, signed: bool = False) -> str:
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return "one case" if interval.cases == 1 else "all cases alike"
    low, high = map(_signed if signed else _number, (interval.low, interval.high))
    return f"{low} to {high}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
