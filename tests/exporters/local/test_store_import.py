"""`pellucid store import`: other stores, recordings and OTLP in JSON, once, as if they had been written here."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import signal
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from pellucid import Agent, ConfigError, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.errors import StoreError
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.bodies import digests_in, filled
from pellucid_exporters.testing import capture
from support.local_store import emit, storing

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry
    from pellucid_exporters.stored.reader import Recording

pytestmark = pytest.mark.anyio


@tool
async def look(what: str) -> str:
    """Look something up."""
    if what == "nothing":
        raise ValueError("there is nothing")
    return f"{what} is fine. " * 50


async def test_a_store_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store is imported once, with nested runs, spans of others, events, catalogues, hubs and a killed process."""
    source, target = tmp_path / "other.db", tmp_path / "own.db"
    with storing(source) as telemetry:
        await runs_of_agents(telemetry)
        emit(telemetry, "of no run", text="long " * 100)
    killed(source)
    with storing(target, service_name="mine") as telemetry:
        await Agent("own", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")
    own = state(StoreReader(target))
    assert store("import", str(source), "--store", str(target)) == 0
    assert ": 4 runs, " in capsys.readouterr().out
    imported, other = state(StoreReader(target)), state(StoreReader(source))
    assert {**own, **other} == imported
    assert imported["killed"]["run"]["status"] == "interrupted"
    assert hubs(target) == hubs(source)
    assert store("import", str(source), "--store", str(target)) == 0
    assert ": 0 runs, 0 spans and 0 events imported" in capsys.readouterr().out
    assert state(StoreReader(target)) == imported
    assert hubs(target) == hubs(source)


async def test_an_export_is_imported(tmp_path: Path) -> None:
    """An export of a store is imported as a store with the same runs, spans, events and catalogues."""
    source, file, target = tmp_path / "other.db", tmp_path / "export.jsonl", tmp_path / "new" / "own.db"
    with storing(source) as telemetry:
        await runs_of_agents(telemetry)
    assert store("export", "--store", str(source), "--output", str(file)) == 0
    assert store("import", str(file), "--store", str(target)) == 0
    assert state(StoreReader(target)) == state(StoreReader(source))
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lines", [True, False])
async def test_otlp_in_json_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, lines: bool) -> None:
    """OTLP in JSON is imported as one document or as lines; a span of another library belongs to the run around it."""
    source, target, file = tmp_path / "other.db", tmp_path / "own.db", tmp_path / "spans.json"
    with storing(source) as telemetry:
        await runs_of_agents(telemetry)
    with capture(fixed=False) as captured:
        await runs_of_agents(None)
    spans = list(captured.spans)
    batches = [spans[:10], spans[10:]] if lines else [spans]
    documents = [with_hexadecimal_ids(MessageToDict(encode_spans(batch))) for batch in batches]
    file.write_text("\n".join(map(json.dumps, documents)) if lines else json.dumps(documents[0], indent=2))
    for number in (3, 0):
        assert store("import", str(file), "--store", str(target)) == 0
        assert f": {number} runs, " in capsys.readouterr().out
    shapes = [
        sorted(
            (run.agent, run.status, run.parent_run_id is not None, [s.name for s in reader.spans(run.run_id)])
            for run in reader.runs()
        )
        for reader in (StoreReader(source), StoreReader(target))
    ]
    assert shapes[0] == shapes[1]
    [root] = [span for span in spans if span.attributes.get(semconv.AGENT_NAME) == "outer" and span.parent is None]
    imported = StoreReader(target).run(str(root.attributes[semconv.RUN_ID]))
    assert imported is not None
    assert imported.end == root.end_time


