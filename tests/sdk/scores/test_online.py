"""Scorers of an agent, which run in the background."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    Decision,
    Limits,
    ModelError,
    RunCancelled,
    RunTimeout,
    TelemetryOptions,
    ToolCall,
    tool,
)
from pellucid.scores import Sampled, answer_matches, judge, no_tool_errors, online, tool_called, wait_for_scores, within
from pellucid.semconv.scores import EVALUATION_DROPPED
from pellucid.telemetry.pipeline import settle
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.rows import EventRow
from pellucid_exporters.testing import capture
from support.local_store import eventually, storing
from support.processes import run_python

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid.events import ScoreRecorded
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

PATIENCE = 30.0


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 12 euros"


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def scores(telemetry: Captured) -> list[ScoreRecorded]:
    """Return the scores, once the runs that have ended are scored."""
    assert wait_for_scores(PATIENCE)
    return [event for event in telemetry.events if event.name == "score.recorded"]  # type: ignore[misc]


async def test_a_run_is_scored_when_it_has_ended() -> None:
    """A run is scored in its trace when it has ended, with its agent, version and model as labels."""
    scorers = [tool_called("price"), within(seconds=60, iterations=1), answer_matches("12 euros")]
    with capture() as telemetry:
        model = ScriptedModel(ToolCall("price", {"item": "lamp"}), "12 euros")
        agent = Agent("shop", model=model, tools=[price], version="3", scorers=scorers)
        result = await agent.run("How much?")
        found = scores(telemetry)
    assert [(score.score, score.value) for score in found] == [
        ("tool_called.price", 1), ("within_seconds", 1), ("within_iterations", 0), ("answer_matches", 1),
    ]  # fmt: skip
    assert {(score.trace_id, score.span_id, score.run_id) for score in found} == {
        (result.trace_id, result.span_id, result.run_id)
    }
    labels = {"gen_ai_agent_name": "shop", "gen_ai_agent_version": "3", "gen_ai_request_model": "scripted"}
    assert (
        telemetry.histogram("pellucid.evaluation.score", gen_ai_evaluation_name="answer_matches", **labels).value == 1
    )


@pytest.mark.parametrize("error", [ModelError("scripted", "overloaded"), None])
async def test_a_run_that_fails_is_scored(error: Exception | None) -> None:
    """A run that fails or times out is scored."""

    async def slow(_request: object) -> str:
        await anyio.sleep_forever()
        return ""

    def status(status: str, tools: Sequence[Any]) -> str:
        return f"{status} after {len(tools)}"

    with capture() as telemetry:
        steps = ToolCall("price", {"item": "lamp"}), error or slow
        limits = Limits(timeout=0.2 if error is None else None)
        agent = Agent(
            "shop", model=ScriptedModel(*steps), tools=[price], limits=limits, scorers=[status, answer_matches("x")]
        )
        with pytest.raises(RunTimeout if error is None else ModelError):
            await agent.run("How much?")
        by_label, by_value = scores(telemetry)
        assert (by_label.label, by_value.value) == ("failed after 1", 0)
        assert by_label.span_id == f"{telemetry.span('invoke_agent').context.span_id:016x}"


async def test_a_run_that_was_cancelled_is_not_scored() -> None:
    """A run that was cancelled is not scored."""
    token = CancelToken()

    def cancelling(_request: object) -> ToolCall:
        token.cancel()
        return ToolCall("price", {"item": "lamp"})

    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel(cancelling), tools=[price], scorers=[no_tool_errors])
        with pytest.raises(RunCancelled):
            await agent.run("go", signal=token)
        assert scores(telemetry) == []


async def test_a_paused_run_is_scored_when_it_ends() -> None:
    """A paused run is scored once, when it ends."""
    with capture() as telemetry:
        model = ScriptedModel(ToolCall("refund", {"order": 7}), "done")
        agent = Agent("shop", model=model, tools=[refund], scorers=[tool_called("refund"), within(seconds=5)])
        paused = await agent.run("Refund order 7.")
        assert scores(telemetry) == []
        assert paused.checkpoint is not None
        decision = Decision(approval_id=paused.approvals[0].approval_id, approved=True)
        result = await agent.resume(paused.checkpoint, decisions=[decision])
        called, took = scores(telemetry)
    assert (called.value, called.run_id) == (1, result.run_id)
    assert (took.value, took.error_type) == (None, "unknown_seconds")


async def test_a_scorer_never_fails_or_delays_a_run() -> None:
    """A scorer that hangs, raises or exits does not hold or fail the run, and its score has the error."""
    go_on = threading.Event()

    def hanging(output: str) -> bool:
        return go_on.wait(PATIENCE)

    def raising(output: str) -> bool:
        raise LookupError("no price")

    def leaving(output: str) -> bool:
        raise SystemExit(3)

    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel("done", "done"), scorers=[hanging, raising, leaving])
        result = await agent.run("go")
        assert result.output == "done"
        assert not wait_for_scores(0)
        go_on.set()
        found = {score.score: (score.value, score.error_type) for score in scores(telemetry)}
        assert found == {"hanging": (1, None), "raising": (None, "LookupError"), "leaving": (None, "SystemExit")}
        await agent.run("go")
        assert len(scores(telemetry)) == 6


async def test_runs_beyond_the_bound_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs beyond the bound are not scored, and are counted with the reason."""
    monkeypatch.setattr(online, "MOST_WAITING", 2)
    go_on = threading.Event()

    def waiting(output: str) -> bool:
        return go_on.wait(PATIENCE)

    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel(*["done"] * 5), scorers=[waiting])
        for _ in range(5):
            await agent.run("go")
        go_on.set()
        assert len(scores(telemetry)) == 2
        labels = {"gen_ai_agent_name": "shop", "pellucid_evaluation_reason": "full"}
        assert telemetry.value(EVALUATION_DROPPED, **labels) == 3


