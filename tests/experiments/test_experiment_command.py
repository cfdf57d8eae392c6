"""`pellucid experiment` in processes of its own: exit codes, outputs, kills and interrupts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from pellucid_commands.experiments.outputs import Progress
from pellucid_experiments import Report, Trial, load_report, save_cases
from pellucid_exporters import StoreReader
from support.experiments import recorded
from support.processes import PATIENCE, python

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS = '''
    """Candidates for the agent of a shop."""

    import os
    import time
    from pathlib import Path

    from support import experiments

    before = experiments.shop(experiments.looks_up)
    after = experiments.shop(experiments.guesses)
    wrong = experiments.shop(experiments.asks_wrongly)
    unpriced = experiments.shop(experiments.guesses, prices=lambda *_: None)
    correct = experiments.correct


    def broken(output):
        raise ValueError("no idea")


    def waits(request):
        """Answer the first two cases; the third waits until there is a file `go`."""
        with Path("asked").open("a") as log:
            log.write(f"{experiments.order_of(request)}\\n")
        while experiments.order_of(request) == 9 and not Path("go").exists():
            time.sleep(0.01)
        return experiments.used("It cost 12 euros.")


    slow = experiments.shop(waits)
    several = [before, correct]
    pair = [before, after]
    twice = [correct, experiments.correct]


    def right(output, expected):
        return correct(output, expected)
'''
TESTS = str(Path(__file__).parent.parent)
MAIN = f"import sys; sys.path.append({TESTS!r}); from pellucid.cli import main; sys.exit(main())"


class Shop:
    """A folder with agents, a store with three recorded runs, and a set of cases of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases = recorded(folder / ".pellucid" / "telemetry.db")
        save_cases(folder / "set.jsonl", self.cases)
        (folder / "shop_candidates.py").write_text(dedent(AGENTS).lstrip())

    def start(
        self, *arguments: str, agent: str = "before", scorer: str = "correct", interpreter: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start `pellucid experiment` in the folder."""
        place = agent if ":" in agent else f"shop_candidates:{agent}"
        given = ("experiment", "set.jsonl", "--agent", place)
        program = ("-c", MAIN, *given, "--scorers", f"shop_candidates:{scorer}", *arguments)
        return subprocess.Popen(
            [*interpreter, *program] if interpreter else python(*program),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, agent: str = "before", scorer: str = "correct") -> tuple[int, str, str]:
        """Run `pellucid experiment` in the folder; return its exit code, output and errors."""
        with self.start(*arguments, agent=agent, scorer=scorer) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    @property
    def journals(self) -> Path:
        """Folder of the journals."""
        return self.folder / ".pellucid" / "experiments"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop of its own for each test."""
    return Shop(tmp_path)


def test_from_nothing_to_a_gate(shop: Shop) -> None:
    """A gate passes for a baseline and fails for a worse candidate; the comparison is written to files for CI."""
    code, out, err = shop.run("--name", "main", "--fail-under", "correct=0.9", "--out", "main.json")
    assert code == 0, err
    assert "main: 3 cases, 1 candidate, 1 repeat: 3 of 3 runs judged, replayed, $0.3000" in out
    assert "ok      correct of shop: 1.000, gate 0.9" in out
    assert "estimated cost: about $0.3000 for 3 runs, from recorded tokens" in err
    files = ("--out", "r.json", "--markdown", "r.md", "--junit", "r.xml")
    code, out, err = shop.run(
        *("--baseline", "main.json", "--fail-under", "correct=0.9", "--name", "pr-7", "--repeat", "2", *files),
        agent="after",
    )
    assert code == 1, err
    assert "FAILED  correct of shop: 0.333, gate 0.9" in out
    assert out.index("Comparisons") < out.index("Scores") < out.index("Cases")
    cases = out[out.index("Cases") :].splitlines()
    assert cases[2].split()[:5] == [shop.cases[1].id, "correct", "0.000", "-1.000", "What"]
    assert "With 3 pairs, p is at least 0.250: too few to find a regression by." in out
    assert "main shop" in out
    suites = ET.parse(shop.folder / "r.xml").getroot()
    [suite] = suites
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "0")
    assert (shop.folder / "r.md").read_text().startswith("# Experiment pr-7: 3 cases")
    for name in ("r.json", "r.md", "r.xml"):
        assert (shop.folder / name).stat().st_mode & 0o777 == 0o600
    assert load_report(shop.folder / "r.json").summaries == load_report(shop.journals / "pr-7.jsonl").summaries
    rows = [row for row in StoreReader(shop.folder / ".pellucid" / "telemetry.db").runs() if row.conversation]
    assert sorted(str(row.conversation) for row in rows) == ["experiment/main"] * 3 + ["experiment/pr-7"] * 6


