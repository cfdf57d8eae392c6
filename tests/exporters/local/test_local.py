"""Contents of the local store, and how they are read: runs, spans, texts, events, hubs, and boundaries in flight."""

from __future__ import annotations

import json
import math
import sqlite3
import stat
import threading
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace

from pellucid import Agent, CapturePolicy, DiscoveryProvider, Tool, ToolCall, ToolError, ToolRegistry, semconv, tool
from pellucid.durable import SQLiteStore
from pellucid.errors import ConfigError, StoreError
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import Local, StoreReader, TailSampling
from pellucid_exporters.local import schema
from support.local_store import counted, emit, eventually, storing
from support.openmetrics import scrape
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry

LONG = "a text of more than a hundred characters, " * 10


@tool
async def look(what: str) -> str:
    """Look something up."""
    with trace.get_tracer("another").start_as_current_span("GET /") as span:
        span.set_attribute("url", "x" * 10)
    return LONG


@tool
async def fail() -> str:
    """Raise."""
    raise ToolError("text-of-exception")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store."""
    return tmp_path / "telemetry" / "store.db"


async def run(telemetry: Telemetry, *, times: int = 1, name: str = "looker") -> None:
    """Run an agent that calls two tools."""
    calls = [ToolCall("look", {"what": "argument"}), ToolCall("fail", {})]
    answers: list[Any] = [calls, "text-of-answer"]
    agent = Agent(name, model=ScriptedModel(*answers * times), tools=[look, fail], telemetry=telemetry)
    with anyio.fail_after(60):
        for _ in range(times):
            await agent.run("text-of-question")
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)


def mode(path: Path) -> int:
    """Return the permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


