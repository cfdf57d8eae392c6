"""Reports: comparisons, files for CI, and what they say of content that others wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from pellucid import Agent, ConfigError
from pellucid.scores import Case, Score, judge
from pellucid.testing import FunctionModel
from pellucid_commands.experiments.outputs import verdict
from pellucid_experiments import Report, Trial, compared, junit_of, load_report, markdown_of
from pellucid_experiments.experimenting import Experiment
from pellucid_experiments.sections import notes, sections
from pellucid_exporters import StoreReader
from support.experiments import correct, guesses, recorded, shop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("telemetry")


def report(values: Mapping[str, Mapping[str, Sequence[float | None]]], name: str = "e", **cases: str) -> Report:
    """Return a report of values by candidate and case; None was not replayable."""
    trials = [
        Trial(
            case=case,
            candidate=candidate,
            repeat=number,
            status="judged" if value is not None else "not_replayable",
            problem="" if value is not None else "arguments differ",
            scores=(Score(name="correct", value=value),) if value is not None else (),
            run_id="0" * 32,
        )
        for candidate, by_case in values.items()
        for case, given in by_case.items()
        for number, value in enumerate(given, start=1)
    ]
    ids = {case: cases.get(case, "0") for by_case in values.values() for case in by_case}
    plan = {"name": name, "cases": ids, "candidates": list(values), "scorers": [], "repeat": 1, "mode": "replay"}
    return Report(name=name, plan=plan, trials=tuple(trials))


def test_repeats_of_a_case_count_as_one(telemetry: Any) -> None:
    """The mean is that of the cases: ten repeats of a good case do not hide a bad one, nor narrow the interval."""
    [summary] = report({"a": {"good": [1.0] * 10, "bad": [0.0], "half": [0.0, 1.0]}}).summaries
    assert summary.interval is not None
    assert (summary.interval.mean, summary.interval.cases, summary.runs) == (0.5, 3, 13)
    assert (summary.interval.low, summary.interval.high) == (0.0, 1.0)


def test_a_regression_of_enough_cases_is_one() -> None:
    """Ten cases of which eight became worse: p is below 0.05; the worst case comes first."""
    before = {str(number): [1.0] for number in range(10)}
    after = {str(number): [0.2 + number / 10 if number < 8 else 1.0] for number in range(10)}
    found = report({"before": before, "after": after})
    [comparison] = compared(found)
    assert comparison.is_regression
    assert comparison.changes[0].case == "0"
    assert comparison.difference is not None
    assert comparison.difference.p == pytest.approx(2 / 2**8)
    assert "REGRESSION" in str(next(sections(found, [comparison])).rows[0])
    [better] = compared(report({"after": after, "before": before}))
    assert not better.is_regression


def test_a_baseline_is_compared_by_case() -> None:
    """With the candidate of the same name, or its only one; a case that was changed since is left out, and said."""
    baseline = report({"a": {"x": [1.0], "y": [1.0], "z": [1.0]}}, name="main", z="old")
    now = report({"b": {"x": [0.0], "y": [None], "z": [0.0]}})
    [comparison] = compared(now, baseline)
    assert (comparison.against, comparison.unpaired) == ("main a", 2)
    assert [change.case for change in comparison.changes] == ["x"]
    said = list(notes(now, [comparison]))
    assert any(note.startswith("2 cases could not be compared") for note in said)
    several = report({"a": {"x": [1.0]}, "c": {"x": [1.0]}}, name="main")
    with pytest.raises(ConfigError, match="the baseline 'main' has no candidate 'b'; it has a, c"):
        compared(now, several)
    [nothing] = compared(report({"b": {"x": [None]}}), report({"b": {"x": [1.0]}}))
    assert (nothing.difference, nothing.problem) == (None, "b has no value of it")


def test_a_report_reads_as_it_was_written(tmp_path: Path) -> None:
    """Also by a version that knows fewer fields; what is no report is refused."""
    found = report({"a": {"x": [1.0], "y": [None]}})
    path = tmp_path / "report.json"
    data = found.to_dict()
    data["trials"][0]["later"] = 1
    path.write_text(json.dumps(data))
    assert load_report(path).trials == found.trials
    wrong: list[Any] = [
        {**data, "version": 99},
        {**data, "format": "x"},
        {**data, "trials": [{"case": 1}]},
        {**data, "trials": [{**data["trials"][0], "status": "great"}]},
        {**data, "trials": [{**data["trials"][0], "scores": [{"value": 1}]}]},
        {**data, "cases": None},
        [],
    ]
    for each in wrong:
        path.write_text(json.dumps(each))
        with pytest.raises(ConfigError):
            load_report(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="this is no report of an experiment"):
        load_report(path)


def test_junit_says_what_the_exit_code_says() -> None:
    """A gate that fails is a failure, a case that was not judged an error; the rest passes."""
    found = report({"a": {"x": [1.0], "y": [0.0], "z": [None]}})
    [suite] = ET.fromstring(junit_of(found, {"correct": 0.5}))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("a", "4", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "correct is 0.333, below 0.5"
    assert failure.text == "y: 0.000\nz: 0.000\nx: 1.000"
    error = suite.find("testcase[@name='case z']/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("not_replayable", "arguments differ")


def test_hostile_content_is_no_markup() -> None:
    """In Markdown and XML: models and hubs wrote answers and errors."""
    hostile = "</failure> | <img src=x> \x00\ud800 [a](b) ```\n# Title"
    trial = Trial(case="x|y", candidate="a", repeat=1, status="failed", problem=hostile)
    plan = {"cases": {"x|y": "0"}, "candidates": ["a"], "scorers": [], "repeat": 1, "mode": "live"}
    found = Report(name="e", plan=plan, trials=(trial,))
    [suite] = ET.fromstring(junit_of(found, {}).encode())
    error = suite.find("testcase/error")
    assert error is not None
    assert str(error.get("message")).startswith("</failure> | <img src=x> \ufffd\ufffd")
    markdown = markdown_of(found)
    assert "\\<img src=x\\>" in markdown
    assert "x\\|y" in markdown
    assert "\n# Title" not in markdown


def test_the_cost_is_estimated_before(tmp_path: Path) -> None:
    """From the tokens of the recorded runs and the prices of the candidate; what is not known is said."""
    cases = recorded(tmp_path / "store.db")
    store = StoreReader(tmp_path / "store.db")
    by_hand = Case(id="by-hand", input="Why?")
    replayed = Experiment(cases, shop(guesses), scorers=[correct], replay=store, repeat=2)
    assert str(replayed.estimate()) == "about $0.6000 for 6 runs, from recorded tokens"
    live = Experiment([*cases, by_hand], shop(guesses), scorers=[correct])
    assert str(live.estimate(store=store)) == "about $0.3000 for 3 runs, from recorded tokens, and 1 of unknown cost"
    done = [live.planned[0].key, live.planned[1].key]
    assert live.estimate(done, store).known == 1
    assert str(live.estimate([planned.key for planned in live.planned])) == "none: no run is left"
    unpriced = Experiment(cases, Agent("shop", model=FunctionModel(guesses)), scorers=[correct], replay=store)
    assert str(unpriced.estimate()).startswith("unknown: no recorded tokens, or no prices, for any of 3 runs")
    polite = judge("Polite.", model=FunctionModel(guesses), name="polite")
    judged = Experiment(cases, shop(guesses), scorers=[correct, polite], replay=store)
    assert str(judged.estimate()).endswith("tokens; without what judges spend, which is not estimated: polite")


def test_a_mean_that_is_the_gate_holds() -> None:
    """Rounding of sums is no failure: three times 0.7 is a mean of 0.7, on a terminal and in JUnit's XML."""
    found = report({"a": {"x": [0.7] * 3, "y": [0.7] * 3, "z": [0.7, 0.7, 0.7]}})
    assert found.floor("a", "correct") == pytest.approx(0.7)
    assert verdict(found, (), {"correct": 0.7}, fail_on_regression=False) == 0
    [suite] = ET.fromstring(junit_of(found, {"correct": 0.7}))
    assert suite.get("failures") == "0"
    thirds = report({"a": {"x": [0.1], "y": [0.2], "z": [0.3 - 1e-12]}})
    assert verdict(thirds, (), {"correct": 0.2}, fail_on_regression=False) == 0
    assert verdict(thirds, (), {"correct": 0.200001}, fail_on_regression=False) == 1
    for least, failures in ((0.2, "0"), (0.200001, "1")):
        [suite] = ET.fromstring(junit_of(thirds, {"correct": least}))
        assert suite.get("failures") == failures


