"""Scorers: functions that take what they name, and faults that become scores without a value."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, ToolCall, tool
from pellucid.scores import Evidence, Sampled, Score, Scored, ToolUse, no_tool_errors, scores_of, tool_called
from pellucid.scores.evidence import evidence_of
from pellucid.scores.scoring import check_scorer
from pellucid.scores.threads import MOST_STUCK
from pellucid.testing import ScriptedModel
from support.processes import run_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.anyio

EVIDENCE = Evidence(scored=Scored(run_id="r"), output="12 euros", expected="12 euros")


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 12 euros"


def exact(output: str, expected: str) -> bool:
    """Return True if the answer is the expected one."""
    return output == expected


async def length(output: str) -> int:
    """Return the number of characters."""
    await anyio.lowlevel.checkpoint()
    return len(output)


def tone(output: str) -> str:
    """Return a label."""
    return "curt" if len(output) < 20 else "wordy"


def many(output: str) -> Mapping[str, object]:
    """Return several scores."""
    return {"short": len(output) < 20, "words": len(output.split())}


async def test_scorers_get_what_they_name_and_return_what_they_have() -> None:
    """A scorer returns a bool, a number, a label, a score or a mapping, and None is no score."""

    def judged(output: str) -> Score:
        return Score(name="kind", value=0.5, by="ann", explanation=output)

    found = await scores_of([exact, length, tone, many, judged, lambda: None], EVIDENCE)
    assert found == [
        Score(name="exact", value=1, label="pass", by="exact"),
        Score(name="length", value=8, by="length"),
        Score(name="tone", label="curt", by="tone"),
        Score(name="short", value=1, label="pass", by="short"),
        Score(name="words", value=2, by="words"),
        Score(name="kind", value=0.5, by="ann", explanation="12 euros"),
    ]


async def test_a_scorer_that_fails_gives_a_score_with_the_type_of_the_error() -> None:
    """A scorer that fails gives a score with the type of the error, and the others are not affected."""

    def raising() -> bool:
        raise LookupError("no price")

    async def hanging() -> bool:
        await anyio.sleep_forever()
        return True

    scorers: Sequence[object] = [raising, hanging, lambda: math.nan, lambda: -1, object, exact]
    found = await scores_of(scorers, EVIDENCE, within=0.2)  # type: ignore[arg-type]
    assert [score.error_type for score in found] == [
        "LookupError",
        "timeout",
        "ValueError",
        "ValueError",
        "TypeError",
        None,
    ]
    assert [score.value for score in found] == [None] * 5 + [1.0]
    assert found[0].explanation is not None
    assert "no price" in found[0].explanation


def test_a_scorer_that_needs_what_is_not_there_is_refused() -> None:
    """A scorer with an unknown parameter is refused with the scorer's name and a similar parameter."""

    def wrong(outptu: str) -> bool:
        return bool(outptu)

    with pytest.raises(ConfigError, match=r"'wrong'.*'outptu'.*output"):
        check_scorer(wrong)
    with pytest.raises(ConfigError, match="not a function"):
        check_scorer(3)
    with pytest.raises(ConfigError, match="'len': nothing is known as 'obj'"):
        check_scorer(len)
    check_scorer(exact)


async def test_the_evidence_of_a_result_has_question_answer_and_calls() -> None:
    """The evidence of a result has the input, the output and the tool calls with their results."""
    model = ScriptedModel(ToolCall("price", {"item": "lamp"}), "12 euros")
    result = await Agent("shop", model=model, tools=[price]).run("What does the lamp cost?")
    evidence = evidence_of(result)
    assert (evidence.input, evidence.output, evidence.iterations) == ("What does the lamp cost?", "12 euros", 2)
    assert evidence.tools == (ToolUse(name="price", arguments={"item": "lamp"}, result="lamp: 12 euros"),)
    assert evidence.scored.run_id == result.run_id


async def test_a_scorer_of_a_share_sees_what_is_missing_as_it_does_alone() -> None:
    """A sampled scorer gives the same score of missing evidence as the scorer alone."""
    uses = (ToolUse(name="price", arguments={}),)
    evidence = Evidence(scored=Scored(run_id="r"), tools=uses, missing=frozenset({"tools"}))
    for scorer in (tool_called("price"), no_tool_errors, lambda tools: not tools):
        assert await scores_of([Sampled(1, scorer)], evidence) == await scores_of([scorer], evidence)


async def test_a_scorer_whose_calls_never_return_is_not_called_for_ever() -> None:
    """A scorer whose calls do not return is not called again until they have."""
    go_on = threading.Event()

    def stuck(output: str) -> bool:
        return go_on.wait(30)

    for _ in range(MOST_STUCK):
        [score] = await scores_of([stuck], EVIDENCE, within=0.01)
        assert (score.error_type, score.explanation) == ("timeout", "it took longer than 0.01 s")
    refused, right = await scores_of([stuck, exact], EVIDENCE)
    assert (refused.error_type, right.value) == ("stuck", 1)
    go_on.set()
    with anyio.fail_after(30):
        while (await scores_of([stuck], EVIDENCE))[0].error_type is not None:
            await anyio.lowlevel.checkpoint()


def test_a_scorer_that_never_returns_does_not_keep_the_process() -> None:
    """A scorer that never returns does not keep the process from ending."""
    run_python("""
        import threading
        import anyio
        from pellucid.scores import Evidence, Scored, scores_of

        def stuck(output):
            threading.Event().wait()

        [score] = anyio.run(scores_of, [stuck], Evidence(scored=Scored(run_id="r")), 0.01)
        assert score.error_type == "timeout"
    """)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ({"value": 10**400}, "not a number"),
        ({"value": 1, "explanation": {"a": 1}}, "explanation={'a': 1} is not a text"),
        ({"value": 1, "by": 5}, "by=5 is not a text"),
    ],
)
def test_a_score_of_another_type_is_refused(score: dict[str, Any], words: str) -> None:
    """A score with a value of a wrong type is refused."""
    with pytest.raises(ConfigError, match=words):
        Score(name="right", **score)
