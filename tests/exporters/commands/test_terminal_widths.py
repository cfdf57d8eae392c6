"""The commands in terminals of several widths: numbers stay, names give way in their middle."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, Limits, PellucidError, ToolCall, tool
from pellucid.cli import Command
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.inspection import runs, show, top
from pellucid_exporters import StoreReader
from support.local_store import storing

HUB = f"https://hubs.example.com/{'a/very/long/path/' * 6}bergen"
AGENT = f"support-{'of-customers-' * 5}norway"


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


@tool
async def wait() -> None:
    """Wait for ever."""
    await anyio.sleep_forever()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store with runs of long names, of which one timed out, and hubs of which one is slow."""
    path = tmp_path_factory.mktemp("widths") / "store.db"

    async def fill() -> None:
        with storing(path) as telemetry:
            for hub, objective in (("a", 100.0), (HUB, 1e-9)):
                provider = DiscoveryProvider(FakeHub([look]), id=hub, ttl=0, objective=objective)
                model = ScriptedModel(ToolCall("look", {"what": "x"}), "It will arrive tomorrow before noon.")
                agent = Agent(AGENT, model=model, providers=[provider], telemetry=telemetry)
                await agent.run("When will the umbrella with the wooden handle arrive in Bergen?")
            model, limits = ScriptedModel(ToolCall("wait", {})), Limits(timeout=0.01)
            slow = Agent("slow", model=model, tools=[wait], limits=limits, telemetry=telemetry)
            with suppress(PellucidError):
                await slow.run("Are you there?")

    anyio.run(fill)
    return path


def lines(
    command: Command, path: Path, width: int | None, capsys: pytest.CaptureFixture[str], *arguments: str
) -> list[str]:
    """Return what a command prints in a terminal of some columns; without a width, to a pipe."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: width is not None)
        patch.setenv("COLUMNS", str(width or 80))
        command.run(parser.parse_args([*arguments, "--store", str(path)]))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200, 300])
def test_numbers_of_hubs_stay(path: Path, capsys: pytest.CaptureFixture[str], width: int) -> None:
    """One long name hides neither numbers nor states; the worst hub comes first; names keep both ends."""
    shown = lines(top.COMMAND, path, width, capsys, "--once")
    assert max(map(len, shown)) <= width
    title = next(number for number, line in enumerate(shown) if line.startswith("HUB"))
    slow, fine = shown[title + 1 : title + 3]
    assert slow.endswith("SLOW")
    assert slow.startswith("http")
    assert slow.split()[0].endswith("rgen")
    assert fine.split()[0] == "a"
    assert {"P95", "CALLS", "FAILED"} <= set(shown[title].split())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_durations_of_spans_stay(path: Path, capsys: pytest.CaptureFixture[str], width: int) -> None:
    """Each span has its duration in whole, and wide terminals more of its name and its facts."""
    run = next(run for run in StoreReader(path).runs() if HUB in run.hubs)
    tree = [line for line in lines(show.COMMAND, path, width, capsys, run.run_id) if "─ " in line]
    assert len(tree) == 7
    assert max(map(len, tree)) <= width
    assert all({"s", "ms", "µs"} & set(line.split()) for line in tree)
    assert "$body" not in "".join(tree)
    [discovery] = [line for line in tree if "discover_tools" in line and "[1]" in line]
    assert (HUB in discovery, "miss" in discovery) == (False, width == 200)
    assert "bergen" in discovery.split("[1]")[0]


def test_runs_have_questions_and_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 80 columns shortened, in a pipe in whole, with the error in place of an answer."""
    title, timeout, *_ = lines(runs.COMMAND, path, 80, capsys)
    assert title.split() == ["RUN", "STARTED", "AGENT", "STATUS", "DURATION", "QUESTION", "ANSWER"]
    assert "timeout" in timeout
    assert len(timeout) <= 80
    whole = lines(runs.COMMAND, path, None, capsys)
    assert {"SPANS", "TOKENS", "COST"} <= set(whole[0].split())
    assert AGENT in whole[2]
    assert whole[2].endswith("arrive in Bergen?  It will arrive tomorrow before noon.")
    assert "timeout: " in whole[1]


def test_failed_runs_are_not_those_that_timed_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error says that there are some, and how they are listed."""
    parser = ArgumentParser()
    runs.COMMAND.add_arguments(parser)
    assert runs.COMMAND.run(parser.parse_args(["--outcome", "failed", "--store", str(path)])) == 1
    assert capsys.readouterr().err == "runs that timed out are not among these; see: --outcome timeout\n"
    assert runs.COMMAND.run(parser.parse_args(["--outcome", "failed", "--agent", "none", "--store", str(path)])) == 1
    assert capsys.readouterr().err == ""
