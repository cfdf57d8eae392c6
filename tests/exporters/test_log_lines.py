"""Log lines of an application in the local store, and where they show."""

from __future__ import annotations

import contextvars
import json
import logging
import sqlite3
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2 as httpx
import pytest
import structlog
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from pyarrow import parquet

from pellucid import Agent, CapturePolicy, TelemetryOptions, ToolCall, semconv, tool
from pellucid.cli import Command
from pellucid.testing import ScriptedModel
from pellucid_commands.inspection.show import COMMAND as SHOW
from pellucid_commands.store.command import COMMAND as STORE
from pellucid_exporters import LogHandler, StoreReader, Telemetry, spool
from pellucid_exporters.local import writer
from pellucid_exporters.local.maintenance import statistics
from pellucid_exporters.stored.log_lines import LogLineRow
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import counted, emit, eventually, storing

pytestmark = pytest.mark.anyio

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"

log = logging.getLogger("shop")


@contextmanager
def logged(path: Path, name: str = "shop", *, is_named: bool = True, **settings: Any) -> Iterator[Telemetry]:
    """Give telemetry that writes to a store, with the lines of a logger."""
    logger = logging.getLogger(name)
    with storing(path, **settings) as telemetry:
        handler, before = LogHandler(telemetry=telemetry if is_named else None), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        try:
            yield telemetry
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
            logger.propagate = True


@contextmanager
def running(telemetry: Telemetry, run_id: str = "7" * 32) -> Iterator[None]:
    """Make the span of a run current."""
    facts = {semconv.RUN_ID: run_id, semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "shop"}
    with telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_as_current_span("run", attributes=facts):
        yield


@tool
def price(item: str) -> str:
    """Look up a price, in a thread."""
    log.warning("the price list of %s is stale", item, extra={"shop": 17, "api_key": "plain", "age": {"days": 3}})
    try:
        int(f"no price, {SECRET}")
    except ValueError:
        log.exception("looked in vain with %s", SECRET)
    return "3 euros"


@tool
async def stock(item: str) -> str:
    """Count what is there, and write a line in a span of another library, and one in a thread of its own."""
    log.info("counting")
    with trace.get_tracer("another").start_as_current_span("GET /stock"):
        log.debug("asking the warehouse")
    context = contextvars.copy_context()
    for run in (lambda: log.info("without a span"), lambda: context.run(log.info, "with the span")):
        thread = threading.Thread(target=run)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    return "none"


async def shop(telemetry: Telemetry | TelemetryOptions, **options: Any) -> str:
    """Run an agent that calls both tools; return the id of the run."""
    calls = [ToolCall("price", {"item": "tea"}), ToolCall("stock", {"item": "tea"})]
    agent = Agent("shop", model=ScriptedModel(calls, "done"), tools=[price, stock], telemetry=telemetry, **options)
    return (await agent.run("What is tea?")).run_id


def lines_of(path: Path, run_id: str) -> dict[str, LogLineRow]:
    """Return the lines of a run by their texts."""
    window = StoreReader(path).log_lines(run_id)
    assert window.total == window.last == len(window.rows)
    return {row.body or "": row for row in window.rows}


def content_of(path: Path) -> bytes:
    """Return all that is in the files of a store."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT content FROM log_lines UNION ALL SELECT content FROM bodies").fetchall()
    return b"".join(row[0] for row in found)


def fill(path: Path, run_id: str, number: int, *, before: bool = False) -> None:
    """Add lines after, or before, those that a run has, in the span of its first one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (key,) = connection.execute("SELECT key FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        span, first, last = connection.execute(
            "SELECT span_id, min(time), max(time) FROM log_lines WHERE run = ?", (key,)
        ).fetchone()
        start = first - number - 1 if before else last + 1
        lines = (
            (key, span, start + each, 1, 100 + each, 9, json.dumps({"logger": "filled", "body": f"line {each}"}))
            for each in range(1, number + 1)
        )
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO log_lines VALUES (?, ?, ?, ?, ?, ?, ?)", lines)
        connection.execute("COMMIT")


def command(which: Command, *arguments: str) -> int:
    """Run a command with arguments; return the exit code."""
    parser = ArgumentParser()
    which.add_arguments(parser)
    return which.run(parser.parse_args(arguments))


