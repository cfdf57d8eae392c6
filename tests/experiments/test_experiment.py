"""Experiments: cases are asked again, scored, and counted whatever happens to them."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Budget, ConfigError, Decision, ModelError, ToolCall, semconv, tool
from pellucid.events import ScoreRecorded
from pellucid.scores import Case, Score, judge
from pellucid.semconv.experiments import EXPERIMENT_CANDIDATE, EXPERIMENT_CASE, EXPERIMENT_NAME, EXPERIMENT_REPEAT
from pellucid.testing import FunctionModel
from pellucid_experiments import ExperimentError, case_of_run, compared, experiment, load_report, markdown_of
from pellucid_experiments.recorded_cases import runs_scored
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.scores import ScoreCondition
from support import experiments
from support.experiments import asks_wrongly, correct, dollars, guesses, looks_up, recorded, shop, used
from support.local_store import storing
from support.openmetrics import scrape
from support.small_disks import needs_root, small_disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid.models import ModelRequest
    from pellucid.scores.judging import Judge
    from pellucid_experiments import Report
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("telemetry")]


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    """Three recorded runs, each about an order, as cases; the real tool has not been called since."""
    return recorded(tmp_path / "store.db")


@pytest.fixture
def store(cases: Sequence[Case], tmp_path: Path) -> StoreReader:
    """The store with these runs."""
    return StoreReader(tmp_path / "store.db")


def statuses(report: Report) -> dict[str, list[str]]:
    """Return the statuses of the trials by case."""
    found: dict[str, list[str]] = {}
    for trial in report.trials:
        found.setdefault(trial.case, []).append(trial.status)
    return found


async def test_a_replay_has_the_recorded_hubs_and_tools(cases: Sequence[Case], store: StoreReader) -> None:
    """A replay has a live model, and recorded results of hubs and tools, which are not called."""
    report = await experiment(cases, shop(looks_up), scorers=[correct], replay=store, repeat=2)
    assert statuses(report) == {case.id: ["judged", "judged"] for case in cases}
    [summary] = report.summaries
    assert summary.interval is not None
    assert (summary.interval.mean, summary.interval.cases, summary.runs, summary.not_judged) == (1.0, 3, 6, 0)
    assert experiments.CALLED == []


async def test_what_the_recording_does_not_have_is_no_pass(cases: Sequence[Case], store: StoreReader) -> None:
    """A call with other arguments makes the case `not_replayable`: it is shown, and counts as 0 in gates."""
    report = await experiment(cases, shop(asks_wrongly), scorers=[correct], replay=store)
    assert sorted(statuses(report).values()) == [["judged"], ["not_replayable"], ["not_replayable"]]
    [summary] = report.summaries
    assert summary.interval is not None
    assert (summary.interval.mean, summary.not_judged) == (1.0, 2)
    assert report.floor("shop", "correct") == pytest.approx(1 / 3)
    trial = report.not_judged[0]
    assert trial.problem.startswith("the recording has no answer at execute_tool price, iteration 1: arguments differ")
    assert (trial.tokens, trial.cost) == (5, 0.05)
    assert experiments.CALLED == []


async def test_a_decision_of_a_person_is_not_given_again(tmp_path: Path) -> None:
    """A case with a decision of a person is `not_replayable`, and nothing is called: nobody approved the new run."""
    called: list[int] = []

    @tool(needs_approval=True)
    def refund(order: int) -> str:
        """Pay an order back."""
        called.append(order)
        return "paid"

    def refunds(request: ModelRequest) -> Any:
        return "Refunded." if request.messages[-1].role == "tool" else ToolCall("refund", {"order": 7})

    agent = Agent("shop", model=FunctionModel(refunds), tools=[refund])
    with storing(tmp_path / "store.db") as telemetry, agent.override(telemetry=telemetry):
        paused = await agent.run("Please refund order 7.")
        assert paused.checkpoint is not None
        decisions = [Decision(paused.approvals[0].approval_id, approved=True)]
        resumed = await agent.resume(paused.checkpoint, decisions=decisions)
    reader = StoreReader(tmp_path / "store.db")
    case = case_of_run(reader, resumed.run_id, expect_answer=True)
    assert (case.input, case.expected) == ("Please refund order 7.", "Refunded.")
    report = await experiment([case], agent, scorers=[correct], replay=reader)
    [trial] = report.trials
    assert trial.status == "not_replayable"
    assert trial.problem.startswith("the recorded run waited for a person or a result")
    assert called == [7]


async def test_live_calls_hubs_and_tools(cases: Sequence[Case]) -> None:
    """An experiment without a recording calls hubs and tools, also for a case without a recorded run."""
    by_hand = Case(id="by-hand", input="What was the price of order 9?", expected="3 euros")
    report = await experiment([*cases, by_hand], shop(looks_up), scorers=[correct])
    assert {trial.status for trial in report.trials} == {"judged"}
    assert sorted(experiments.CALLED) == [7, 8, 9, 9]


async def test_a_part_can_be_live(cases: Sequence[Case], store: StoreReader) -> None:
    """A part can be live: the tool is called although hubs answer from the recording."""
    report = await experiment(cases, shop(looks_up), scorers=[correct], replay=store, live=["tool:price"])
    assert {trial.status for trial in report.trials} == {"judged"}
    assert sorted(experiments.CALLED) == [7, 8, 9]


async def test_runs_of_an_experiment_are_known_in_the_store(
    cases: Sequence[Case], store: StoreReader, tmp_path: Path
) -> None:
    """The store knows runs of an experiment by conversation and attributes, with scores; no metric counts them."""
    with storing(tmp_path / "new.db") as telemetry:
        report = await experiment(
            cases[:1], shop(looks_up), scorers=[correct], replay=store, name="refunds-2", telemetry=telemetry
        )
        families = scrape(telemetry.prometheus_url)
    assert [name for name in families if name.startswith(("gen_ai", "pellucid_evaluation", "pellucid_cost"))] == []
    reader = StoreReader(tmp_path / "new.db")
    [row] = reader.runs()
    [trial] = report.trials
    assert (row.run_id, row.trace_id) == (trial.run_id, trial.trace_id)
    assert (row.conversation, row.replay_of) == ("experiment/refunds-2", cases[0].source)
    root = next(span for span in reader.spans(row.run_id) if span.phase == semconv.RUN)
    marks = {EXPERIMENT_NAME: "refunds-2", EXPERIMENT_CANDIDATE: "shop", EXPERIMENT_REPEAT: 1}
    assert root.attributes.items() >= (marks | {EXPERIMENT_CASE: cases[0].id}).items()
    [event] = [event for event in reader.events(row.run_id) if event.name == ScoreRecorded.name]
    assert (event.payload["score"], event.payload["value"], event.span_id) == ("correct", 1.0, root.span_id)


async def test_no_cases_are_made_of_runs_of_experiments(cases: Sequence[Case], tmp_path: Path) -> None:
    """Runs of experiments become no cases, neither live runs nor replays, although they have scores."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        options: dict[str, Any] = {"scorers": [correct], "telemetry": telemetry}
        await experiment(cases, shop(looks_up), **options)
        await experiment(cases, shop(looks_up), replay=StoreReader(path), **options)
    reader = StoreReader(path)
    assert len(reader.runs(score=ScoreCondition.of("correct=1"))) == 6
    assert list(runs_scored(reader, ScoreCondition.of("correct=1"), 0)) == []