async def test_log_records_in_json_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines and scores in OTLP JSON are imported once if their run is known; other records are counted."""
    target, spans, logs = tmp_path / "own.db", tmp_path / "spans.json", tmp_path / "logs.json"
    with capture(fixed=False) as captured:
        run = await Agent("a", model=ScriptedModel("hi")).run("hello")
    spans.write_text(json.dumps(with_hexadecimal_ids(MessageToDict(encode_spans(captured.spans)))))
    ids = {"traceId": run.trace_id, "spanId": f"{captured.spans[0].context.span_id:016x}"}
    line = {**ids, "timeUnixNano": "1700000000000000001", "severityNumber": 17, "severityText": "ERROR"}
    score = [("gen_ai.evaluation.name", "polite"), ("gen_ai.evaluation.score.value", 0.5)]
    records: list[dict[str, Any]] = [
        {**line, "body": {"stringValue": "long " * 1_000}, "attributes": attributes(("order", 7))},
        {**line, "body": {"kvlistValue": {"values": attributes(("a", "b"))}}, "eventName": "app.event"},
        {**ids, "timeUnixNano": "1", "eventName": "gen_ai.evaluation.result", "attributes": attributes(*score)},
        {**line, "traceId": "1" * 32},
        {"timeUnixNano": "1", "body": {"stringValue": "outside of a run"}},
    ]
    documents = [
        {"resourceMetrics": []},
        *(log_document("app.orders", record) for record in records),
        log_document("pellucid.run", {**line, "body": {"stringValue": "run ended"}}),
    ]
    logs.write_text("\n".join(map(json.dumps, documents)))
    assert store("import", str(spans), str(logs), "--store", str(target)) == 0
    shown = capsys.readouterr().out
    assert "logs.json: 0 runs, 0 spans and 1 events imported" in shown
    assert "logs.json: 2 log lines imported" in shown
    assert (
        "logs.json: 3 log records are left out: they belong to no run in the store, or repeat what spans say" in shown
    )
    reader = StoreReader(target)
    rows = {row.attributes.get("event.name"): row for row in reader.log_lines(run.run_id).rows}
    assert (rows[None].body, rows[None].attributes, rows[None].level) == ("long " * 1_000, {"order": 7}, "ERROR")
    assert (rows["app.event"].body, rows["app.event"].logger) == ('{"a":"b"}', "app.orders")
    assert [(found.name, found.value) for found in reader.scores(run.run_id)] == [("polite", 0.5)]
    assert store("import", str(logs), "--store", str(target)) == 0
    assert "logs.json: 3 spans, events and log lines were there already" in capsys.readouterr().out
    assert len(reader.log_lines(run.run_id).rows) == 2
    assert len(reader.scores(run.run_id)) == 1


def attributes(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    """Return attributes of OTLP in JSON."""
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [{"key": name, "value": {kinds[type(value)]: value}} for name, value in pairs]


def log_document(logger: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a document with a log record of a logger."""
    scoped = {"scope": {"name": logger}, "logRecords": [record]}
    return {"resourceLogs": [{"resource": {"attributes": attributes(("service.name", "shop"))}, "scopeLogs": [scoped]}]}


def with_hexadecimal_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose ids are as OTLP has them in JSON; in place."""
    for span in (s for r in document["resourceSpans"] for g in r["scopeSpans"] for s in g["spans"]):
        for item in (span, *span.get("links", ())):
            for name in {"traceId", "spanId", "parentSpanId"} & item.keys():
                item[name] = base64.b64decode(item[name]).hex()
    return document


def test_what_is_nothing_of_these_is_refused(tmp_path: Path) -> None:
    """Another database, other text, broken OTLP, the store itself, and a missing file are refused by name."""
    target, other = tmp_path / "own.db", tmp_path / "other"
    with storing(target) as telemetry:
        emit(telemetry, "mine")
    for content in ("hello", '{"type": "nothing"}', "[]", '{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}'):
        other.write_text(content)
        with pytest.raises(ConfigError, match="other"):
            store("import", str(other), "--store", str(target))
    with pytest.raises(ConfigError, match="that is the store itself"):
        store("import", str(target), "--store", str(target))
    with pytest.raises(ConfigError, match="No such file"):
        store("import", str(tmp_path / "missing"), "--store", str(target))
    other.write_bytes(b"SQLite format 3\0" + b"\1" * 100)
    with pytest.raises(StoreError, match="other"):
        store("import", str(other), "--store", str(target))
    assert [span.name for span in StoreReader(target).spans("")] == ["mine"]


async def runs_of_agents(telemetry: Telemetry | None) -> None:
    """Run an agent that asks another one, with a tool that fails, and one alone."""
    hub = DiscoveryProvider(FakeHub([look]), id="hub", ttl=0, objective=0.2)
    calls = [ToolCall("look", {"what": what}) for what in ("weather", "nothing")]
    inner = Agent("inner", model=ScriptedModel(calls, "inner answer"), providers=[hub], telemetry=telemetry)
    model = ScriptedModel(ToolCall("inner", {"input": "look"}), "answer")
    await Agent("outer", model=model, tools=[inner.as_tool(description="Ask.")], telemetry=telemetry).run(
        "How is it? " * 100
    )
    await Agent("alone", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")


def killed(path: Path) -> None:
    """Begin a run in a process that is killed."""
    child = os.fork()
    if not child:
        with storing(path, service_name="crashing") as telemetry:
            tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
            facts = {semconv.RUN_ID: "killed", semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "crash"}
            tracer.start_span("invoke_agent crash", attributes=facts)
            telemetry.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def state(reader: Recording) -> dict[str, Any]:
    """Return everything about the runs of a store by their ids, with large texts in place."""
    found: dict[str, Any] = {}
    for run_id, run in [("", None), *((run.run_id, run) for run in reader.runs())]:
        spans = reader.spans(run_id)
        rows = [*map(dataclasses.asdict, spans), *map(dataclasses.asdict, reader.events(run_id))]
        digests = {str(span.attributes.get(semconv.CATALOG_DIGEST)) for span in spans}
        found[run_id] = {
            "run": dataclasses.asdict(run) if run is not None else None,
            "rows": filled(rows, reader.bodies(set(digests_in(rows)))),
            "catalogs": reader.catalogs(digests),
        }
    return found


def hubs(path: Path) -> list[dict[str, Any]]:
    """Return the figures of the hubs."""
    return [dataclasses.asdict(hub) for hub in StoreReader(path).hubs(0, 2**62)]


def store(*arguments: str) -> int:
    """Run `pellucid store`."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(arguments))