def client(path: Path) -> httpx.AsyncClient:
    """Return a client of the pages of a store."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path)))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


async def test_lines_are_those_of_the_spans_in_which_they_were_written(tmp_path: Path) -> None:
    """Of tools in threads and coroutines, with values, exceptions and masked secrets; not Pellucid's own, nor twice."""
    path = tmp_path / "store.db"
    with logged(path, "", is_named=False) as telemetry:
        run_id = await shop(telemetry)
        log.warning("outside of any span")
    reader, lines = StoreReader(path), lines_of(path, run_id)
    spans = {span.span_id: span for span in reader.spans(run_id)}
    assert {body: spans[line.span_id].name for body, line in lines.items() if line.logger == "shop"} == {
        "the price list of tea is stale": "execute_tool price",
        "looked in vain with [redacted]": "execute_tool price",
        "counting": "execute_tool stock",
        "asking the warehouse": "execute_tool stock",  # the span of another provider is not in the store
        "with the span": "execute_tool stock",
    }
    assert {line.logger.partition(".")[0] for line in lines.values()} <= {"shop", "asyncio"}
    stale, vain = lines["the price list of tea is stale"], lines["looked in vain with [redacted]"]
    assert (stale.severity, stale.level, stale.word, stale.place) == (13, "WARNING", "warning", stale.place)
    assert stale.facts == {"shop": 17, "api_key": "[redacted]", "age": {"days": 3}}
    assert stale.place.startswith("test_log_lines.py:")
    assert spans[stale.span_id].start <= stale.time <= (spans[stale.span_id].end or 0)
    assert (vain.severity, vain.attributes["exception.type"]) == (17, "builtins.ValueError")
    assert vain.error == "ValueError: invalid literal for int() with base 10: 'no price, [redacted]'"
    assert "in price" in vain.attributes["exception.stacktrace"]
    assert SECRET.encode() not in content_of(path)
    assert (counts := reader.log_line_counts(run_id)).warnings == counts.errors == 1
    assert reader.log_lines(run_id, stale.span_id).rows == (found := [stale, vain])
    assert reader.log_lines(run_id, stale.span_id, last=1).rows == found[:1]
    assert reader.log_lines("no run").total == reader.log_lines(run_id, "no id").total == 0


@pytest.mark.parametrize("mode", ["metadata", "off"])
@pytest.mark.parametrize("is_own", [True, False])
async def test_no_text_without_content(tmp_path: Path, mode: Any, is_own: bool) -> None:
    """Of the process, or of one agent: time, level, logger, place and type of the exception only."""
    path, policy = tmp_path / "store.db", CapturePolicy(mode)
    with logged(path, capture=None if is_own else policy) as telemetry:
        own = TelemetryOptions(tracer_provider=telemetry.tracer_provider, listeners=telemetry.listeners, capture=policy)
        run_id = await shop(own if is_own else telemetry)
    found = StoreReader(path).log_lines(run_id).rows
    assert len(found) == 5
    assert {(line.logger, line.body) for line in found} == {("shop", None)}
    kept = {"code.file.path", "code.line.number", "code.function.name", "exception.type"}
    assert set().union(*(line.attributes for line in found)) == kept
    for text in (b"stale", b"vain", b"days", b"no price"):
        assert text not in content_of(path)