async def test_a_scorer_may_run_the_agent_that_it_scores() -> None:
    """A run that a scorer makes with the agent is not scored."""
    agent: Agent[object, str] | None = None

    async def again(output: str) -> str:
        assert agent is not None
        return (await agent.run("again")).output

    def sync(output: str) -> str:
        assert agent is not None
        return agent.run_sync("again").output

    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel(*["done"] * 3), scorers=[again, sync])
        await agent.run("go")
        assert [score.label for score in scores(telemetry)] == ["done", "done"]


async def test_the_judge_of_a_share_runs_in_the_background() -> None:
    """A judge of a sample of the runs has a trace of its own."""
    verdict = '{"reason": "kind", "score": 1}'
    polite = judge("Polite.", model=ScriptedModel(verdict), name="polite")
    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel("done", "done"), scorers=[Sampled(1, polite)])
        result = await agent.run("go")
        [score] = scores(telemetry)
    assert (score.trace_id, score.value, score.by) == (result.trace_id, 1, "judge.polite")
    traces = {span.context.trace_id for span in telemetry.find("invoke_agent")}
    assert len(traces) == 2


async def test_an_override_may_score_otherwise() -> None:
    """An override may replace or remove the scorers."""
    with capture() as telemetry:
        agent = Agent("shop", model=ScriptedModel("a", "b", "c"), scorers=[no_tool_errors])
        with agent.override(scorers=[]):
            await agent.run("go")
        assert scores(telemetry) == []
        with agent.override(scorers=[answer_matches("b")]):
            await agent.run("go")
        assert [score.score for score in scores(telemetry)] == ["answer_matches"]
        await agent.run("go")
        assert [score.score for score in scores(telemetry)] == ["answer_matches", "no_tool_errors"]


@pytest.mark.parametrize(
    ("scorers", "words"),
    [
        (no_tool_errors, "is not a sequence; give a list of scorers"),
        ([3], r"scorers\[0\]=3 is not a function"),
        ([lambda outptu: True], "nothing is known as 'outptu'. Did you mean 'output'"),
    ],
)
def test_an_agent_checks_its_scorers(scorers: Any, words: str) -> None:
    """Wrong scorers are refused when the agent is made."""
    with pytest.raises(ConfigError, match=words):
        Agent("shop", model=ScriptedModel(), scorers=scorers)


async def test_scores_are_recorded_as_they_are_ready() -> None:
    """A scorer that hangs delays neither the other scorers of its run nor those of other agents."""
    go_on = threading.Event()

    def hanging(output: str) -> bool:
        return go_on.wait(PATIENCE)

    with capture() as telemetry:
        slow = Agent("slow", model=ScriptedModel(*["done"] * 40), scorers=[hanging, no_tool_errors])
        for _ in range(40):
            await slow.run("go")
        await Agent("quick", model=ScriptedModel("done"), scorers=[no_tool_errors]).run("go")

        def recorded() -> list[str]:
            return [event.agent for event in telemetry.events if event.name == "score.recorded"]

        eventually(lambda: recorded().count("quick") == 1 and recorded().count("slow") == online.AT_ONCE)
        go_on.set()
        assert len(scores(telemetry)) == 81


