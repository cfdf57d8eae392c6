"""Recordings in JSON Lines are read as the store is: files with their rotated ones, and exports of the store."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent, Decision, Skill, ToolCall, ToolError, semconv, tool
from pellucid.errors import ConfigError
from pellucid.testing import ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import File, FileReader, Local, StoreReader
from pellucid_exporters.file.line_file import rotated_files
from pellucid_exporters.recordings import open_recording
from pellucid_exporters.stored.content import RunContent
from pellucid_replay import Tape
from support.files import writing_to

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable
    from pathlib import Path

    from pellucid_exporters.stored.reader import Recording
    from pellucid_exporters.stored.rows import SpanRow

LONG = "a text of more than a hundred characters, " * 10


@tool
async def fail() -> str:
    """Raise."""
    raise ToolError("text-of-exception")


@tool(needs_approval=True)
async def buy() -> str:
    """Buy it."""
    return "bought"


async def record(path: Path) -> Recording:
    """Write runs, of which one has an inner run, to a store and a small file; return the reader of the store."""
    store = path / "store.db"
    with writing_to(File(path / "runs.jsonl", max_bytes=20_000, keep=None), local=Local(store)) as telemetry:

        @tool
        async def look(what: str) -> str:
            """Look something up."""
            with telemetry.tracer_provider.get_tracer("another").start_as_current_span("GET /"):
                return LONG

        inner = Agent("inner", model=ScriptedModel(ToolCall("look", {"what": "x"}), "found"), tools=[look])
        answers: list[Any] = [[ToolCall("inner", {"input": "go"}), ToolCall("fail", {})], "answer"]
        skill = Skill("refunds", "How to.", "Do it.")
        tools = [inner.as_tool(description="Find it."), fail]
        outer = Agent("outer", model=ScriptedModel(*answers), tools=tools, skills=[skill], telemetry=telemetry)
        with anyio.fail_after(60):
            await outer.run("question")
            await Agent("buyer", model=ScriptedModel(ToolCall("buy", {})), tools=[buy], telemetry=telemetry).run("buy")
            await Agent("other", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")
            assert await anyio.to_thread.run_sync(telemetry.flush, 10)
    return StoreReader(store)


def whole(reader: Recording, spans: Iterable[SpanRow]) -> list[SpanRow]:
    """Return spans with their large texts in place."""
    found = []
    for span in spans:
        content = RunContent(reader, [span])
        attributes = {
            name: content.text(span, name) if isinstance(value, dict) else value
            for name, value in span.attributes.items()
        }
        found.append(replace(span, attributes=attributes, events=[event["name"] for event in span.events]))
    return found


def exported(store: Path, path: Path, *arguments: str) -> Path:
    """Return an export of the store."""
    with path.open("w") as file, redirect_stdout(file):
        COMMAND.run(command("export", "--store", str(store), *arguments))
    return path


def command(*arguments: str) -> Namespace:
    """Return the options of `pellucid store`."""
    from argparse import ArgumentParser

    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["file", "export"])
async def test_a_recording_is_read_as_the_store_is(tmp_path: Path, kind: str) -> None:
    """Its runs, spans, catalogues and events are equal to those of the store, which saw the same runs."""
    store = await record(tmp_path)
    assert len(rotated_files(tmp_path / "runs.jsonl")) > 1
    path = tmp_path / "runs.jsonl" if kind == "file" else exported(tmp_path / "store.db", tmp_path / "export.jsonl")
    reader = open_recording(path)
    assert isinstance(open_recording(tmp_path / "store.db"), StoreReader)
    assert reader.runs() == store.runs()
    assert [run.agent for run in reader.runs()] == ["other", "buyer", "inner", "outer"]
    assert reader.runs()[1].status == "awaiting_approval"
    assert reader.runs()[2].parent_run_id == reader.runs()[3].run_id
    for run in store.runs():
        spans = store.spans(run.run_id)
        assert whole(reader, reader.spans(run.run_id)) == whole(store, spans)
        digests = [span.attributes.get(semconv.CATALOG_DIGEST, "") for span in spans]
        assert reader.catalogs(digests) == store.catalogs(digests) != {}
        events = [(event.time, event.name, event.span_id) for event in reader.events(run.run_id)]
        assert set(events) >= {(event.time, event.name, event.span_id) for event in store.events(run.run_id)}


@pytest.mark.anyio
async def test_runs_of_a_recording_are_found(tmp_path: Path) -> None:
    """By id, prefix and trace, and by the searches of the store; also those that were written in the meantime."""
    store = await record(tmp_path)
    reader = FileReader(tmp_path / "runs.jsonl")
    other, _, inner, outer = reader.runs()
    assert reader.run(inner.run_id) == reader.run(inner.run_id[:16]) == inner
    assert reader.run(outer.trace_id) == outer
    assert reader.trace(outer.trace_id) == store.trace(outer.trace_id) == [outer, inner]
    assert reader.trace("no") == store.trace("no") == []
    assert reader.run("no such run") is None
    searches: list[dict[str, Any]] = [
        {"agent": "inner"}, {"tool": "fail"}, {"hub": "skills"}, {"model": "scripted"}, {"text": "A TEXT of more"},
        {"outcome": "failed"}, {"outcome": "completed"}, {"outcome": "awaiting_approval"},
        {"min_cost": 1}, {"min_duration": 3600}, {"before": other.start}, {"limit": 1},
    ]  # fmt: skip
    for search in searches:
        assert reader.runs(**search) == store.runs(**search), search
    await record(tmp_path)
    assert len(reader.runs()) == 8


@pytest.mark.anyio
async def test_the_export_of_a_run_can_be_replayed(tmp_path: Path) -> None:
    """It has the runs nested in it and those that it continued, and no others of the store."""
    store = tmp_path / "store.db"
    with writing_to(tmp_path / "runs.jsonl", local=Local(store)) as telemetry:
        inner = Agent("inner", model=ScriptedModel("found")).as_tool(description="Find it.")
        answers: list[Any] = [[ToolCall("inner", {"input": "go"}), ToolCall("buy", {})], "bought"]
        agent = Agent("buyer", model=ScriptedModel(*answers), tools=[inner, buy], telemetry=telemetry)
        waits = await agent.run("buy")
        (request,) = waits.approvals
        assert waits.checkpoint is not None
        last = await agent.resume(waits.checkpoint, decisions=[Decision(request.approval_id, True)])
        await Agent("other", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)
    path = exported(store, tmp_path / "export.jsonl", "--run", last.run_id)
    assert [run.agent for run in FileReader(path).runs()] == ["buyer", "inner", "buyer"]
    tape = Tape.load(path, last.run_id)
    assert [span.span_id for span in tape.spans] == [span.span_id for span in Tape.load(store, last.run_id).spans]


def test_a_run_whose_end_is_missing_is_interrupted(tmp_path: Path) -> None:
    """Of a process that was killed, and whose last line is torn."""
    path = tmp_path / "runs.jsonl"
    with writing_to(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        facts = {semconv.RUN_ID: "a" * 32, semconv.PHASE: semconv.DISCOVERY, semconv.PROVIDER_ID: "git"}
        tracer.start_span("discover_tools git", attributes=facts).end()
        assert telemetry.flush()
    with path.open("a") as file:
        file.write('{"type":"span","time":')
    (run,) = FileReader(path).runs()
    (span,) = FileReader(path).spans(run.run_id)
    assert run.seen_until == span.end
    assert (run.status, run.end, run.hubs) == ("interrupted", None, ("git",))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    """With its name and the remedy; a file without lines is a recording without runs."""
    path = tmp_path / "file"
    with pytest.raises(ConfigError, match=r"no recording .*file=\.\.\."):
        FileReader(path)
    path.touch()
    assert FileReader(path).runs() == []
    for content in (b"SQLite format 3\0" * 100, b"a note\n", b'{"level": "info"}\n'):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="StoreReader"):
            FileReader(path)