async def test_a_candidate_is_an_agent_with_a_model(cases: Sequence[Case], store: StoreReader) -> None:
    """Candidates are agents and models, which have the names that they are given."""
    before, after = shop(looks_up), shop(guesses, name="bad")
    report = await experiment(cases, {"before": before, "after": after}, scorers=[correct], replay=store)
    assert report.candidates == ("before", "after")
    [comparison] = compared(report)
    assert (comparison.candidate, comparison.against) == ("after", "before")
    assert comparison.difference is not None
    assert comparison.difference.interval.mean == pytest.approx(-2 / 3)
    assert [change.difference for change in comparison.changes] == [-1.0, -1.0, 0.0]
    assert not comparison.is_regression  # of three cases, none can be told from chance
    models = [agent._setup.model for agent in (before, after)]
    of_models = await experiment(cases, before, models=models, scorers=[correct], replay=store)
    assert of_models.candidates == ("good", "bad")
    assert [summary.runs for summary in of_models.summaries] == [3, 3]


async def test_a_scorer_that_fails_never_counts_as_a_pass(cases: Sequence[Case], store: StoreReader) -> None:
    """A scorer that fails is shown, and all scores that it might have given count as not judged."""

    def picky(output: str) -> dict[str, float]:
        if "20" in output:
            raise ValueError("no idea")
        return {"polite": 1, "short": 0.5}

    report = await experiment(cases, shop(looks_up), scorers=[picky], replay=store)
    found = {summary.score: summary for summary in report.summaries}
    assert set(found) == {"polite", "short", "picky"}
    assert (found["polite"].runs, found["polite"].not_judged) == (2, 1)
    assert report.floor("shop", "polite") == pytest.approx(2 / 3)
    assert report.floor("shop", "short") == pytest.approx(1 / 3)
    [trial] = report.not_judged
    assert trial.problems == ["picky: ValueError: no idea"]


