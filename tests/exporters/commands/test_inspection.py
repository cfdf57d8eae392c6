"""`pellucid runs`, `show`, `diff` and `top` on a real store."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent, DiscoveryProvider, ModelError, PellucidError, ToolCall, semconv, tool
from pellucid.cli import Command
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.inspection import diff, runs, show, top
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import Alert
from support.local_store import emit, eventually, storing
from support.processes import PATIENCE

MAIN = "import sys; from pellucid.cli import main; sys.exit(main())"
HOSTILE = "rain \x1b[31m\x07 \u202e"
DOCS = Path(__file__).parents[3] / "docs" / "terminal.md"


@tool
def weather(city: str) -> str:
    """Look up the weather."""
    return f"{HOSTILE} in {city}" + "!" * 200


@tool
def order(number: int) -> str:
    """Look up an order."""
    raise ValueError(f"order {number} does not exist")


@dataclass(frozen=True, slots=True)
class Stored:
    """A store, and the ids of its runs: one that completed, one that failed."""

    path: Path
    completed: str
    failed: str


async def fill(path: Path) -> Stored:
    """Run an agent twice: the second asks for another city, and its model fails."""
    with storing(path) as telemetry:
        for city, last in (("Bergen", "Take an umbrella."), ("Oslo", ModelError("vendor", "overloaded"))):
            model = ScriptedModel([ToolCall("weather", {"city": city}), ToolCall("order", {"number": 7})], last)
            hub = DiscoveryProvider(FakeHub([weather, order]), id="rube", objective=1e-9)
            agent = Agent(
                f"forecast-{city}", model=model, providers=[hub], instructions="Be brief.", telemetry=telemetry
            )
            with suppress(PellucidError):
                await agent.run("What is the weather?")
    failed, completed = StoreReader(path).runs()
    return Stored(path, completed.run_id, failed.run_id)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Give a store with two runs."""
    return anyio.run(fill, tmp_path_factory.mktemp("inspection") / "store.db")


def call(command: Command, path: Path, *arguments: str) -> int:
    """Run a command with arguments; return the exit code."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([*arguments, "--store", str(path)]))


def documented(name: str) -> set[str]:
    """Return the fields of a JSON object in the documentation."""
    [line] = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {name} | `")]
    return {word.strip("`") for word in line.split("|")[2].replace(",", " ").split()}


def test_runs_are_listed_and_filtered(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, in one line each; exit code 1 if none matches; as JSON with the documented fields."""
    assert call(runs.COMMAND, stored.path) == 0
    title, newest, oldest = capsys.readouterr().out.splitlines()
    assert title.split()[:4] == ["RUN", "STARTED", "AGENT", "STATUS"]
    assert newest.startswith(stored.failed[:12])
    assert "failed" in newest
    assert "overloaded" in newest
    assert "completed" in oldest
    for arguments in (["--outcome", "completed"], ["--agent", "forecast-Bergen"], ["--text", "umbrella"]):
        assert call(runs.COMMAND, stored.path, "--json", *arguments) == 0
        [row] = json.loads(capsys.readouterr().out)["runs"]
        assert row["run_id"] == stored.completed
    assert row.keys() == documented("run")
    assert call(runs.COMMAND, stored.path, "--hub", "rube", "--before", str(row["start"] + 1)) == 0
    assert stored.completed[:12] in capsys.readouterr().out
    assert call(runs.COMMAND, stored.path, "--min-cost", "1") == 1
    assert call(runs.COMMAND, stored.path, "--before", "2001-01-01T00:00") == 1
    assert "no run matches" in capsys.readouterr().out
    for unknown in (["--agent", "\udcff"], ["--tool", "\udcff"]):
        assert call(runs.COMMAND, stored.path, *unknown) == 1
    assert call(runs.COMMAND, stored.path, "--before", "9" * 30) == 0
    for wrong in (["--limit", "0"], ["--min-cost", "much"], ["--before", "noon"], ["--outcome", "foo"]):
        with pytest.raises(SystemExit) as caught:
            call(runs.COMMAND, stored.path, *wrong)
        assert caught.value.code == 2


def test_a_run_is_shown_errors_first(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason, what went wrong with its number, then the tree; content on request, in which nothing is obeyed."""
    assert call(show.COMMAND, stored.path, stored.failed[:12]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("error     ModelError: ") for line in lines)
    faults = [line for line in lines if line.startswith("!")]
    assert [line.split()[2:4] for line in faults] == [["execute_tool", "order"], ["chat", "scripted"]]
    tree = [line for line in lines if "─ " in line]
    assert len(tree) == 8
    assert call(show.COMMAND, stored.path, stored.failed, "--content") == 0
    text = capsys.readouterr().out
    assert "rain ␛[31m␇ ⟦U+202E⟧ in Oslo" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    with pytest.raises(PellucidError, match=r"no run 'other'.* pellucid runs"):
        call(show.COMMAND, stored.path, "other")
    with pytest.raises(PellucidError, match="the run has spans 0 to 8"):
        call(show.COMMAND, stored.path, stored.failed, "--span", "9")


def test_a_cancelled_span_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tree marks a boundary that was cancelled, which is not among the errors above it."""
    with storing(tmp_path / "store.db") as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        facts = {semconv.RUN_ID: "run", semconv.PHASE: semconv.DISCOVERY, semconv.OUTCOME: semconv.CANCELLED}
        tracer.start_span("discover_tools git", attributes=facts).end()
    assert call(show.COMMAND, tmp_path / "store.db", "run") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "discover_tools" in line]
    assert "CANCELLED" in line


