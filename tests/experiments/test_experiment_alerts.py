"""Runs of experiments, and replays: no alert and no mean counts them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import ModelError
from pellucid.scores import Case, Scored, score
from pellucid_dashboards.rules import Thresholds
from pellucid_experiments import experiment
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import evaluate
from pellucid_exporters.stored.many import ManyReader
from pellucid_replay import Tape, replay
from support.experiments import correct, guesses, looks_up, recorded, shop
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.models import ModelRequest
    from pellucid_exporters.stored.reader import Reader

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("telemetry")]

LOW = Thresholds(
    score_min=2,
    tokens_per_hour=1,
    cost_per_hour=0.001,
    model_slow=1e-9,
    model_slow_min=1,
    score_objectives=("correct=0.9",),
)
"""Thresholds that a few runs exceed."""


def alerts(reader: Reader) -> set[str]:
    """Return the names of what fires now."""
    return {alert.name for alert in evaluate(reader, time.time_ns(), LOW)}


def means(reader: Reader) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the number and the sum of all scores by their name and agent."""
    groups = reader.score_groups("agent", 0, 2**62)
    return {(group.score, group.name): (group.number, group.total) for group in groups}


def fails(request: ModelRequest) -> Any:
    """Refuse."""
    raise ModelError("bad", "overloaded", error_kind="unavailable")


@pytest.mark.parametrize("is_replay", [False, True])
async def test_an_experiment_with_a_bad_candidate_is_no_alert(is_replay: bool, tmp_path: Path) -> None:
    """An experiment with a bad candidate causes no alert by its scores, costs, failures or slow models."""
    path = tmp_path / "new.db"
    cases = recorded(tmp_path / "store.db")
    failing = shop(fails, name="bad")
    with storing(path) as telemetry:
        candidates = {"guessing": shop(guesses), "failing": failing}
        given: dict[str, Any] = {"replay": StoreReader(tmp_path / "store.db")} if is_replay else {}
        report = await experiment(cases, candidates, scorers=[correct], repeat=2, telemetry=telemetry, **given)
    assert {trial.status for trial in report.trials} == {"judged", "failed"}
    reader = StoreReader(path)
    assert len(reader.runs()) == 6 + 3 * 6  # what fails is tried again
    assert sum(len(run.scores) for run in reader.runs()) == 6
    assert alerts(reader) == set()
    assert means(reader) == {}


async def test_scores_of_ordinary_runs_still_count(tmp_path: Path) -> None:
    """Scores of ordinary runs make the mean and alert alone, beside an experiment in the same store."""
    path = tmp_path / "store.db"
    cases = recorded(path)
    with storing(path) as telemetry:
        agent = shop(guesses, telemetry=telemetry)
        for _ in range(2):
            score(await agent.run("What was the price of order 8?"), "correct", value=0, telemetry=telemetry)
        await experiment(cases, shop(looks_up), scorers=[correct], repeat=3, telemetry=telemetry)
    reader = StoreReader(path)
    assert "ScoreDropped" in alerts(reader)
    assert means(reader) == {("correct", "shop"): (2, 0.0)}


async def test_scores_of_replays_do_not_count(tmp_path: Path) -> None:
    """Scores of replays count in no alert and in no mean."""
    path = tmp_path / "store.db"
    recorded(path)
    with storing(path) as telemetry:
        for run in StoreReader(path).runs():
            replayed = await replay(shop(looks_up, telemetry=telemetry), Tape.load(path, run.run_id))
            assert replayed.result is not None
            score(replayed.result, "correct", value=0, telemetry=telemetry)
    reader = StoreReader(path)
    assert len([run for run in reader.runs() if run.replay_of and run.scores]) == 3
    assert "ScoreDropped" not in alerts(reader)
    assert means(reader) == {}


async def test_a_store_with_scores_alone_knows_from_others_what_they_are_of(tmp_path: Path) -> None:
    """A store with scores alone knows scores of experiments, whose runs may be in another store, from others."""
    runs, scores = tmp_path / "runs.db", tmp_path / "scores.db"
    cases = [Case(id="seven", input="What was the price of order 7?", expected="12 euros")]
    with storing(runs) as telemetry:
        report = await experiment(cases, shop(guesses), scorers=[correct], repeat=3, telemetry=telemetry)
        ordinary = await shop(guesses, telemetry=telemetry).run("What was the price of order 7?")
    with storing(scores) as telemetry:
        for trial in report.trials:
            score(Scored(run_id=trial.run_id, agent="shop"), "thumb", value=0, telemetry=telemetry)
        score(Scored(run_id=ordinary.run_id, agent="shop"), "thumb", value=1, telemetry=telemetry)
        score(Scored(run_id="elsewhere", agent="shop"), "thumb", value=1, telemetry=telemetry)
    reader = ManyReader([StoreReader(scores), StoreReader(runs)])
    assert means(reader) == {("thumb", "shop"): (2, 2.0)}
    by_step = reader.score_groups(None, 0, 2**62, step=2**61, within=("agent", "shop"))
    assert [(group.number, group.total) for group in by_step] == [(2, 2.0)]
    strict = Thresholds(score_min=2, score_objectives=("thumb=0.9",))
    assert "ScoreDropped" not in {alert.name for alert in evaluate(reader, time.time_ns(), strict)}
    alone = {alert.name for alert in evaluate(StoreReader(scores), time.time_ns(), strict)}
    assert "ScoreDropped" in alone  # nobody knows these runs