def store_command(*arguments: str) -> int:
    """Run `pellucid store` with arguments; return the exit code."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(arguments))


@pytest.mark.anyio
async def test_a_run_is_in_the_store(path: Path) -> None:
    """A run is in the store with its spans and large texts, in a file that only its owner may read."""
    with storing(path) as telemetry:
        await run(telemetry)
        reader = StoreReader(path)
        (found,) = reader.runs()
        spans = reader.spans(found.run_id)
    assert (found.agent, found.service, found.status, found.iterations) == ("looker", "shop", "completed", 2)
    assert (found.models, found.tools, found.hubs) == (("scripted",), ("fail", "look"), ("static",))
    assert found.spans == len(spans) == 9
    assert [span.sequence for span in spans] == list(range(9))
    assert spans[0].name == "invoke_agent looker"
    assert (spans[0].start, spans[0].end) == (found.start, found.end)
    (failed,) = [span for span in spans if span.name == "execute_tool fail"]
    assert (failed.status, failed.error_type, failed.error) == ("failed", "tool_error", "text-of-exception")
    assert [event["name"] for event in failed.events] == ["exception"]
    (looked,) = [span for span in spans if span.name == "execute_tool look"]
    assert looked.attributes[semconv.TOOL_CALL_ARGUMENTS] == '{"what":"argument"}'
    digest = looked.attributes[semconv.TOOL_CALL_RESULT]["$body"]
    assert LONG in reader.bodies([digest, "00", "no digest"])[digest]
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


def test_git_ignores_the_default_folder(tmp_path: Path) -> None:
    """Git ignores the default folder and no other; a `.gitignore` that exists or was removed stays so."""
    for folder in ("there", "other", "own"):
        (tmp_path / folder / ".pellucid").mkdir(parents=True)
    (tmp_path / "own" / ".pellucid" / ".gitignore").write_text("telemetry.db*\n")
    ignored = {".pellucid": "*\n", "there/.pellucid": "*\n", "other": None, "own/.pellucid": "telemetry.db*\n"}
    for folder, text in ignored.items():
        with storing(tmp_path / folder / "telemetry.db"):
            pass
        file = tmp_path / folder / ".gitignore"
        assert (file.read_text() if file.exists() else None) == text
    (tmp_path / ".pellucid" / ".gitignore").unlink()
    with storing(tmp_path / ".pellucid" / "telemetry.db"):
        pass
    assert not (tmp_path / ".pellucid" / ".gitignore").exists()


def test_spans_that_are_out_of_the_ordinary(path: Path) -> None:
    """A text of 10 MB is read as it was, a span that a clock set back took no time, half a surrogate pair is a `?`."""
    text = "".join(f"{number} of many\n" for number in range(700_000))
    with storing(Local(path, max_age=math.inf), service_name="shop\udcff") as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        tracer.start_span("large", attributes={"text": text}).end()
        tracer.start_span("set back", start_time=2 * 10**18).end(10**18)
        facts = {semconv.PHASE: semconv.DISCOVERY, semconv.RUN_ID: "\ud800", semconv.DISCOVERY_CACHE: "\ud800"}
        telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("half a pair", attributes=facts).end()
        assert eventually(lambda: telemetry.flush(10))
        assert counted(telemetry, "errors") == 0
    reader = StoreReader(path)
    large, back = reader.spans("")
    assert reader.bodies([large.attributes["text"]["$body"]]) == {large.attributes["text"]["$body"]: text}
    assert (back.start, back.end) == (2 * 10**18, 2 * 10**18)
    assert [(run.run_id, run.service) for run in reader.runs()] == [("?", "shop?")]


def test_spans_of_another_process_belong_to_the_run_of_their_parent(path: Path) -> None:
    """Spans of another process belong to the run of their parent, as a trace may have several runs."""
    with storing(path) as here, storing(path, service_name="stock") as there:
        tracer = here.tracer_provider.get_tracer("pellucid")
        with tracer.start_as_current_span("first", attributes={semconv.RUN_ID: "first", semconv.PHASE: "run"}):
            attributes = {semconv.RUN_ID: "second", semconv.PHASE: "run"}
            for has_ended in (False, True):
                with tracer.start_as_current_span("second", attributes=attributes) as span:
                    assert here.flush(10)
                    context = trace.set_span_in_context(trace.NonRecordingSpan(span.get_span_context()))
                    if not has_ended:
                        there.tracer_provider.get_tracer("stock").start_span("while it runs", context).end()
                        assert there.flush(10)
                assert here.flush(10)
                if has_ended:
                    there.tracer_provider.get_tracer("stock").start_span("after it", context).end()
                    assert there.flush(10)
        assert here.flush(10)
    reader = StoreReader(path)
    assert sorted(span.name for span in reader.spans("second")) == ["after it", "second", "second", "while it runs"]
    assert [span.name for span in reader.spans("first")] == ["first"]


def test_attributes_are_those_of_the_span(path: Path) -> None:
    """Values of any type are read as they were; what UTF-8 cannot hold is replaced. A span of no year is counted."""
    with storing(path) as telemetry:
        values: dict[str, Any] = {"text": "é\ud800", "yes": True, "number": 2.5, "list": ("a", "b"), "one": 1}
        telemetry.tracer_provider.get_tracer("test").start_span("never", start_time=10**30).end()
        emit(telemetry, "odd", **values)
        assert telemetry.flush()
        assert counted(telemetry, "errors") == 1
        (span,) = StoreReader(path).spans("")
    assert span.attributes == {"text": "é�", "yes": True, "number": 2.5, "list": ["a", "b"], "one": 1}


def test_values_that_are_not_what_their_names_say(path: Path) -> None:
    """Labels, digests and ids of runs of any type and length are read as they were, beside usual ones."""
    digest, long = "0123456789abcdef" * 2, "x" * 101
    usual: dict[str, Any] = {semconv.PHASE: "run", semconv.INPUT_DIGEST: digest, semconv.OUTPUT_DIGEST: digest[::-1]}
    odd: list[dict[str, Any]] = [
        *({semconv.PHASE: value} for value in (1, True, 1.0, "1")),
        *({semconv.INPUT_DIGEST: value} for value in (5, digest.upper(), digest + "0", f"{digest}\n", "")),
        {semconv.INPUT_DIGEST: digest[2:], semconv.OUTPUT_DIGEST: digest + "01"},
        {semconv.RUN_ID: 5},
    ]
    with storing(Local(path, max_age=math.inf)) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        given = [usual, *({**usual, **values} for values in odd), {**usual, semconv.PHASE: long, "text": long}, usual]
        for number, attributes in enumerate(given):
            tracer.start_span("odd", attributes=attributes, start_time=number).end(number)
        assert telemetry.flush()
        assert counted(telemetry, "errors") == 0
    *found, large, last = StoreReader(path).spans("")
    assert [repr(dict(span.attributes)) for span in (*found, last)] == [repr(values) for values in (*given[:-2], usual)]
    assert large.attributes[semconv.PHASE] == large.attributes["text"] == {"$body": ANY}


@pytest.mark.anyio
async def test_searches(path: Path) -> None:
    """Runs are found by agent, outcome, part, text and id, newest first and in pages."""
    with storing(path) as telemetry:
        await run(telemetry, times=3)
        await run(telemetry, name="other")
        reader = StoreReader(path)
        newest, *older = reader.runs()
        assert newest.agent == "other"
        assert [row.agent for row in older] == ["looker"] * 3
        assert reader.runs(limit=1) == [newest]
        assert reader.runs(before=newest.start) == older
        hits: list[dict[str, Any]] = [{"agent": "looker"}, {"tool": "look"}, {"hub": "static"}, {"model": "scripted"}]
        misses: list[dict[str, Any]] = [{"tool": "no"}, {"outcome": "failed"}, {"min_cost": 1}, {"min_duration": 3600}]
        assert all(older[0] in reader.runs(**search) for search in hits)
        assert not any(reader.runs(**search) for search in misses)
        assert len(reader.runs(text="A TEXT of more")) == 4
        assert [row.agent for row in reader.runs(text="OTHER")] == ["other"]
        assert reader.runs(text="never said") == []
        assert reader.run(newest.run_id) == reader.run(newest.run_id[:20]) == reader.run(newest.trace_id) == newest
        assert reader.run("no such run") is None
        assert reader.spans("no such run") == []


@pytest.mark.anyio
async def test_whole_catalogues_are_in_the_store(path: Path) -> None:
    """A catalogue is stored by the digest of its discovery, with the latest options, unless it is too large."""
    huge = [Tool(name=f"huge_{number}", run=look.run, description="word " * 12_000) for number in range(150)]
    with storing(path) as telemetry:
        for tools in ([look], [replace(look, serial=True)], huge):
            provider = ToolRegistry(tools, id="desk")
            agent = Agent("a", model=ScriptedModel("hi", "hi"), providers=[provider], telemetry=telemetry)
            for _ in range(2):
                with anyio.fail_after(60):
                    await agent.run("text-of-question")
        with anyio.fail_after(60):
            while not await anyio.to_thread.run_sync(telemetry.flush):
                pass  # 9 MB are more than it waits for on a busy machine
        reader = StoreReader(path)
        listings = [span for run in reader.runs() for span in reader.spans(run.run_id) if span.phase == "discovery"]
        digests = {span.attributes[semconv.CATALOG_DIGEST] for span in listings}
        assert len(digests) == 2
        (catalog,) = reader.catalogs([*digests, "00", "no digest"]).values()
        assert counted(telemetry, "dropped") == 1
    definition = {"name": "look", "description": "Look something up.", "parameters": look.input_schema}
    assert catalog == {"provider_id": "desk", "tools": [{**definition, "serial": True}]}


@pytest.mark.anyio
async def test_a_replay_counts_for_no_hub(path: Path) -> None:
    """A run that is a replay says so, and its discoveries count for no hub."""
    with storing(path) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for run_id, replayed in (("a" * 32, {}), ("b" * 32, {semconv.REPLAY_OF: "a" * 32})):
            facts = {semconv.RUN_ID: run_id, semconv.PROVIDER_ID: "git", semconv.DISCOVERY_CACHE: "miss", **replayed}
            for phase in (semconv.DISCOVERY, semconv.RUN):
                span = tracer.start_span(phase, attributes={semconv.PHASE: phase, **facts})
                if phase == semconv.DISCOVERY:
                    span.add_event(semconv.HUB_LISTING, {semconv.PROVIDER_ID: "git", semconv.HUB_LISTING_SECONDS: 0.1})
                span.end()
        assert telemetry.flush()
        reader = StoreReader(path)
        runs = {run.run_id[0]: run.replay_of for run in reader.runs()}
        (hub,) = reader.hubs(0, 2**62)
    assert runs == {"a": None, "b": "a" * 32}
    assert hub.calls == 1


@pytest.mark.anyio
async def test_large_texts_are_stored_once(path: Path) -> None:
    """A large text that many spans have in common, such as a catalogue or a result, is stored once."""
    with storing(path) as telemetry:
        await run(telemetry, times=5)
    with sqlite3.connect(path) as connection:
        digests = connection.execute("SELECT sum(length(digests)) / 16 FROM spans").fetchone()[0]
        bodies = connection.execute("SELECT count(*) FROM bodies").fetchone()[0]
    connection.close()
    assert bodies < digests / 5


@pytest.mark.anyio
async def test_nested_runs_and_spans_of_others(path: Path) -> None:
    """An agent that is a tool names its parent; spans of other libraries belong to the run around them."""
    with storing(path) as telemetry:
        inner = Agent("inner", model=ScriptedModel("inner answer"), telemetry=telemetry)
        model = ScriptedModel([ToolCall("inner", {"input": "x"})], "outer answer")
        outer = Agent("outer", model=model, tools=[inner.as_tool("inner", "Ask.")], telemetry=telemetry)
        tracer = telemetry.tracer_provider.get_tracer("another")
        with anyio.fail_after(60), tracer.start_as_current_span("POST /ask"):
            await outer.run("question")
        emit(telemetry, "alone")
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        reader = StoreReader(path)
        rows = {row.agent: row for row in reader.runs()}
        assert rows["inner"].parent_run_id == rows["outer"].run_id
        assert rows["outer"].parent_run_id is None
        assert "POST /ask" in [span.name for span in reader.spans(rows["outer"].run_id)]
        assert [span.name for span in reader.spans("")] == ["alone"]


@pytest.mark.anyio
async def test_what_hangs_is_visible(path: Path) -> None:
    """A boundary that hangs is in flight, its run is running, and its hub has been asked since then."""
    asked, go_on = threading.Event(), anyio.Event()

    class Slow:
        async def fetch_catalog(self, ctx: object) -> list[Any]:
            asked.set()
            await go_on.wait()
            return []

    with storing(path) as telemetry:
        hub = DiscoveryProvider(Slow(), id="slow-hub", objective=0.5)
        agent = Agent("waits", model=ScriptedModel("x"), providers=[hub], telemetry=telemetry)
        reader = StoreReader(path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "x")
            await anyio.to_thread.run_sync(asked.wait, 60)
            await anyio.to_thread.run_sync(lambda: eventually(lambda: len(reader.in_flight()) > 1))
            spans = reader.in_flight()
            assert [span.phase for span in spans] == ["run", "discovery"]
            assert {span.status for span in spans} == {"running"}
            (row,) = reader.runs(outcome="running")
            assert (row.status, row.end, row.spans) == ("running", None, 2)
            assert [span.name for span in reader.spans(row.run_id)] == [span.name for span in spans]
            (found,) = reader.hubs(0, 2**62)
            assert (found.provider_id, found.in_flight_since, found.calls) == ("slow-hub", spans[1].start, 0)
            go_on.set()
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        assert reader.in_flight() == []
        assert reader.runs()[0].status == "completed"
        (found,) = reader.hubs(0, 2**62)
        assert (found.objective, found.calls, found.cache, found.in_flight_since) == (0.5, 1, {"miss": 1}, None)


@pytest.mark.anyio
async def test_minutes_of_hubs_agree_with_the_metrics(path: Path) -> None:
    """Requests by bucket and discoveries by cache outcome are those of the histograms; exemplars are in the store."""
    with storing(path, tail_sampling=TailSampling(share=0.0)) as telemetry:
        for number in range(3):
            hub = DiscoveryProvider(FakeHub(), id=f"hub-{number}")
            agent = Agent("a", model=ScriptedModel(*["x"] * 4), providers=[hub], telemetry=telemetry)
            with anyio.fail_after(60):
                for _ in range(4):
                    await agent.run("x")
        assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        reader = StoreReader(path)
        rows = reader.hubs(0, 2**62)
        families = scrape(telemetry.prometheus_url)
        spans = {span.span_id for row in reader.runs() for span in reader.spans(row.run_id)}
    waits, requests = (
        [sample for sample in families[name].samples if sample.name.endswith("_bucket")]
        for name in ("pellucid_tool_discovery_duration_seconds", "pellucid_hub_listing_duration_seconds")
    )
    assert [row.provider_id for row in rows] == ["hub-0", "hub-1", "hub-2"]
    for row in rows:
        counts = {
            sample.labels["pellucid_discovery_cache"]: int(sample.value)
            for sample in waits
            if sample.labels["pellucid_provider_id"] == row.provider_id and sample.labels["le"] == "+Inf"
        }
        assert row.cache == counts == {"miss": 1, "hit": 3}
        made = [sample for sample in requests if sample.labels["pellucid_provider_id"] == row.provider_id]
        assert {sample.labels["pellucid_outcome"] for sample in made} == {"completed"} == row.outcomes.keys()
        (minute,) = row.by_minute.values()
        found = [sample.value for sample in made if sample.labels["le"] != "+Inf"]
        assert [sum(minute[: number + 1]) for number in range(len(row.bounds))] == found
        assert (row.calls, row.failures) == (1, 0)
        assert {span_id for _, span_id in row.exemplars.values()} <= spans


@pytest.mark.anyio
async def test_events_that_say_more_than_spans(path: Path) -> None:
    """Failures are stored as events; the start and the end of a boundary are only on its span."""
    with storing(path) as telemetry:
        await run(telemetry)
        reader = StoreReader(path)
        (row,) = reader.runs()
        (event,) = reader.events(row.run_id)
    assert (event.name, event.payload["error_type"]) == ("tool.failed", "tool_error")
    assert event.span_id in {span.span_id for span in reader.spans(row.run_id)}
    assert row.start <= event.time + 1_000_000


@pytest.mark.anyio
async def test_the_store_has_no_more_than_the_mode_allows(path: Path) -> None:
    """The store has no content if the capture mode records none."""
    with storing(path, capture=CapturePolicy("metadata")) as telemetry:
        await run(telemetry)
    content = await anyio.Path(path).read_bytes()
    assert not [
        word for word in (b"text-of-question", b"argument", b"text-of-answer", b"text-of-exception") if word in content
    ]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    connection.close()


def test_the_store_grows_no_older_than_allowed(path: Path) -> None:
    """Runs, texts and minutes beyond the maximal age or size are deleted, and their space is given back."""
    with storing(Local(path, max_age=3600)) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        for number in range(50):
            attributes = {semconv.RUN_ID: f"old-{number}", "text": f"{number} {LONG}"}
            tracer.start_span("old", attributes=attributes, start_time=10**18).end(10**18 + 1)
        tracer.start_span("new", attributes={semconv.RUN_ID: "new"}).end()
        assert telemetry.flush()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE counters SET value = 0 WHERE name = 'retained_at'")
    connection.close()
    with storing(Local(path, max_age=3600)):
        reader = StoreReader(path)
        assert eventually(lambda: [row.run_id for row in reader.runs()] == ["new"])
        assert eventually(lambda: [span.name for span in reader.spans("new")] == ["new"])


@pytest.mark.anyio
async def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pellucid store` counts, exports with the large texts in place, and deletes the oldest on request."""
    with storing(path) as telemetry:
        await run(telemetry, times=3)
        emit(telemetry, "alone")
    store = ("--store", str(path))
    assert store_command("stats", "--json", *store) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["spans"], found["starts"]) == (3, 28, 0)
    assert store_command("export", *store) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines].count("run") == 3
    assert [line["provider_id"] for line in lines if line["type"] == "catalog"] == ["static"]
    assert [line["name"] for line in lines if line["type"] == "span"].count("alone") == 1
    texts = [line["attributes"].get(semconv.TOOL_CALL_RESULT) for line in lines if line["type"] == "span"]
    assert len([text for text in texts if text is not None and LONG in text]) == 3
    (run_id,) = {line["run_id"] for line in lines if line["type"] == "run"} - {
        line["run_id"] for line in lines[10:] if line["type"] == "run"
    }
    assert store_command("export", "--run", run_id, *store) == 0
    exported = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["run_id"] for line in exported if line["type"] != "catalog"} == {run_id}
    with pytest.raises(SystemExit):
        store_command("compact", "--max-bytes", "1048575", *store)
    assert "at least 1,048,576" in capsys.readouterr().err
    assert store_command("compact", "--max-age", "1e-9", *store) == 0
    assert "3 runs deleted" in capsys.readouterr().out
    assert not StoreReader(path).runs()
    assert not StoreReader(path).spans("")
    with pytest.raises(StoreError, match="there is no store"):
        store_command("stats", "--store", str(path.with_name("missing.db")))


