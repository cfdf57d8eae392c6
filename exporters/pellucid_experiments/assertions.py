"""Scores as assertions of tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pellucid.concurrency.sync import run_in_portal
from pellucid.run.outcomes import RunResult
from pellucid.scores import Case, Score, Scorer, scores_of
from pellucid.scores.evidence import Evidence, evidence_of
from pellucid.scores.scoring import SCORER_TIMEOUT
from pellucid.text import excerpt
from pellucid_experiments.checks import check_scorers
from pellucid_experiments.statistics import reaches
from pellucid_experiments.trials import failure_of

_SHOWN: Final = 2_000
"""Characters of a question, an answer or an explanation in the message of a failure."""


async def assert_scores(
    result: RunResult[Any],
    case: Case,
    scorers: Sequence[Scorer],
    *,
    within: float = SCORER_TIMEOUT,
    **least: float,
) -> Sequence[Score]:
    """Score an answer, and fail the test if a score is too low; return the scores.

    ```python
    @pytest.mark.cases("tests/refunds.jsonl")
    async def test_refunds(case: Case) -> None:
        result = await agent.run(case.input)
        await assert_scores(result, case, [correct], correct=1)
    ```

    Args:
        result: The answer.
        case: The case.
        scorers: Functions, as for `scores_of`.
        within: Seconds that each scorer has.
        **least: Lowest values by the names of scores; without any, each score with a value must be at least 1.

    Raises:
        AssertionError: a score is lower, a scorer failed, or a named score is not there. It says which, and why, with
            the question and the answer.
        ConfigError: a scorer is none.
    """
    __tracebackhide__ = True  # a failure is of the test
    check_scorers(scorers, "assert_scores()")
    evidence = evidence_of(result, case=case)
    scores = await scores_of(scorers, evidence, within=within)
    problems = _problems(scores, least)
    if problems:
        raise AssertionError(_message(evidence, case, problems, scores))
    return scores


def assert_scores_sync(
    result: RunResult[Any],
    case: Case,
    scorers: Sequence[Scorer],
    *,
    within: float = SCORER_TIMEOUT,
    **least: float,
) -> Sequence[Score]:
    """Call `assert_scores` from a sync test."""
    __tracebackhide__ = True
    return run_in_portal(lambda: assert_scores(result, case, scorers, within=within, **least))


def _problems(scores: Sequence[Score], least: dict[str, float]) -> list[str]:
    problems = [
        f"{score.name} could not be judged: {excerpt(failure_of(score), _SHOWN)}"
        for score in scores
        if score.error_type is not None
    ]
    given = {score.name for score in scores}
    problems += [f"no scorer gave {name!r}; they gave {', '.join(given) or 'nothing'}" for name in least.keys() - given]
    for score in scores:
        lowest = least.get(score.name) if least else 1.0
        if lowest is None or score.error_type is not None:
            continue
        if score.value is None and score.name in least:
            problems.append(f"{score.name} has the label {score.label!r} and no value{_because(score)}")
        elif score.value is not None and not reaches(score.value, lowest):
            problems.append(f"{score.name} is {score.value:g}, below {lowest:g}{_because(score)}")
    return problems


def _because(score: Score) -> str:
    return f": {excerpt(score.explanation, _SHOWN)}" if score.explanation else ""


def _message(evidence: Evidence, case: Case, problems: Sequence[str], scores: Sequence[Score]) -> str:
    lines = [f"case {case.id!r}: {'; '.join(problems)}"]
    lines.append(f"  question: {excerpt(evidence.input, _SHOWN)}")
    lines.append(f"  answer:   {excerpt(evidence.output, _SHOWN)}")
    if case.expected is not None:
        lines.append(f"  expected: {excerpt(case.expected, _SHOWN)}")
    others = [f"{score.name}={score.value if score.value is not None else score.label}" for score in scores]
    lines.append(f"  scores:   {', '.join(others) or 'none'}")
    return "\n".join(lines)
