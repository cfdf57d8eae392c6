"""`pellucid score`: recorded runs are scored once, by however many processes, and however these end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, ToolCall, tool
from pellucid.events import ScoreRecorded
from pellucid.scores import Score, Scored, no_tool_errors
from pellucid.scores.record import score
from pellucid.testing import ScriptedModel
from pellucid_commands.scoring import watching
from pellucid_commands.scoring.arrivals import Arrivals
from pellucid_commands.scoring.claims import Claims
from pellucid_commands.scoring.command import load_scorers
from pellucid_commands.scoring.recording import Recorder
from pellucid_exporters import StoreReader
from pellucid_exporters.local.score_writer import ScoreWriter
from pellucid_exporters.stored.evidence import evidence_of_run
from pellucid_exporters.testing import capture
from support.local_store import eventually, storing
from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAM = """
import sys
from argparse import ArgumentParser
from pellucid_commands.scoring.command import COMMAND
parser = ArgumentParser()
COMMAND.add_arguments(parser)
sys.exit(COMMAND.run(parser.parse_args()))
"""

SCORERS = """
import os, pathlib, threading
from pellucid.scores import Score, judge, tool_called
from pellucid.scores import Score, Scored, no_tool_errors
from pellucid.scores.record import score
from pellucid.testing import ScriptedModel

def asked(input, scored):
    return Score(name="asked", value=1, explanation=f"{input} in {scored.trace_id}", by="test")

def none(input):
    return None

def failing(input):
    raise LookupError(input)

def stuck(input, scored):
    place = pathlib.Path(os.environ["PLACE"])
    if place.exists():
        (place / f"{os.getpid()}").touch()
        threading.Event().wait()
    return asked(input, scored)

scorers = [asked, none, tool_called("price")]
polite = judge("Polite.", model=ScriptedModel('{"reason": "kind", "score": 0.5}'), name="polite")
"""


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 12 euros"


async def _fill(path: Path, number: int) -> None:
    with storing(path) as telemetry:
        for index in range(number):
            model = ScriptedModel(ToolCall("price", {"item": "lamp"}), "12 euros")
            await Agent("shop", model=model, tools=[price], telemetry=telemetry).run(f"question {index}")


def fill(path: Path, number: int) -> StoreReader:
    """Give a store with runs, and the module of the scorers beside it."""
    (path.parent / "scorers_of_test.py").write_text(SCORERS)
    anyio.run(_fill, path, number)
    return StoreReader(path)


def start(path: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    paths = os.pathsep.join([str(path.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments, "--store", str(path)],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    """Return the output of a process that has ended."""
    output, errors = process.communicate(timeout=10 * PATIENCE)
    assert process.returncode == code, output + errors
    return output


def watch(path: Path, scorer: str = "scorers", **variables: str) -> subprocess.Popen[str]:
    """Start a process that scores what is there."""
    options = ("--scorer", f"scorers_of_test:{scorer}", "--since", "2020-01-01", "--once")
    return start(path, "watch", *options, **variables)


def scores(reader: StoreReader, run_id: str) -> list[tuple[Any, ...]]:
    """Return the scores of a run, each with its span."""
    found = [event for event in reader.events(run_id) if event.name == "score.recorded"]
    return sorted((event.payload["score"], event.payload.get("explanation"), event.span_id) for event in found)


def check(reader: StoreReader, number: int, *, tools: bool = True) -> None:
    """Check that each run of a store has each score once, in its own trace."""
    rows = [row for row in reader.runs(limit=10 * number) if row.agent == "shop"]
    assert len(rows) == number
    for row in rows:
        [root] = [span.span_id for span in reader.spans(row.run_id) if span.phase == "run"]
        expected: list[tuple[Any, ...]] = [("asked", f"{row.question} in {row.trace_id}", root)]
        assert scores(reader, row.run_id) == [*expected, *([("tool_called.price", None, root)] if tools else [])]


def test_processes_share_the_runs_of_a_store(tmp_path: Path) -> None:
    """Each score arrives once, on its run; another watch finds nothing to do."""
    number = int(os.environ.get("SCORED_RUNS", "120"))
    reader = fill(tmp_path / "t.db", number)
    outputs = [finished(process) for process in [watch(tmp_path / "t.db") for _ in range(4)]]
    check(reader, number)
    assert sum(output.count("asked  1") for output in outputs) == number
    assert finished(watch(tmp_path / "t.db")) == ""
    for claims in tmp_path.glob("t.db-scoring*"):  # as if a process had ended before it could say that it is done
        claims.unlink()
    assert finished(watch(tmp_path / "t.db")) == ""
    check(reader, number)
    assert not any(path.stat().st_mode & 0o077 for path in tmp_path.glob("t.db*"))


def test_a_process_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Others score its runs at once: it is known to be dead."""
    reader = fill(tmp_path / "t.db", 12)
    place = tmp_path / "place"
    place.mkdir()
    processes = [watch(tmp_path / "t.db", "stuck", PLACE=str(place)) for _ in range(2)]
    try:
        eventually(lambda: len(list(place.iterdir())) == 2)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            finished(process, -signal.SIGKILL)
    finally:
        for process in processes:
            process.kill()
    for mark in place.iterdir():
        mark.unlink()
    place.rmdir()
    finished(watch(tmp_path / "t.db", "stuck", PLACE=str(place)))
    check(reader, 12, tools=False)