def test_a_span_is_shown_with_its_content(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model call the whole request is rebuilt, and what is new in it marked."""
    assert call(show.COMMAND, stored.path, stored.failed, "--span", "8") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in ("Be brief.", "tools: weather, order", "user: What is the weather?"):
        assert line in lines
    assert '+ assistant: call weather {"city": "Oslo"}' in lines
    assert any(line.startswith("+ tool: result rain") for line in lines)
    assert "pellucid.phase: inference" in lines
    assert call(show.COMMAND, stored.path, stored.failed, "--span", "8", "--json") == 0
    span = json.loads(capsys.readouterr().out)["span"]
    assert span.keys() == documented("span") | {"content", "log"}
    assert [message["role"] for message in span["content"]["request"]["messages"]] == ["user", "assistant", "tool"]
    assert call(show.COMMAND, stored.path, stored.completed, "--json", "--content") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"]["run_id"] == stored.completed
    assert found["spans"][4]["content"]["output"].startswith("rain \x1b[31m")


def test_two_runs_are_compared(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    """The first boundary that differs comes first; exit code 1, and 0 for runs that are equal."""
    assert call(diff.COMMAND, stored.path, stored.completed, stored.failed) == 1
    text = capsys.readouterr().out
    first = text[text.index("First difference, of 3 in 8 boundaries:") :].splitlines()
    assert first[2].startswith("[1] chat scripted")
    assert "- city: Bergen" in text
    assert "+ city: Oslo" in text
    assert call(diff.COMMAND, stored.path, stored.completed, stored.failed, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("comparison")
    assert [pair["differences"][0]["what"] for pair in found["boundaries"]] == ["answer", "arguments", "prompt"]
    assert call(diff.COMMAND, stored.path, stored.failed, stored.failed) == 0
    assert "No difference in 8 boundaries." in capsys.readouterr().out


def test_top_names_the_command_that_says_what_to_do() -> None:
    """With the hub of the alert, as a shell takes it."""
    alert = Alert(
        name="ToolHubSlow",
        severity="page",
        summary="It is slow.",
        description="",
        runbook="",
        provider_id="order hub",
        run_id=None,
        span_id=None,
        value=1.0,
        since=0,
    )
    lines = list(top.screen(top.State(0, [alert], [], [], [], []), 60))
    assert lines[1] == "PAGE    It is slow.  pellucid runbook ToolHubSlow --hub 'order hub'"


@pytest.mark.anyio
async def test_top_shows_what_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hubs with their objectives, what is in flight, runs, and alerts, which are the exit code."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        reader = StoreReader(path)
        hub = DiscoveryProvider(FakeHub(latency=1e6), id="hangs", objective=1e-9)
        agent = Agent("waits", model=ScriptedModel("x"), providers=[hub], telemetry=telemetry)
        fails = Agent("fails", model=ScriptedModel(*[ModelError("m", "down")] * 6), telemetry=telemetry)
        for _ in range(6):
            with suppress(PellucidError):
                await fails.run("x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "x")
            await anyio.to_thread.run_sync(lambda: eventually(lambda: len(reader.in_flight()) == 2))
            await anyio.to_thread.run_sync(telemetry.flush, 10)
            assert call(top.COMMAND, path, "--once") == 1
            text = capsys.readouterr().out
            assert call(top.COMMAND, path, "--json") == 1
            tasks.cancel_scope.cancel()
    lines = text.splitlines()
    assert "1 run under way, 2 alerts" in lines[0]
    summary = "PAGE    Agent fails (shop) fails: 100% of its runs in 10m; the limit is 10%."
    assert f"{summary}  pellucid runbook RunFailing" in lines
    assert any(line.split()[:1] == ["hangs"] and line.endswith("  HANGS") for line in lines)
    assert any(line.startswith("discover_tools hangs") for line in lines)
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("top")
    assert found["hubs"][0].keys() == documented("hub")
    assert found["alerts"][0].keys() == documented("alert")
    assert found["hubs"][0]["in_flight_seconds"] > 0
    assert found["hubs"][0]["state"] == "hangs"
    assert [run["agent"] for run in found["running"]] == ["waits"]


def test_replays_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`runs` names the run that a replay replays; `top` lists it only if asked."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for run_id, replayed in (("a" * 32, {}), ("b" * 32, {semconv.REPLAY_OF: "a" * 32})):
            facts = {semconv.RUN_ID: run_id, semconv.PHASE: semconv.RUN, **replayed}
            tracer.start_span(semconv.RUN, attributes=facts).end()
    assert call(runs.COMMAND, path) == 0
    _, replay, _ = capsys.readouterr().out.splitlines()
    assert "(replay of aaaaaaaa)" in replay
    for arguments, listed in (([], ["a"]), (["--replays"], ["b", "a"])):
        assert call(top.COMMAND, path, "--json", *arguments) == 0
        assert [run["run_id"][0] for run in json.loads(capsys.readouterr().out)["latest"]] == listed


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Give the two ends of a terminal."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_top_follows_the_store(tmp_path: Path, terminal: tuple[int, int]) -> None:
    """In a terminal, what is written appears; an interrupt ends it."""
    path = tmp_path / "store.db"
    ours, theirs = terminal
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):
            while chunk := os.read(ours, 65_536):
                seen.extend(chunk)

    with storing(path) as telemetry:
        emit(telemetry, "one")
        assert telemetry.flush(10)
        program = [sys.executable, "-c", MAIN, "top", "--store", str(path), "--interval", "0.05"]
        with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            threading.Thread(target=read, daemon=True).start()
            eventually(lambda: b"0 runs under way" in seen)
            anyio.run(Agent("arrived", model=ScriptedModel("x"), telemetry=telemetry).run, "x")
            eventually(lambda: b"arrived" in seen)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