def test_another_database_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer store, another database and a text file are named, with the remedy, by writer and reader."""
    with pytest.raises(StoreError, match=r"there is no store .*local=True"):
        StoreReader(path)
    with storing(path):
        pass
    monkeypatch.setattr(schema, "VERSION", 0)
    monkeypatch.setattr(schema, "MIGRATIONS", ())
    for use in (lambda: StoreReader(path), lambda: storing(path).__enter__()):
        with pytest.raises(StoreError, match="upgrade Pellucid"):
            use()
    monkeypatch.undo()
    other = path.with_name("other.db")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    text = path.with_name("text.db")
    text.write_text("no database at all, " * 100)
    for file in (other, text):
        with pytest.raises(StoreError, match=r"telemetry store|damaged"):
            StoreReader(file)
        with pytest.raises(ConfigError, match="telemetry store"):
            storing(file).__enter__()


async def open_durable(path: Path) -> None:
    """Open a store of durable runs."""
    async with SQLiteStore(path):
        pass


def test_each_kind_of_store_is_told_from_the_other(path: Path) -> None:
    """A store that is opened as the other kind is named, with the command that reads it, and not changed."""
    with storing(path):
        pass
    with pytest.raises(
        ConfigError, match=r"not a store of durable runs but the local store of telemetry.*pellucid view"
    ):
        anyio.run(open_durable, path)
    assert not StoreReader(path).spans("")
    durable = path.with_name("durable.db")
    anyio.run(open_durable, durable)
    for use in (lambda: StoreReader(durable), lambda: storing(durable).__enter__()):
        with pytest.raises(ConfigError, match=r"a store of durable runs, which `pellucid serve --store`"):
            use()
    anyio.run(open_durable, durable)


def test_a_store_of_an_older_version_is_migrated(path: Path) -> None:
    """A store of an older version is migrated with its rows by the first of several readers, while the others wait."""
    path.parent.mkdir()
    digest = "00112233445566778899aabbccddeeff"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO hub_minutes VALUES (1, 'rube', 'miss', 3, 5, 0, 0, x'')")
        connection.execute(f"INSERT INTO bodies VALUES (x'{digest}', 1, x'789c030000000001')")
    barrier = threading.Barrier(4)

    def read() -> StoreReader:
        barrier.wait()
        return StoreReader(path)

    with ThreadPoolExecutor(4) as threads:
        readers = [each.result(PATIENCE) for each in [threads.submit(read) for _ in range(4)]]
    for reader in readers:
        assert [row.calls for row in reader.hubs(0, 2**62)] == [5]
        assert (reader.runs(), reader.catalogs([digest]), reader.bodies([digest])) == ([], {}, {digest: ""})


@pytest.mark.parametrize("wrong", [{"path": ""}, {"path": ":memory:"}, {"max_age": 0}, {"max_bytes": 10}])
def test_options_that_cannot_work(wrong: dict[str, Any]) -> None:
    """A wrong option raises ConfigError that names it."""
    with pytest.raises(ConfigError, match=r"Local\("):
        Local(**wrong)