async def test_a_score_that_does_not_apply_is_left_out(cases: Sequence[Case], store: StoreReader) -> None:
    """A scorer that returns None for a case does not count there; one that only gives labels has no mean."""

    def cheap(output: str) -> bool | None:
        return "3 euros" in output if "12" not in output else None

    def mood(output: str) -> str:
        return "calm"

    report = await experiment(cases, shop(looks_up), scorers=[cheap, mood], replay=store)
    found = {summary.score: summary for summary in report.summaries}
    assert found["cheap"].interval is not None
    assert (found["cheap"].interval.mean, found["cheap"].interval.cases) == (0.5, 2)
    assert found["mood"].interval is None
    assert found["mood"].labels == {"calm": 3}
    assert report.not_judged == []


async def test_a_run_that_fails_in_any_way_ends_no_other(cases: Sequence[Case], store: StoreReader) -> None:
    """A run whose instructions raise is a failure of its case, and ends no other."""

    def instructions(ctx: Any) -> str:
        raise LookupError("no such customer")

    agent = shop(looks_up, instructions=instructions)
    for recording in (None, store):
        report = await experiment(cases, agent, scorers=[correct], replay=recording)
        assert [trial.status for trial in report.trials] == ["failed"] * 3
        assert all("no such customer" in trial.problem for trial in report.trials)


@needs_root
async def test_a_full_disk_ends_an_experiment(cases: Sequence[Case], tmp_path: Path) -> None:
    """A full disk ends an experiment with one error that names the journal, whose trials count once there is room."""
    with small_disk(tmp_path, "16k") as disk:
        journal = disk / "journal.jsonl"
        options: dict[str, Any] = {"scorers": [correct], "journal": journal, "repeat": 30}
        with pytest.raises(ExperimentError, match=r"the journal cannot be written \(No space left"):
            await experiment(cases, shop(guesses), **options)
        await anyio.run_process(["mount", "-o", "remount,size=10m", str(disk)])
        asked: list[Any] = []
        report = await experiment(cases, shop(guesses), resume=True, on_trial=asked.append, **options)
    assert {trial.status for trial in report.trials} == {"judged"}
    assert 0 < len(asked) < 90