def judged(scores: Mapping[str, Score | None], cases: str = "0", name: str = "e") -> Report:
    """Return a report of one candidate, with one run of each case that gave this score, or none."""
    trials = [
        Trial(case=case, candidate="a", repeat=1, status="judged", scores=(given,) if given is not None else ())
        for case, given in scores.items()
    ]
    plan = {"name": name, "cases": dict.fromkeys(scores, cases), "candidates": ["a"], "scorers": ["right"]}
    return Report(name=name, plan={**plan, "repeat": 1, "mode": "live"}, trials=tuple(trials))


RIGHT, OTHER, LABEL = (Score(name="right", value=1), Score(name="other", value=1), Score(name="mood", label="calm"))


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (judged({"x": RIGHT}, cases="changed"), "each case with a value on both sides was changed since"),
        (judged({"x": OTHER}), "a has no value of it"),
        (judged({"x": LABEL}), "a has no value of it"),
        (judged({"x": None}), "a has no value of it"),
        (judged({"z": RIGHT}), "no case has a value on both sides"),
    ],
)
def test_what_was_not_compared_is_no_pass(now: Report, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All cases changed, a scorer renamed, no value: the exit code is 3, and JUnit has an error and no passing test."""
    found = compared(now, judged({"x": RIGHT}, name="main"))
    assert verdict(now, found, {}, fail_on_regression=True) == 3
    out = capsys.readouterr().out
    assert f"NOT COMPARED  right of a with that of main a: {why}" in out
    assert "ok " not in out
    [suite] = ET.fromstring(junit_of(now, {}, found))
    error = suite.find("testcase[@name='no regression of right against main a']/error")
    assert error is not None
    assert (error.get("type"), error.get("message"), suite.get("errors")) == ("not_compared", why, "1")
    assert verdict(now, found, {}, fail_on_regression=False) == 0


def test_a_gate_that_fails_comes_before_what_was_not_compared() -> None:
    """The exit code is 1 then."""
    now = judged({"x": OTHER})
    found = compared(now, judged({"x": RIGHT}, name="main"))
    assert verdict(now, found, {"other": 2.0}, fail_on_regression=True) == 1


def test_a_comparison_of_some_cases_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Cases that cannot be paired, scores that are new, and labels, which have no mean, are no errors."""
    before = judged({"x": RIGHT, "y": RIGHT, "w": OTHER, "v": LABEL}, name="main")
    now = judged({"x": RIGHT, "z": RIGHT, "u": Score(name="new", value=1), "v": LABEL})
    found = compared(now, before)
    assert [each.score for each in found] == ["right"]
    assert verdict(now, found, {}, fail_on_regression=True) == 0
    assert "ok      no regression" in capsys.readouterr().out
    assert any(note.startswith("2 cases could not be compared") for note in notes(now, found))


def test_a_report_of_labels_only_is_not_compared() -> None:
    """Something must be: without a value on either side, a gate for regressions is no pass."""
    now, before = judged({"x": LABEL}), judged({"x": LABEL}, name="main")
    assert [each.problem for each in compared(now, before)] == ["a has no value of it"]
    failed = report({"a": {"x": [None]}})
    assert verdict(failed, compared(failed, failed), {}, fail_on_regression=True) == 3


def test_a_gate_on_labels_is_an_error() -> None:
    """It can neither hold nor fail: a label has no mean."""
    found = judged({"x": LABEL, "y": Score(name="mood", error_type="ValueError")})
    with pytest.raises(ConfigError, match="'mood' of a has no values, only labels: calm"):
        found.floor("a", "mood")
    with pytest.raises(ConfigError, match="has no values"):
        verdict(found, (), {"mood": 0.5}, fail_on_regression=False)


class Counted(tuple[Trial, ...]):  # noqa: SLOT001  (it counts)
    """Trials that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Trial]:
        self.passes += 1
        return super().__iter__()


def passes(cases: int) -> int:
    """Return how often a report of so many cases goes through its trials for JUnit's XML."""
    found = report({"a": {str(number): [1.0] for number in range(cases)}, "b": {}})
    trials = Counted(found.trials)
    junit_of(Report(name="e", plan=found.plan, trials=trials), {"correct": 0.5})
    return trials.passes


def test_junit_goes_through_the_trials_once_for_all_cases() -> None:
    """And not once for each case, which is quadratic."""
    assert passes(40) == passes(2)


def test_what_is_said_of_a_scorer_that_failed() -> None:
    """Its status is no `judged`, the type of the error is said once, and only gates that lack a score count it."""
    failed = Score(name="right", error_type="ValueError", explanation="ValueError: no idea")
    qualified = Score(name="right", error_type="content_not_recorded", explanation="NotRecorded: output")
    found = judged({"x": failed, "y": qualified})
    rows = next(section for section in sections(found, ()) if section.title == "Not judged").rows
    assert [(row[3], row[5]) for row in rows] == [
        ("scorer failed", "right: ValueError: no idea"),
        ("scorer failed", "right: content_not_recorded: NotRecorded: output"),
    ]
    assert list(notes(found, ()))[-1] == "2 runs not judged: each counts as 0 in gates on the scores that it lacks."


def test_no_difference_but_rounding_is_none() -> None:
    """It is shown as +0.000, and not as worse."""
    before = {"x": [0.1], "y": [0.2], "z": [0.3]}
    after = {"x": [0.2], "y": [0.3], "z": [0.1 - 1e-12]}
    found = report({"before": before, "after": after})
    [comparison] = compared(found)
    assert next(sections(found, [comparison])).rows[0][3:] == ("+0.000", "-0.200 to +0.100", "1.000", "3", "")
    same = report({"before": {"x": [0.3], "y": [0.2]}, "after": {"x": [0.3 - 1e-12], "y": [0.2]}})
    tables = list(sections(same, compared(same)))
    assert "-0.000" not in str([table.rows for table in tables])
    assert "-0.000" not in markdown_of(same, compared(same))