def test_any_bridge_to_opentelemetry_writes_to_the_store(tmp_path: Path) -> None:
    """Records of sampled spans that belong to a run, with values of any type, but not those of boundaries."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        assert telemetry.logger_provider is not None
        logger = telemetry.logger_provider.get_logger("bridged")
        own = telemetry.logger_provider.get_logger(semconv.SCOPE)
        with running(telemetry):
            logger.emit(
                timestamp=time.time_ns(),
                severity_number=SeverityNumber.WARN2,
                severity_text="NOTICE",
                body={"password": "hunter2", "items": [1, None]},
                attributes={"exception.type": "E", "exception.message": "went wrong", "large": "x" * 5_000},
                event_name="stocktaking",
            )
            logger.emit(body=f"key {SECRET} " + "y" * 50_000)
            own.emit(body="a boundary")
        context = trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False)))
        logger.emit(body="not sampled", context=context)
        with telemetry.tracer_provider.get_tracer("another").start_as_current_span("of no run"):
            logger.emit(body="of no run")
        assert telemetry.flush()
        assert (counted(telemetry, "errors"), counted(telemetry, "dropped")) == (0, 0)
    first, second = StoreReader(path).log_lines("7" * 32).rows
    assert (first.level, first.severity, first.error) == ("NOTICE", 14, "went wrong")
    assert json.loads(first.body or "") == {"password": "[redacted]", "items": [1, None]}
    assert first.facts == {"large": "x" * 5_000, "event.name": "stocktaking"}
    assert (second.body or "").startswith("key [redacted] yyy")
    assert "more characters]" in (second.body or "")
    assert len(second.body or "") < 20_000
    assert statistics(path)["log_lines"] == 2


def test_structlog_through_the_standard_library(tmp_path: Path) -> None:
    """Its events are texts, its values attributes, whether it renders them itself or leaves that to handlers."""
    path = tmp_path / "store.db"
    factory = structlog.stdlib.LoggerFactory()
    with logged(path, "of.structlog") as telemetry, running(telemetry):
        for last in (structlog.stdlib.render_to_log_kwargs, structlog.stdlib.ProcessorFormatter.wrap_for_formatter):
            logger: Any = structlog.wrap_logger(
                factory("of.structlog"), processors=[last], wrapper_class=structlog.stdlib.BoundLogger
            )
            try:
                int("tea")
            except ValueError:
                logger.error("no price", item="tea", exc_info=True)  # noqa: G201  (structlog renders it otherwise)
    found = StoreReader(path).log_lines("7" * 32).rows
    assert [(line.body, line.facts, line.attributes["exception.type"]) for line in found] == [
        ("no price", {"item": "tea"}, "builtins.ValueError")
    ] * 2


def test_what_goes_wrong_stays_here(tmp_path: Path) -> None:
    """Lines that cannot be formatted, redactors that log or raise: nothing is raised, or recurses."""
    path = tmp_path / "store.db"

    def hostile(path: Any, value: Any) -> Any:
        log.error("redacting %r", value)
        if value == "refuse":
            raise RuntimeError("no")
        return value

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with logged(path, capture=CapturePolicy(redactors=[hostile])) as telemetry:
        with running(telemetry):
            log.error("two %s %s", *["argument"])
            log.error(Unprintable())
            log.error("fine", extra={"what": Unprintable(), "self": log})
            log.error("refuse")
            log.handle(logging.makeLogRecord({"msg": "before time", "created": -1.0, "levelno": 20, "name": "shop"}))
            log.error("half \ud800 a pair \0")
        assert telemetry.flush()
        assert counted(telemetry, "errors") == 3
    found = StoreReader(path).log_lines("7" * 32).rows
    assert [line.body for line in found] == ["fine", None, "half \N{REPLACEMENT CHARACTER} a pair \0"]


def test_a_flood_of_lines_leaves_room_for_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines fill half of the queue; more are dropped and counted, and no span is lost."""
    path = tmp_path / "store.db"
    monkeypatch.setattr(spool, "MOST_WAITING", 1_000)
    monkeypatch.setattr(writer, "MOST_RECORDS", 100)  # the span of the run is written after its first lines
    with logged(path) as telemetry:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with running(telemetry):
                for number in range(2_000):
                    log.info("line %d", number)
            emit(telemetry, *map(str, range(200)))
            other.execute("ROLLBACK")
        assert eventually(lambda: telemetry.flush(10))
        dropped = counted(telemetry, "dropped")
    reader = StoreReader(path)
    assert (len(reader.spans("")), len(reader.spans("7" * 32))) == (200, 1)
    assert reader.log_lines("7" * 32).total == 2_000 - dropped <= 500


def test_lines_go_with_their_run(tmp_path: Path) -> None:
    """By retention in steps, and by a writer of the version before, which deletes runs only."""
    path = tmp_path / "store.db"
    with logged(path) as telemetry:
        for name in ("a", "b", "c"):
            with running(telemetry, name):
                log.info("of %s", name)
    fill(path, "b", 10_000)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM runs WHERE run_id = 'a'")
        connection.execute("UPDATE runs SET last = 1 WHERE run_id = 'b'")
    assert statistics(path)["log_lines"] == 10_002
    assert command(STORE, "compact", "--store", str(path), "--max-age", "30") == 0
    assert (statistics(path)["log_lines"], [row.body for row in StoreReader(path).log_lines("c").rows]) == (1, ["of c"])