@pytest.mark.parametrize(("kind", "attempts"), [("rate_limited", 3), ("unavailable", 3), ("invalid_request", 1)])
async def test_failures_that_pass_are_retried(kind: Any, attempts: int, cases: Sequence[Case]) -> None:
    """A failure is retried a number of times that depends on its kind; the case is then `failed`, and not scored."""

    def fails(request: ModelRequest) -> Any:
        raise ModelError("good", "no", error_kind=kind, retry_after=0.0)

    report = await experiment(cases[:1], shop(fails), scorers=[correct])
    [trial] = report.trials
    assert (trial.status, trial.attempts, trial.scores) == ("failed", attempts, ())
    assert trial.run_id
    assert report.floor("shop", "correct") == 0.0


async def test_a_retry_that_succeeds_is_counted(cases: Sequence[Case], store: StoreReader) -> None:
    """A retry that succeeds is counted, with the usage of all attempts."""
    asked = []

    def flaky(request: ModelRequest) -> Any:
        asked.append(request)
        if len(asked) == 2:
            raise ModelError("good", "busy", error_kind="rate_limited", retry_after=0.0)
        return looks_up(request)

    report = await experiment(cases[:1], shop(flaky), scorers=[correct], replay=store)
    [trial] = report.trials
    assert (trial.status, trial.attempts, trial.tokens) == ("judged", 2, 15)
    assert "1 further attempt after failures that passed, or did not." in markdown_of(report)


async def test_so_many_runs_at_the_same_time(cases: Sequence[Case]) -> None:
    """An experiment runs `jobs` cases at the same time, and not more."""
    running, most, both = 0, 0, anyio.Event()

    async def waits(request: ModelRequest) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        await anyio.wait_all_tasks_blocked()
        running -= 1
        return used("12 euros")

    report = await experiment(cases, shop(waits), scorers=[correct], repeat=2, jobs=2)
    assert (most, len(report.trials)) == (2, 6)


async def test_the_budget_ends_an_experiment(cases: Sequence[Case], tmp_path: Path) -> None:
    """A spent budget ends an experiment and shows the cases that were not run; it can be resumed with more money."""
    journal = tmp_path / "journal.jsonl"
    agent = shop(lambda request: used("It cost 12 euros.", tokens=400), settings={"max_tokens": 5})
    options: dict[str, Any] = {"scorers": [correct], "jobs": 1, "journal": journal}
    report = await experiment(cases, agent, max_cost=4, **options)
    found = [trial.status for trial in report.trials]
    assert found == ["judged", "budget", "not_run"]
    assert report.cost == 4
    assert report.floor("shop", "correct") == pytest.approx(1 / 3)
    again = await experiment(cases, agent, max_cost=50, resume=True, **options)
    assert [trial.status for trial in again.trials] == ["judged"] * 3
    assert again.trials[0] == report.trials[0]
    assert sorted(trial.status for trial in load_report(journal).trials) == ["judged"] * 3


def judging(tokens: int = 400, **options: Any) -> Judge:
    """Return a judge, each of whose votes costs a cent for a token."""
    model = FunctionModel(lambda request: used('{"reason": "so", "score": 1}', tokens=tokens), name="judge")
    return judge("Right.", model=model, name="polite", **{"prices": dollars, "settings": {"max_tokens": 5}, **options})


async def test_the_budget_counts_what_judges_spend(cases: Sequence[Case], tmp_path: Path) -> None:
    """A case whose judge finds the budget spent is not judged, and asked again with more money."""
    journal = tmp_path / "journal.jsonl"
    agent = shop(lambda request: used("It cost 12 euros.", tokens=400), settings={"max_tokens": 5})
    options: dict[str, Any] = {"scorers": [correct, judging()], "jobs": 1, "journal": journal}
    report = await experiment(cases, agent, max_cost=14, **options)
    assert [trial.status for trial in report.trials] == ["judged", "budget", "not_run"]
    assert report.trials[1].problem == "the budget of the experiment is spent: for a judge"
    assert (report.trials[0].cost, report.trials[0].scoring_cost) == (4, 4)
    assert report.trials[1].cost == 8  # refused beside others, and then alone
    assert "$16.0000, of which $4.0000 by judges" in markdown_of(report)
    again = await experiment(cases, agent, max_cost=90, resume=True, **options)
    assert [trial.status for trial in again.trials] == ["judged"] * 3
    assert [score.value for trial in again.trials for score in trial.scores if score.name == "polite"] == [1, 1, 1]
    assert again.scoring_cost == 12