def event(run_id: str, by: str) -> ScoreRecorded:
    """Return the event of a score."""
    with capture() as telemetry:
        score(Scored(run_id=run_id), "asked", value=1, by=by)
        [found] = telemetry.events
    assert isinstance(found, ScoreRecorded)
    return found


def test_a_process_that_is_too_late_writes_nothing(tmp_path: Path) -> None:
    """Another has taken its run over when the lease ended; the store has the scores of the first that came."""
    reader = fill(tmp_path / "t.db", 1)
    [row] = reader.runs()
    slow, fast = (Claims(tmp_path / "t.db", "scorers", lease) for lease in (0, 60))
    assert slow.take({row.run_id: row.start}, 8) == [row.run_id]
    assert fast.take({row.run_id: row.start}, 8) == [row.run_id]
    assert slow.take({row.run_id: row.start}, 8) == []
    one, two = (event(row.run_id, by) for by in ("test", "ann"))
    writers = [ScoreWriter(tmp_path / "t.db") for _ in range(2)]
    assert writers[0].write([one], is_once=True) == [True]
    assert writers[1].write([one, two], is_once=True) == [False, True]
    assert writers[1].write([one], is_once=False) == [True]
    assert writers[0].write([event("gone", "test")], is_once=True) == [False]
    for writer in writers:
        writer.close()
    fast.finish(row.run_id)
    assert (fast.take({row.run_id: row.start}, 8), fast.done()) == ([], {row.run_id})
    slow.close()
    fast.close()


