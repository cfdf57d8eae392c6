"""The marker `cases` and scores as assertions, in sessions of pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from pellucid import Agent, ConfigError
from pellucid.scores import Case, Score
from pellucid.testing import ScriptedModel
from pellucid_experiments import assert_scores, assert_scores_sync, save_cases
from support.pages import BLOCK, ROOT
from support.processes import PATIENCE, run_pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid.scores import Scorer

pytestmark = pytest.mark.anyio

CASES = [
    Case(id="two", input="1 + 1", expected="2", tags=("sums",)),
    Case(id="four", input="2 + 2", expected="4", tags=("sums", "hard")),
    Case(id="capital", input="Of Norway?", expected="Oslo"),
]
TEST = '''
    """Tests of an agent, with each case of a set."""

    import pytest

    from pellucid import Agent
    from pellucid.testing import FunctionModel
    from pellucid_experiments import assert_scores, assert_scores_sync
    from pellucid_exporters.testing import check_telemetry

    agent = Agent("sums", model=FunctionModel(lambda request: "It is 2."))
    pytestmark = pytest.mark.anyio


    def correct(output, expected):
        return expected in output


    @pytest.mark.cases("cases/sums.jsonl", tags=["sums"])
    async def test_sums(case, telemetry):
        result = await agent.run(case.input)
        check_telemetry(telemetry)
        assert telemetry.span("invoke_agent")
        await assert_scores(result, case, [correct], correct=1)


    @pytest.mark.cases("cases/sums.jsonl", tags="hard")
    @pytest.mark.parametrize("lowest", [0, 1])
    def test_sync(case, lowest):
        assert_scores_sync(agent.run_sync(case.input), case, [correct], correct=lowest)


    class TestOfClass:
        @pytest.mark.cases("beside.jsonl")
        def test_beside_the_test(self, case):
            assert case.id == "beside"
'''
WRONG = """
    import pytest

    @pytest.mark.cases("nowhere.jsonl")
    def test_missing(case):
        pass

    @pytest.mark.cases("cases/sums.jsonl", tags=["none"])
    def test_tag(case):
        pass

    @pytest.mark.cases("cases/empty.jsonl")
    def test_empty(case):
        pass

    @pytest.mark.cases("cases/sums.jsonl")
    def test_no_argument():
        pass

    @pytest.mark.cases()
    def test_no_path(case):
        pass
"""


def session(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder."""
    return run_pytest(folder, "-rA", *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with tests and two sets."""
    save_cases(tmp_path / "cases" / "sums.jsonl", CASES)
    save_cases(tmp_path / "cases" / "empty.jsonl", [])
    save_cases(tmp_path / "tests" / "beside.jsonl", [Case(id="beside", input="Why?")])
    (tmp_path / "tests" / "test_sums.py").write_text(dedent(TEST))
    return tmp_path


def test_a_test_runs_with_each_case(folder: Path) -> None:
    """A test runs with each case under its id, beside fixtures and parameters; a failure shows the case."""
    done = session(folder, "tests/test_sums.py", "-k", "not trio")
    out = done.stdout
    for passed in ("test_sums[asyncio-two]", "test_sync[four-0]", "TestOfClass::test_beside_the_test[beside]"):
        assert f"PASSED tests/test_sums.py::{passed}" in out, out + done.stderr
    for failed in ("test_sums[asyncio-four]", "test_sync[four-1]"):
        assert f"FAILED tests/test_sums.py::{failed}" in out
    assert "2 failed, 3 passed" in out
    assert "case 'four': correct is 0, below 1" in out
    for line in ("question: 2 + 2", "answer:   It is 2.", "expected: 4", "scores:   correct=0.0"):
        assert line in out


def test_the_example_of_the_page_works_on_its_set(tmp_path: Path) -> None:
    """The example of "In pytest" passes on the set of "From nothing to a CI gate"."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    source, test = (BLOCK.search(page, page.index(start)) for start in ("```python", "## In pytest"))
    assert source is not None
    assert test is not None
    (tmp_path / "shop.py").write_text(source["code"])
    (tmp_path / "test_shop.py").write_text(test["code"])
    add = ("cases", "add", "--score", "thumb>0.5", "--to", "cases/prices.jsonl", "--expect-answer")
    for arguments in (("shop.py",), ("-c", "import sys; from pellucid.cli import main; sys.exit(main())", *add)):
        subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True, timeout=PATIENCE, capture_output=True)
    done = session(tmp_path, "test_shop.py")
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_what_is_wrong_with_a_marker_is_said(folder: Path) -> None:
    """A wrong marker is an error when tests are collected, with the remedy."""
    for name, said in {
        "test_missing": "write it with: pellucid cases add RUN --to nowhere.jsonl",
        "test_tag": "no case has the tag none; its tags are hard, sums",
        "test_empty": "empty.jsonl: the set has no case",
        "test_no_argument": "has an argument `case`",
        "test_no_path": "write the marker as",
    }.items():
        path = folder / "tests" / f"{name}_only.py"
        source = dedent(WRONG)
        own = next(part for part in source.split("\n\n") if f"def {name}" in part)
        path.write_text(f"import pytest\n\n{own}\n")
        done = session(folder, str(path))
        assert said in done.stdout, done.stdout + done.stderr
        assert "1 error" in done.stdout


def correct(output: str, expected: str) -> bool:
    """Return whether the output contains what is expected."""
    return expected in output


def fails(output: str) -> float:
    """Fail."""
    raise ValueError("no idea")


def mood(output: str) -> Score:
    """Give a label without a value."""
    return Score(name="mood", label="calm", explanation="no capitals")


async def test_scores_as_assertions() -> None:
    """Each value must be 1, or reach the limit that is given by name; a scorer that fails is a failure of the test."""
    result = await Agent("sums", model=ScriptedModel("It is 2.")).run("1 + 1")
    scores = await assert_scores(result, CASES[0], [correct, mood])
    assert [score.name for score in scores] == ["correct", "mood"]
    wrong: list[tuple[Case, Sequence[Scorer], dict[str, float], str]] = [
        (CASES[1], [correct], {}, "correct is 0, below 1"),
        (CASES[0], [correct, fails], {}, "fails could not be judged: ValueError: no idea"),
        (CASES[0], [correct, fails], {"correct": 1.0}, "fails could not be judged"),
        (CASES[0], [correct], {"right": 1.0}, "no scorer gave 'right'; they gave correct"),
        (CASES[0], [mood], {"mood": 1.0}, "mood has the label 'calm' and no value: no capitals"),
    ]
    for case, scorers, least, said in wrong:
        with pytest.raises(AssertionError) as raised:
            await assert_scores(result, case, scorers, **least)
        assert said in str(raised.value)
    with pytest.raises(ConfigError, match="give at least one"):
        await assert_scores(result, CASES[0], [])


def test_scores_as_assertions_of_sync_tests() -> None:
    """Scores are assertions in sync tests, too."""
    result = Agent("sums", model=ScriptedModel("It is 2.")).run_sync("1 + 1")
    assert_scores_sync(result, CASES[1], [correct], correct=0)
    with pytest.raises(AssertionError, match="correct is 0, below 1"):
        assert_scores_sync(result, CASES[1], [correct])