async def test_a_judge_keeps_a_budget_of_its_own(cases: Sequence[Case]) -> None:
    """A judge that exceeds a budget of its own gives scores with errors, and the experiment goes on."""
    agent = shop(guesses, settings={"max_tokens": 5})
    own = judging(budget=Budget(f"own {uuid.uuid4()}", cost=0.5))
    report = await experiment(cases[:1], agent, max_cost=50, scorers=[own])
    [trial] = report.trials
    assert (trial.status, trial.scores[0].error_type) == ("judged", "budget")


async def test_reservations_of_runs_in_flight_are_not_spent(cases: Sequence[Case]) -> None:
    """A run that is refused because calls in flight reserve the budget is asked after them.

    What it had used until then counts.
    """
    calls: list[ModelRequest] = []

    async def waits(request: ModelRequest) -> Any:
        calls.append(request)
        await anyio.wait_all_tasks_blocked()  # until another run is refused, and waits
        return used("It cost 12 euros.")

    report = await experiment(cases, shop(waits), scorers=[correct], max_cost=70)
    assert [trial.status for trial in report.trials] == ["judged"] * 3
    assert sum(trial.attempts for trial in report.trials) > 3
    assert report.cost == pytest.approx(0.05 * len(calls))


async def test_a_price_must_be_known_for_a_budget(cases: Sequence[Case]) -> None:
    """A budget without a known price of each model is refused."""
    with pytest.raises(ConfigError, match="the price of model 'good' is not known"):
        await experiment(cases, shop(guesses, prices=lambda *_: None), scorers=[correct], max_cost=1)
    with pytest.raises(ConfigError, match="the price of model 'judge' is not known"):
        await experiment(cases, shop(guesses), scorers=[judging(prices=lambda *_: None)], max_cost=1)


async def test_a_journal_has_each_trial_once(cases: Sequence[Case], store: StoreReader, tmp_path: Path) -> None:
    """A journal has each trial once: a line that a kill has cut is written again, and others are not asked again."""
    journal = tmp_path / "sets" / "journal.jsonl"
    options: dict[str, Any] = {"scorers": [correct], "replay": store, "journal": journal}
    first = await experiment(cases, shop(looks_up), **options)
    assert journal.stat().st_mode & 0o777 == 0o600
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    asked: list[str] = []
    again = await experiment(
        cases, shop(looks_up), resume=True, on_trial=lambda trial: asked.append(trial.case), **options
    )
    assert asked == [json.loads(lines[-1])["case"]]
    assert {trial.key for trial in again.trials} == {trial.key for trial in first.trials}
    assert load_report(journal).summaries == again.summaries
    with pytest.raises(ExperimentError, match="this experiment exists; resume it"):
        await experiment(cases, shop(looks_up), **options)
    with pytest.raises(ExperimentError, match="was started with other cases"):
        await experiment(cases[:2], shop(looks_up), resume=True, **options)
    with pytest.raises(ExperimentError, match="there is no experiment to resume"):
        await experiment(cases, shop(looks_up), resume=True, **{**options, "journal": tmp_path / "none.jsonl"})


