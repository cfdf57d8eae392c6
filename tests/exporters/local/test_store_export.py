"""`pellucid store export`: every line once, as a reader of the store sees it, in a file for its owner only."""

from __future__ import annotations

import dataclasses
import json
import time
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.bodies import digests_in, filled
from support.local_store import emit, storing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@tool
async def look(what: str) -> str:
    """Look something up."""
    if what == "nothing":
        raise ValueError("there is " + "nothing " * 100)
    return f"{what} is fine. " * 50


async def test_an_export_has_what_the_reader_returns(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs, spans with links, spans in flight, of no run, and events, each once, with the large texts in place."""
    calls = [ToolCall("look", {"what": what}) for what in ("weather", "nothing")]
    with storing(path) as telemetry:
        hub = DiscoveryProvider(FakeHub([look]), id="hub", ttl=0)
        for _ in range(2):
            agent = Agent("guide", model=ScriptedModel(*calls, "done"), providers=[hub], telemetry=telemetry)
            await agent.run("How is it? " * 100)
        emit(telemetry, "of no run", text="long " * 100)
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        tracer.start_span("invoke_agent", attributes={semconv.RUN_ID: "open", semconv.PHASE: semconv.RUN})
        telemetry.flush()
        reader = StoreReader(path)
        runs = [run.run_id for run in reader.runs()]
        assert len(runs) == 3
        expected = []
        for run_id in [*runs, ""]:
            expected += [
                *map(dataclasses.asdict, reader.spans(run_id)),
                *map(dataclasses.asdict, reader.events(run_id)),
            ]
        expected = json.loads(json.dumps(filled(expected, reader.bodies(set(digests_in(expected))))))
        lines = exported(path, capsys)
    assert [line["run_id"] for line in lines if line["type"] == "run"] == runs
    assert sum(line["type"] == "catalog" for line in lines) == 1
    got = [line for line in lines if line["type"] in {"span", "event"}]
    assert [{name: value for name, value in line.items() if name != "type"} for line in got] == expected
    assert "nothing nothing" in json.dumps(got)
    assert "$body" not in json.dumps(got)


def test_runs_that_began_at_once_are_exported_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More runs of one moment than are read at once, between others."""
    now = time.time_ns()
    starts = [*range(now, now + 300), *[now + 300] * 700, *range(now + 301, now + 500)]
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for number, start in enumerate(starts):
            tracer.start_span("run", attributes={semconv.RUN_ID: f"{number}"}, start_time=start).end(start + 1)
    names = [line["run_id"] for line in exported(path, capsys) if line["type"] == "run"]
    assert sorted(map(int, names)) == list(range(len(starts)))


def test_an_export_to_a_file_is_for_its_owner_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the file was there, for everybody; what cannot be written to is named."""
    with storing(path) as telemetry:
        emit(telemetry, "of no run", name="Zoë")
    file = path.parent / "export.jsonl"
    file.write_text("for everybody")
    file.chmod(0o644)
    assert store("export", "--store", str(path), "--output", str(file)) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line) for line in file.read_text().splitlines()] == exported(path, capsys)
    with pytest.raises(ConfigError, match=r"cannot be written to \(Is a directory\)"):
        store("export", "--store", str(path), "--output", str(path.parent))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a store."""
    return tmp_path / "store.db"


def exported(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the lines of an export to standard output."""
    capsys.readouterr()
    assert store("export", "--store", str(path)) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def store(*arguments: str) -> int:
    """Run `pellucid store`."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(arguments))