async def test_the_end_of_telemetry_waits_for_scores_a_bounded_time(tmp_path: Path) -> None:
    """The end of telemetry waits for scores for a bounded time, and later ones are not recorded."""
    go_on, started = threading.Event(), threading.Event()

    def late(output: str) -> bool:
        started.set()
        return go_on.wait(PATIENCE)

    def names(path: Path) -> list[str]:
        [row] = StoreReader(path).runs()
        found: list[EventRow] = StoreReader(path).events(row.run_id)
        return [str(event.payload["score"]) for event in found if event.name == "score.recorded"]

    with storing(tmp_path / "a.db") as telemetry:
        await Agent("shop", model=ScriptedModel("done"), telemetry=telemetry, scorers=[no_tool_errors]).run("go")
    assert names(tmp_path / "a.db") == ["no_tool_errors"]
    with storing(tmp_path / "b.db") as telemetry:
        await Agent("shop", model=ScriptedModel("done"), telemetry=telemetry, scorers=[late]).run("go")
        assert started.wait(PATIENCE)
        telemetry.shutdown(timeout=1)
    go_on.set()
    assert wait_for_scores(PATIENCE)
    assert names(tmp_path / "b.db") == []


async def test_a_drop_at_the_end_is_counted() -> None:
    """A score that is dropped at the end of telemetry is counted."""
    go_on, started = threading.Event(), threading.Event()

    def late(output: str) -> bool:
        started.set()
        return go_on.wait(PATIENCE)

    with capture() as telemetry:
        await Agent("shop", model=ScriptedModel("done"), scorers=[late]).run("go")
        assert started.wait(PATIENCE)
        assert not settle(telemetry, 0, is_last=True)
        labels = {"gen_ai_agent_name": "shop", "pellucid_evaluation_reason": "shutdown"}
        assert telemetry.value(EVALUATION_DROPPED, **labels) == 1
        go_on.set()
        assert scores(telemetry) == []


async def test_the_listeners_of_an_agent_hear_of_its_scores() -> None:
    """Sync and async listeners of an agent hear of its scores."""
    heard: list[str] = []
    both = threading.Event()

    def hear(kind: str) -> None:
        heard.append(kind)
        if len(heard) == 2:
            both.set()

    with capture():
        agent = Agent("shop", model=ScriptedModel("done"), scorers=[no_tool_errors])
        agent.on("score.recorded", lambda event: hear("sync"))

        @agent.on("score.recorded")
        async def listen(event: ScoreRecorded) -> None:
            await anyio.lowlevel.checkpoint()
            hear("async")

        await agent.run("go")
        assert wait_for_scores(PATIENCE)
        assert both.wait(PATIENCE)
    assert sorted(heard) == ["async", "sync"]


def test_sync_callers_are_scored_too() -> None:
    """Runs of `run_sync` are scored."""
    with capture() as telemetry:
        given = TelemetryOptions()
        agent = Agent("shop", model=ScriptedModel("done"), telemetry=given, scorers=[no_tool_errors])
        result = agent.run_sync("go")
        assert [score.run_id for score in scores(telemetry)] == [result.run_id]


@pytest.mark.parametrize("ends", ["", "import os; os.fork() or agent.run_sync('in the child')"])
def test_the_end_of_a_process_waits_for_scores(tmp_path: Path, ends: str) -> None:
    """The end of a process, also of a forked one, waits for its scores."""
    script = f"""
        import sys
        from pellucid import Agent
        from pellucid.scores import no_secret, wait_for_scores
        from pellucid.testing import ScriptedModel
        from pellucid_exporters import configure

        configure("shop", local=sys.argv[1])
        agent = Agent("shop", model=ScriptedModel("done", "done"), scorers=[no_secret])
        agent.run_sync("go")
        {ends}
    """
    run_python(script, tmp_path / "t.db")
    reader = StoreReader(tmp_path / "t.db")
    rows = eventually(lambda: [row for row in reader.runs() if row.end] if len(reader.runs()) == 1 + bool(ends) else [])

    def scores_of_runs() -> list[int]:
        return [[event.name for event in reader.events(row.run_id)].count("score.recorded") for row in rows]

    eventually(lambda: scores_of_runs() == [1] * len(rows))