async def test_a_cancelled_experiment_can_be_resumed(cases: Sequence[Case], tmp_path: Path) -> None:
    """A cancelled experiment can be resumed from its journal, but not while it runs."""
    journal, asked = tmp_path / "journal.jsonl", []

    async def waits(request: ModelRequest) -> Any:
        asked.append(request)
        if len(asked) == 2:
            await anyio.sleep_forever()
        return used("12 euros")

    options: dict[str, Any] = {"scorers": [correct], "jobs": 1, "journal": journal}
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: experiment(cases, shop(waits), **options))
        while len(asked) < 2:
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(ExperimentError, match="another process runs this experiment"):
            await experiment(cases, shop(waits), resume=True, **options)
        group.cancel_scope.cancel()
    report = await experiment(cases, shop(waits), resume=True, **options)
    assert [trial.status for trial in report.trials] == ["judged"] * 3
    assert len(asked) == 4


async def test_what_cannot_be_asked_is_refused_at_once(cases: Sequence[Case], store: StoreReader) -> None:
    """Wrong cases, candidates, scorers and options are refused before anything is run."""
    agent, other = shop(guesses), shop(guesses)
    by_hand = Case(id="by-hand", input="Why?")
    lost = Case(id="lost", input="Why?", source="0" * 32)
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        ([by_hand], agent, {"replay": store}, "1 of 1 cases were made from no run.*'by-hand'"),
        ([lost], agent, {"replay": store}, "the recording has no run '0000"),
        (cases, agent, {"scorers": []}, "give at least one, such as"),
        (cases, agent, {"scorers": [lambda outptu: 1]}, "nothing is known as 'outptu'"),
        ([], agent, {}, "there is no case"),
        (cases, agent, {"scorers": [correct, correct]}, "two scorers are named 'correct': <function correct.* and <"),
        (cases, agent, {"repeat": 0}, "repeat=0"),
        (cases, agent, {"jobs": 0}, "jobs=0"),
        (cases, agent, {"name": "../a"}, "is no name of an experiment"),
        (cases, {}, {}, "give an agent"),
        (cases, {"a": agent, "b": "c"}, {}, "give an agent"),
        (cases, other, {"models": ["nothing:x"]}, "nothing"),
        (cases, other, {"models": [agent._setup.model, agent._setup.model]}, "two candidates are named 'good'"),
    ]
    for given, agents, options, said in wrong:
        with pytest.raises(ConfigError, match=said):
            await experiment(given, agents, **{"scorers": [correct], **options})
    assert experiments.CALLED == []


async def test_a_score_that_a_run_has_twice_is_not_judged(cases: Sequence[Case], telemetry: Captured) -> None:
    """A score that a run has twice, by two scorers or one, is not judged; other scores count."""

    def both(output: str) -> list[Any]:
        return [Score(name="length", value=len(output)), 0.2, 0.4]

    def other(output: str) -> Score:
        return Score(name="length", value=1)

    report = await experiment(cases[:1], shop(guesses), scorers=[both, other, correct])
    [trial] = report.trials
    assert [(score.name, score.value, score.error_type) for score in trial.scores] == [
        ("length", None, "duplicate_score"),
        ("both", None, "duplicate_score"),
        ("correct", 1.0, None),
    ]
    assert trial.problems[1] == "both: duplicate_score: given 2 times for one run; give each score a name of its own"
    assert [report.floor("shop", name) for name in ("length", "both", "correct")] == [0, 0, 1]
    assert report.not_judged == [trial]


async def test_answers_and_explanations_are_redacted(
    cases: Sequence[Case], tmp_path: Path, telemetry: Captured
) -> None:
    """Secrets in answers and explanations are redacted in the journal."""
    secret = "sk-ant-api03-" + "a1B2c3D4" * 12

    def leaks(request: ModelRequest) -> Any:
        return used(f"The key is {secret}.")

    def explains(output: str) -> Score:
        return Score(name="safe", value=0, explanation=f"It says {output}")

    journal = tmp_path / "journal.jsonl"
    report = await experiment(cases[:1], shop(leaks), scorers=[explains], journal=journal)
    assert report.trials[0].answer == "The key is [redacted]."
    assert report.trials[0].scores[0].explanation == "It says The key is [redacted]."
    assert secret not in journal.read_text()