def test_runs_of_a_set_can_be_replayed_where_the_store_is_not(shop: Shop) -> None:
    """`pellucid cases export` writes the runs of a set to a file, from which CI replays them without the store."""
    exported = subprocess.run(
        python("-c", MAIN, "cases", "export", "set.jsonl", "--output", "runs.jsonl"),
        cwd=shop.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert exported.stdout == "runs.jsonl: 3 runs\n"
    (shop.folder / ".pellucid" / "telemetry.db").unlink()
    code, out, err = shop.run("--replay", "runs.jsonl", "--fail-under", "correct=1", "--repeat", "2")
    assert code == 0, out + err


@pytest.mark.parametrize(
    ("agent", "scorer", "arguments", "code", "said"),
    [
        ("wrong", "correct", (), 3, "not_replayable"),
        ("wrong", "correct", ("--fail-under", "correct=0.3"), 3, "ok      correct of shop: 0.333, gate 0.3"),
        ("wrong", "correct", ("--fail-under", "correct=0.9"), 1, "FAILED  correct of shop: 0.333, gate 0.9"),
        ("before", "broken", (), 3, "broken: ValueError"),
        ("before", "broken", ("--fail-under", "correct=0.5"), 1, "FAILED  correct of shop: 0.000"),
        ("after", "correct", ("--fail-on-regression", "--agent", "shop_candidates:before"), 0, "ok      no regression"),
    ],
)
def test_exit_codes(shop: Shop, agent: str, scorer: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    """The command exits with 0 if gates hold, 1 if one fails, and 3 if not all cases could be judged."""
    given, out, err = shop.run(*arguments, agent=agent, scorer=scorer)
    assert said in out, err
    assert given == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--agent", "shop_candidates:nothing"), "the module 'shop_candidates' has no 'nothing'"),
        (("--scorers", "shop_candidates:nothing"), "there is nothing of that name"),
        (("--scorers", "shop_candidates:several"), "is not a function"),
        (("--baseline", "none"), "cannot be read"),
        (("--tag", "none"), "no case has the tag none"),
        (("--replay", "none.db"), "none.db"),
        (("--resume", "none"), "there is no experiment to resume"),
        (("--fail-under", "correct"), "is not a score and its lowest mean"),
        (("--fail-under", "right=1"), "no scorer gave 'right'; they gave correct"),
        (("--name", "../x"), "is no name of an experiment"),
        (("--models", "nothing:x"), "nothing"),
        (("--agent", "shop_candidates:unpriced", "--max-cost", "1"), "the price of model 'good' is not known"),
    ],
)
def test_what_cannot_work_is_a_usage_error(shop: Shop, arguments: tuple[str, ...], said: str) -> None:
    """Arguments that cannot work exit with 2, and the message names them."""
    code, _, err = shop.run(*arguments)
    assert said in err
    assert code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fail-on-regression",), "--fail-on-regression: there is nothing to compare with"),
        (("--baseline", "main.json"), "the baseline 'main' has no candidate 'shop'; it has before, after"),
        (("--agent", "third=shop_candidates:after", "--baseline", "main.json"), "has no candidate 'third'"),
        (("--agent", "=shop_candidates:after"), "'=shop_candidates:after' is no agent; write MODULE:NAME or"),
        (("--agent", "x=shop_candidates:pair"), "there are 2 agents, which cannot all be named 'x'"),
        (("--agent", "x=shop_candidates:after", "--agent", "x=shop_candidates:wrong"), "two agents of the name 'x'"),
        (("--scorers", "shop_candidates:twice"), "two scorers are named 'correct'"),
        (("--junit", "none/r.xml"), "--junit none/r.xml: there is no folder none; create it"),
        (("--out", "set.jsonl/r.json"), "--out set.jsonl/r.json: there is no folder set.jsonl"),
        (("--markdown", "none/r.md"), "--markdown none/r.md: there is no folder none"),
    ],
)
def test_what_cannot_end_well_is_said_before_anything_is_asked(
    shop: Shop, arguments: tuple[str, ...], said: str
) -> None:
    """An experiment that cannot end well exits with 2 before any run is made, and makes no folder."""
    plan: dict[str, Any] = {"name": "main", "cases": {}, "candidates": ["before", "after"], "scorers": ["correct"]}
    baseline = Report(name="main", plan={**plan, "repeat": 1, "mode": "live"}, trials=())
    (shop.folder / "main.json").write_text(json.dumps(baseline.to_dict()))
    code, _, err = shop.run(*arguments)
    assert said in err
    assert code == 2
    assert not list(shop.journals.glob("*"))
    assert not (shop.folder / "none").exists()