def test_a_store_that_is_busy_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: the run is scored when it can be written."""
    monkeypatch.setattr(watching, "PAUSE", 0)
    reader = fill(tmp_path / "t.db", 2)
    failures = [sqlite3.OperationalError("database is locked"), OSError("disk full")]

    class Busy(Recorder):
        def record(self, scored: Scored, scores: Sequence[Score]) -> Sequence[Score]:
            if failures:
                raise failures.pop()
            return super().record(scored, scores)

    with capture() as telemetry:
        recorder, claims = Busy(tmp_path / "t.db", telemetry, is_once=True), Claims(tmp_path / "t.db", "x", 60)
        arrivals = Arrivals(tmp_path / "t.db", "x")
        claims.since(0)
        told: list[str] = []
        watch = watching.Watch(
            reader, [no_tool_errors], claims, arrivals, recorder, None, lambda row, scores: told.append(row.run_id)
        )
        anyio.run(partial(watch.run, is_once=True))
        for each in (recorder, claims, arrivals):
            each.close()
    assert sorted(told) == sorted(row.run_id for row in reader.runs())
    for row in reader.runs():
        assert [name for name, *_ in scores(reader, row.run_id)] == ["no_tool_errors"]


def test_scores_of_processes_are_sent_by_otlp_once(tmp_path: Path) -> None:
    """As log records in the traces of the runs, and measurements."""
    reader = fill(tmp_path / "t.db", 12)
    with otlp_receiver("http/protobuf") as received:
        options = ("watch", "--scorer", "scorers_of_test:asked", "--since", "2020-01-01", "--once")
        processes = [start(tmp_path / "t.db", *options, "--otlp", received.endpoint) for _ in range(2)]
        for process in processes:
            finished(process)
    assert received.faults == []
    found = sorted((record.trace_id.hex(), record.span_id.hex()) for record in received.logs)
    roots = [span for row in reader.runs() for span in reader.spans(row.run_id) if span.phase == "run"]
    assert found == sorted((span.trace_id, span.span_id) for span in roots)
    points = [
        point
        for metric in received.metrics
        if metric.name == "pellucid.evaluation.score"
        for point in metric.exponential_histogram.data_points
    ]
    last = {point.start_time_unix_nano: point.count for point in points}  # of each process
    assert sum(last.values()) == 12


def test_scores_are_sent_as_they_are_written(tmp_path: Path) -> None:
    """As a log record in the trace of the run, and a measurement with its labels; what is not written is not sent."""
    reader = fill(tmp_path / "t.db", 1)
    [row] = reader.runs()
    scored = evidence_of_run(reader, row).scored
    given = [Score(name="asked", value=0.5, by="test"), Score(name="other", label="x", by="test")]
    with capture() as telemetry:
        for is_once, expected in ((True, given), (True, []), (False, given)):
            recorder = Recorder(tmp_path / "t.db", telemetry, is_once=is_once)
            assert recorder.record(scored, given) == expected
            recorder.close()
        lines = [line for line in telemetry.logs if line["event"] == "gen_ai.evaluation.result"]
        labels = {"gen_ai_agent_name": "shop", "gen_ai_request_model": "scripted", "gen_ai_evaluation_name": "asked"}
        assert telemetry.histogram("pellucid.evaluation.score", **labels).count == 2
        assert telemetry.events == []
    assert [line["gen_ai.evaluation.name"] for line in lines] == ["asked", "other"] * 2
    assert {(line["trace_id"], line["span_id"]) for line in lines} == {(row.trace_id, scored.span_id)}
    assert [name for name, *_ in scores(reader, row.run_id)] == ["asked", "asked", "other", "other"]


def test_runs_that_have_not_ended_or_began_before_the_watch_are_not_scored(tmp_path: Path) -> None:
    """Nor those of judges, and nested ones."""
    reader = fill(tmp_path / "t.db", 2)
    options = ("watch", "--scorer", "scorers_of_test:polite", "--once")
    first = start(tmp_path / "t.db", *options, "--agent", "outer")
    _, introduction = first.communicate(timeout=10 * PATIENCE)
    assert f"watching {tmp_path / 't.db'} with polite: runs of outer that start from 20" in introduction
    assert finished(start(tmp_path / "t.db", *options)) == ""
    anyio.run(_more, tmp_path / "t.db")
    output = finished(start(tmp_path / "t.db", *options, "--json"))
    judged = [json.loads(line) for line in output.splitlines()]
    agents = {row.run_id: row.agent for row in reader.runs()}
    assert [(agents[each["run_id"]], each["name"], each.get("value")) for each in judged] == [("outer", "polite", 0.5)]
    assert sorted(agents.values()) == ["inner", "judge.polite", "outer", "shop", "shop"]
    assert finished(start(tmp_path / "t.db", *options)) == ""


async def _more(path: Path) -> None:
    with storing(path) as telemetry:
        inner = Agent("inner", model=ScriptedModel("hi")).as_tool(description="Helps.")
        model = ScriptedModel(ToolCall("inner", {"input": "x"}), "done")
        await Agent("outer", model=model, tools=[inner], telemetry=telemetry).run("go")


def test_runs_are_scored_by_their_ids(tmp_path: Path) -> None:
    """As often as one asks; an error of a scorer is in the exit code."""
    reader = fill(tmp_path / "t.db", 2)
    newest, oldest = reader.runs()
    output = finished(start(tmp_path / "t.db", newest.run_id[:12], "--scorer", "scorers_of_test:scorers"))
    assert output.splitlines()[1].split()[:4] == [newest.run_id[:12], "asked", "1", "question"]
    finished(start(tmp_path / "t.db", newest.run_id, "--scorer", "scorers_of_test:asked"))
    assert [name for name, *_ in scores(reader, newest.run_id)] == ["asked", "asked", "tool_called.price"]
    failed = finished(start(tmp_path / "t.db", oldest.run_id, "--scorer", "scorers_of_test:failing", "--json"), code=1)
    [document] = json.loads(failed)["scores"]
    assert (document["run_id"], document["error_type"]) == (oldest.run_id, "LookupError")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("scorers", "is not a place"),
        ("pellucid.scores:nothing", "there is no scorer"),
        ("pellucid.version:__version__", "there is no scorer"),
    ],
)
def test_a_place_without_scorers_is_refused(place: str, words: str) -> None:
    """The error names it."""
    with pytest.raises(ConfigError, match=words):
        load_scorers([place])
