"""Reports for CI: Markdown, and JUnit's XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from pellucid.scores import Score
from pellucid.text import excerpt
from pellucid_experiments.comparing import Comparison
from pellucid_experiments.report import Report
from pellucid_experiments.sections import Section, headline, notes, sections
from pellucid_experiments.statistics import reaches
from pellucid_experiments.trials import Trial

_UNPRINTABLE: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot have."""

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>#|!&])")
_WORST: Final = 10
_ANSWER: Final = 500


def markdown_of(report: Report, comparisons: Sequence[Comparison] = ()) -> str:
    """Return a report in Markdown, such as for a comment on a pull request."""
    lines = [f"# Experiment {_escaped(headline(report))}", ""]
    for section in sections(report, comparisons):
        lines += [f"## {section.title}", "", *_table(section), ""]
    lines += [f"- {_escaped(note)}" for note in notes(report, comparisons)]
    return "\n".join(lines).rstrip() + "\n"


def _table(section: Section) -> Iterator[str]:
    yield _row(_escaped(column.capitalize() if column.isupper() else column) for column in section.columns)
    yield _row("---:" if column in section.right else "---" for column in section.columns)
    for row in section.rows:
        yield _row(map(_escaped, row))


def _row(cells: Iterator[str] | map[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Return text in which nothing is markup: models and hubs wrote some of it."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def junit_of(report: Report, gates: Mapping[str, float], comparisons: Sequence[Comparison] = ()) -> str:
    """Return a report as JUnit's XML: a suite for each candidate, in which each case and each gate is a test.

    A gate that does not hold and a regression are failures, a case that was not judged and a score that was not
    compared are errors: the file says what the exit code says.
    """
    trials: dict[tuple[str, str], list[Trial]] = {}
    for trial in report.trials:
        trials.setdefault((trial.candidate, trial.case), []).append(trial)
    suites = Element("testsuites", name=_clean(report.name))
    for candidate in report.candidates:
        suite = SubElement(suites, "testsuite", name=_clean(candidate))
        for name, least in gates.items():
            _gate(suite, report, candidate, name, least)
        for each in comparisons:
            if each.candidate == candidate:
                _comparison(suite, each)
        for case in report.plan["cases"]:
            _case(suite, candidate, case, trials.get((candidate, case), ()))
        for kind, tag in (("tests", "testcase"), ("failures", "testcase/failure"), ("errors", "testcase/error")):
            suite.set(kind, str(len(suite.findall(tag))))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suites, encoding="unicode")}\n'


def _gate(suite: Element, report: Report, candidate: str, name: str, least: float) -> None:
    test = SubElement(suite, "testcase", classname=_clean(candidate), name=_clean(f"gate {name} >= {least:g}"))
    floor = report.floor(candidate, name)
    if reaches(floor, least):
        return
    cells = report.cells.get((candidate, name), {})
    worst = sorted(cells.items(), key=lambda item: item[1].floor)[:_WORST]
    failure = SubElement(test, "failure", message=_clean(f"{name} is {floor:.3f}, below {least:g}"))
    failure.text = _clean("\n".join(f"{case}: {cell.floor:.3f}" for case, cell in worst))


def _comparison(suite: Element, each: Comparison) -> None:
    name = f"no regression of {each.score} against {each.against}"
    test = SubElement(suite, "testcase", classname=_clean(each.candidate), name=_clean(name))
    if each.problem:
        SubElement(test, "error", type="not_compared", message=_clean(each.problem))
    elif each.is_regression and each.difference is not None:
        found = each.difference
        message = (
            f"{each.score} is lower by {-found.interval.mean:.3f} (p = {found.p:.3f}, {found.interval.cases} cases)"
        )
        failure = SubElement(test, "failure", message=_clean(message))
        worst = [change for change in each.changes if change.difference < 0][:_WORST]
        failure.text = _clean("\n".join(f"{item.case}: {item.before:.3f} to {item.after:.3f}" for item in worst))


def _case(suite: Element, candidate: str, case: str, trials: Sequence[Trial]) -> None:
    seconds = sum(trial.seconds or 0.0 for trial in trials)
    test = SubElement(
        suite, "testcase", classname=_clean(candidate), name=_clean(f"case {case}"), time=f"{seconds:.3f}"
    )
    problems = [(trial, why) for trial in trials for why in trial.problems]
    if problems:
        first, why = problems[0]
        error = SubElement(test, "error", type=first.outcome, message=_clean(why))
        error.text = _clean("\n".join(f"repeat {trial.repeat}: {why}" for trial, why in problems))
    lines = [
        f"repeat {trial.repeat}, run {trial.run_id}: {_said(score)}"
        for trial in trials
        for score in trial.scores
        if score.error_type is None
    ]
    lines += [f"repeat {trial.repeat} answered: {excerpt(trial.answer, _ANSWER)}" for trial in trials if trial.answer]
    if lines:
        SubElement(test, "system-out").text = _clean("\n".join(lines))


def _said(score: Score) -> str:
    value = f"{score.value:g}" if score.value is not None else str(score.label)
    return f"{score.name} {value}" + (f": {score.explanation}" if score.explanation else "")


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