def test_lines_are_exported_and_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each once, as JSON Lines and Parquet; again does no harm."""
    path, copy, file = tmp_path / "store.db", tmp_path / "copy.db", tmp_path / "export.jsonl"
    with logged(path) as telemetry:
        run_id = anyio.run(shop, telemetry)
    fill(path, run_id, 6_000)
    for arguments in (["--output", str(file)], ["--parquet", str(tmp_path / "tables")]):
        assert command(STORE, "export", "--store", str(path), *arguments) == 0
    exported = [line for line in map(json.loads, file.read_text().splitlines()) if line["type"] == "log"]
    assert len(exported) == 6_005
    [table] = tmp_path.glob("tables/logs/day=*/of-runs.parquet")
    rows = parquet.read_table(table).to_pylist()
    assert [row["body"] for row in rows] == [line["body"] for line in exported]
    assert [json.loads(row["attributes"]) for row in rows] == [line["attributes"] for line in exported]
    for source in (file, path, file):
        assert command(STORE, "import", "--store", str(copy), str(source)) == 0
    assert "6,005 log lines imported" in capsys.readouterr().out
    assert StoreReader(copy).log_lines(run_id, limit=10_000) == StoreReader(path).log_lines(run_id, limit=10_000)
    assert StoreReader(copy).log_lines(run_id, last=5) == StoreReader(path).log_lines(run_id, last=5)


async def test_lines_show_in_the_viewer_and_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the page of a span, beside the waterfall, as JSON and Markdown, and in `pellucid show`."""
    path = tmp_path / "store.db"
    with logged(path) as telemetry:
        run_id = await shop(telemetry)
    number = next(span.sequence for span in StoreReader(path).spans(run_id) if span.name == "execute_tool price")
    async with client(path) as http:
        for address in (f"{number}", f"?span={number}", "?side=logs"):
            page = (await http.get(f"/runs/{run_id}/{address}")).text
            for text in (
                "the price list of tea is stale",
                ">warning<",
                "shop=17",
                "ValueError: invalid literal",
            ):
                assert text in page
            assert "Traceback (most recent call last)" in page
            assert "sk-" not in page
            assert (">counting<" in page) is (address == "?side=logs")
        assert '5</a> <small class="bad">1 error</small> <small>1 warning</small>' in page
        document = (await http.get(f"/runs/{run_id}/{number}?format=json")).json()["span"]["log"]
        assert (document["total"], document["lines"][0]["attributes"]["shop"]) == (2, 17)
        assert (await http.get(f"/runs/{run_id}/?format=json")).json()["log"]["total"] == 5
        for address in (f"{number}?format=md", "?format=md"):
            assert "WARNING  shop  the price list of tea is stale" in (await http.get(f"/runs/{run_id}/{address}")).text
    assert command(SHOW, run_id, "--store", str(path), "--logs") == 0
    shown = capsys.readouterr().out
    assert "log       5 lines, 1 error, 1 warning" in shown
    assert f"   {number}  +" in shown
    assert command(SHOW, run_id, "--store", str(path), "--json", "--logs") == 0
    assert json.loads(capsys.readouterr().out)["log"]["total"] == 5
    assert command(SHOW, run_id, "--store", str(path), "--span", str(number)) == 0
    assert "  ERROR  shop  looked in vain with [redacted]  ValueError: invalid" in capsys.readouterr().out


async def test_a_page_shows_a_window_of_many_and_hostile_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of 20,000, with links to those before; hostile and damaged lines are text; no statement scans."""
    path, seen, connect = tmp_path / "store.db", set[str](), sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(seen.add)
        return connection

    with logged(path) as telemetry, running(telemetry):
        log.critical("<script>alert(1)</script>\x1b[31m\u202e", extra={"<b>": "</td><img src=x>"})
        log.info("x" * 30_000)
    fill(path, "7" * 32, 20_000, before=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE log_lines SET content = x'ff7b' WHERE number = 20050")
        connection.execute("UPDATE log_lines SET content = '[1]' WHERE number = 20051")
    monkeypatch.setattr(sqlite3, "connect", traced)
    async with client(path) as http:
        page = (await http.get(f"/runs/{'7' * 32}/0")).text
        assert "showing the last 100 of 20,002 log lines" in page
        assert page.count("its text was not recorded") == 2
        assert "&lt;script&gt;alert(1)&lt;/script&gt;␛[31m⟦U+202E⟧" in page
        assert "<img" not in page
        assert "<script>alert" not in page
        earlier = (await http.get(f"/runs/{'7' * 32}/0?last=300")).text
        assert "showing 201 to 300 of 20,002 log lines" in earlier
        assert ">line 300<" in earlier
        assert ">line 301<" not in earlier
        beside = (await http.get(f"/runs/{'7' * 32}/?span=0")).text
        assert "showing the last 40 of 20,002 log lines" in beside
        assert max(len(page), len(beside)) < 300_000
        assert "showing the last 100 of 20,002" in (await http.get(f"/runs/{'7' * 32}/?side=logs")).text
    monkeypatch.undo()
    with closing(sqlite3.connect(path)) as connection:
        for statement in {each for each in seen if "log_lines" in each}:
            plan = [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert all(detail.startswith("SEARCH log_lines USING") for detail in plan), (statement, plan)