def test_a_candidate_has_the_name_that_it_is_given(shop: Shop) -> None:
    """A candidate can have the name of one of the baseline; a score that nobody gives any more is not compared."""
    two = ("--agent", "after=shop_candidates:after", "--name", "main", "--out", "main.json")
    code, out, err = shop.run(*two, agent="shop_candidates:before")
    assert code == 0, err
    assert load_report(shop.folder / "main.json").candidates == ("before", "after")
    regression = ("--baseline", "main.json", "--fail-on-regression")
    code, out, err = shop.run(*regression, agent="after=shop_candidates:before")
    assert code == 0, err
    assert "main after" in out
    code, out, err = shop.run(*regression, agent="after=shop_candidates:before", scorer="right")
    assert "NOT COMPARED  correct of after with that of main after: after has no value of it" in out, err
    assert code == 3
    names = [path.stem for path in shop.journals.iterdir() if path.stem != "main"]
    assert all(re.fullmatch(r"set-\d{8}-\d{6}-[0-9a-f]{6}", name) for name in names), names


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_progress_is_shown_in_a_terminal(shop: Shop) -> None:
    """Progress in a terminal is on standard error only, and standard output is the report without control codes."""
    outer, inner = os.openpty()
    given = ("experiment", "set.jsonl", "--agent", "shop_candidates:wrong", "--scorers", "shop_candidates:correct")
    with open(outer, "rb", buffering=0) as terminal:  # noqa: PTH123  (a descriptor)
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *given], cwd=shop.folder, stdout=subprocess.PIPE, stderr=inner, text=True
        )
        os.close(inner)
        said = b""
        with suppress(OSError):  # the process has ended
            while data := terminal.read(10_000):
                said += data
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    last = said.decode().rpartition("\r\x1b[K")[2].splitlines()[0]
    assert last.startswith("3 of 3 runs: ")
    assert "2 not replayable" in last
    assert "\x1b" not in out


def wait_for(shop: Shop, process: subprocess.Popen[str], lines: int) -> Path:
    """Wait until the journal has so many lines, and the third case is being asked."""
    deadline, journal, asked = time.monotonic() + PATIENCE, shop.journals / "e.jsonl", shop.folder / "asked"
    while not (journal.exists() and journal.read_text().count("\n") == lines and "9" in asked.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return journal


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_an_experiment_outlives_its_process(shop: Shop, stop: signal.Signals) -> None:
    """An experiment that was killed or interrupted goes on with `--resume`, and does not ask again what had ended."""
    with shop.start("--live", "--name", "e", "--jobs", "1", agent="slow", interpreter=[sys.executable]) as process:
        journal = wait_for(shop, process, 3)
        process.send_signal(stop)
        if stop == signal.SIGINT:
            (shop.folder / "go").touch()  # the sync model of this test does not notice a cancellation
        _, err = process.communicate(timeout=PATIENCE)
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert "--resume e" in err
    else:
        assert process.returncode == -signal.SIGKILL
    before = journal.read_text()
    (shop.folder / "go").touch()
    code, out, err = shop.run("--live", "--resume", "e", "--jobs", "1", agent="slow")
    assert code == 0, err
    assert "e: 3 cases, 1 candidate, 1 repeat: 3 of 3 runs judged, called live" in out
    assert (shop.folder / "asked").read_text().split() == ["7", "8", "9", "9"]
    assert journal.read_text().startswith(before)
    assert len({json.loads(line)["case"] for line in journal.read_text().splitlines()[1:]}) == 3
    code, _, err = shop.run("--live", "--name", "e", agent="slow")
    assert (code, "this experiment exists" in err) == (2, True)


def test_an_empty_set_is_named(shop: Shop) -> None:
    """An empty set is named, and is no success."""
    (shop.folder / "set.jsonl").write_text("\n")
    code, _, err = shop.run()
    assert (code, "set.jsonl: the set has no case" in err) == (2, True), err


def test_progress_of_a_job_is_a_few_lines(shop: Shop) -> None:
    """Progress without a terminal is a line with the number of runs at the beginning, and one at the end."""
    code, _, err = shop.run(agent="wrong")
    assert code == 3
    lines = [line for line in err.splitlines() if " of 3 runs" in line]
    assert lines[0] == "pellucid: 0 of 3 runs"
    assert lines[-1].startswith("pellucid: 3 of 3 runs: ")
    assert "2 not replayable" in lines[-1]
    assert "\x1b" not in err


def test_progress_is_no_flood(capsys: pytest.CaptureFixture[str]) -> None:
    """Progress is a line for each tenth of many runs, and one for each 30 seconds of slow ones."""
    times = [0.0]
    trial = Trial(case="x", candidate="a", repeat=1, status="judged")
    with Progress(1_000, clock=lambda: times[-1]) as progress:
        for _ in range(1_000):
            progress.advance(trial)
    said = capsys.readouterr().err.splitlines()
    assert said == ["pellucid: 0 of 1,000 runs"] + [
        f"pellucid: {count:,} of 1,000 runs: {count:,} judged" for count in range(100, 1_001, 100)
    ]
    with Progress(1_000, clock=lambda: times[-1]) as progress:
        for now in (10.0, 20.0, 31.0, 40.0, 62.0):
            times.append(now)
            progress.advance(trial)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["0", "3", "5"]
    with Progress(0):
        pass
    assert capsys.readouterr().err == ""
