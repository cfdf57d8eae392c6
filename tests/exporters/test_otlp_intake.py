"""Intake of OTLP over HTTP: what is acknowledged is in the store, once, as if it had been recorded there."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pellucid import Agent, ToolCall, semconv, tool
from pellucid.context import Identity
from pellucid.testing import ScriptedModel
from pellucid_commands.receiving import app as intake
from pellucid_commands.receiving.target import ReceivedStore, create_store
from pellucid_exporters import StoreReader
from pellucid_exporters.testing import capture
from support.local_store import storing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid.server import Authenticate
    from pellucid_exporters import Telemetry

pytestmark = pytest.mark.anyio

PROTOBUF, JSON = {"Content-Type": "application/x-protobuf"}, {"Content-Type": "application/json"}


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine. " * 50


async def runs_of_agents(telemetry: Telemetry | None) -> None:
    """Run an agent that asks another one, which has a tool, and one alone."""
    inner = Agent(
        "inner", model=ScriptedModel(ToolCall("look", {"what": "it"}), "so"), tools=[look], telemetry=telemetry
    )
    model = ScriptedModel(ToolCall("inner", {"input": "look"}), "answer")
    await Agent("outer", model=model, tools=[inner.as_tool(description="Ask.")], telemetry=telemetry).run("How is it?")
    await Agent("alone", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")


async def recorded() -> list[ReadableSpan]:
    """Return the spans of runs, with spans of another library around and in them."""
    with capture(fixed=False) as captured:
        tracer = captured.tracer_provider.get_tracer("http")

        @tool
        async def fetch() -> str:
            """Fetch something."""
            with tracer.start_as_current_span("GET", attributes={"n": 1, "list": ["a", "b"]}):
                return "got"

        with tracer.start_as_current_span("POST /ask"):
            await Agent("web", model=ScriptedModel(ToolCall("fetch", {}), "hi"), tools=[fetch]).run("hello")
        await runs_of_agents(None)
        return list(captured.spans)


@asynccontextmanager
async def taking(
    path: Path, authenticate: Authenticate = lambda request: Identity()
) -> AsyncIterator[tuple[ReceivedStore, httpx.AsyncClient]]:
    """Give an intake, and a client of it."""
    create_store(path)
    with closing(ReceivedStore(path, lambda traces, runs: None)) as store:
        transport = httpx.ASGITransport(intake.intake_app(store, authenticate))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield store, client


def body(spans: Sequence[ReadableSpan]) -> bytes:
    """Return the request of some spans."""
    found: bytes = encode_spans(spans).SerializeToString()
    return found


def as_json(spans: Sequence[ReadableSpan]) -> bytes:
    """Return the request of some spans as OTLP's JSON has it, with hexadecimal ids."""
    document = MessageToDict(encode_spans(spans))
    for span in (s for r in document["resourceSpans"] for g in r["scopeSpans"] for s in g["spans"]):
        for item in (span, *span.get("links", ())):
            for name in {"traceId", "spanId", "parentSpanId"} & item.keys():
                item[name] = base64.b64decode(item[name]).hex()
    return json.dumps(document).encode()


def traces(spans: Sequence[ReadableSpan]) -> set[str]:
    """Return the ids of the traces of spans."""
    return {f"{span.context.trace_id:032x}" for span in spans if span.context is not None}


def shapes(path: Path) -> list[tuple[Any, ...]]:
    """Return what the runs of a store are, without ids and times."""
    reader = StoreReader(path)
    rows = {row.run_id: row for row in reader.runs()}
    return sorted(
        (
            *(row.agent, row.status, row.question, row.answer, row.input_tokens, row.spans, row.tools),
            rows[row.parent_run_id].agent if row.parent_run_id else "",
            [(span.name, dict(span.attributes).keys()) for span in reader.spans(row.run_id)],
        )
        for row in rows.values()
    )


@pytest.mark.parametrize("form", ["protobuf", "json"])
@pytest.mark.parametrize("size", [1, 7, 100])
async def test_spans_are_as_if_they_had_been_recorded_there(tmp_path: Path, form: str, size: int) -> None:
    """Runs, which are nested, and spans of other libraries, in the order in which they end, and each batch twice."""
    spans = await recorded()
    with storing(tmp_path / "own.db") as telemetry:
        await runs_of_agents(telemetry)
    async with taking(tmp_path / "otlp.db") as (store, client):
        for start in range(0, len(spans), size):
            batch = spans[start : start + size]
            content, headers = (body(batch), PROTOBUF) if form == "protobuf" else (as_json(batch), JSON)
            for sent, more in ((content, {}), (gzip.compress(content), {"Content-Encoding": "gzip"})):
                answer = await client.post("/v1/traces", content=sent, headers=headers | more)
                assert (answer.status_code, answer.headers["content-type"]) == (200, headers["Content-Type"])
                assert answer.content == (b"" if form == "protobuf" else b"{}")
        store.place(traces(spans))
    found = [shape for shape in shapes(tmp_path / "otlp.db") if shape[0] != "web"]
    assert found == shapes(tmp_path / "own.db")
    reader = StoreReader(tmp_path / "otlp.db")
    [web] = reader.runs(agent="web")
    assert sorted(span.name for span in reader.spans(web.run_id)) == sorted(
        span.name for span in spans if span.context and f"{span.context.trace_id:032x}" == web.trace_id
    )
    assert web.spans == len(reader.spans(web.run_id))
    [inside] = [span for span in reader.spans(web.run_id) if span.name == "GET"]
    assert inside.attributes == {"n": 1, "list": ["a", "b"]}
    assert reader.spans("") == []


async def test_a_run_is_under_way_while_its_service_sends(tmp_path: Path) -> None:
    """Its end has not arrived, and may arrive after the intake was started again."""
    spans = [span for span in await recorded() if (span.attributes or {}).get(semconv.AGENT_NAME) == "alone"]
    for batch, expected in ((spans[:-1], "running"), (spans[-1:], "completed")):
        async with taking(tmp_path / "t.db") as (_, client):
            assert (await client.post("/v1/traces", content=body(batch), headers=PROTOBUF)).status_code == 200
            [row] = StoreReader(tmp_path / "t.db").runs()
            assert (row.agent, row.status) == ("alone", expected)


async def test_scores_are_kept_once_and_other_records_rejected(tmp_path: Path) -> None:
    """A score belongs to the run of its trace, also if it comes before it."""
    spans = [span for span in await recorded() if (span.attributes or {}).get(semconv.AGENT_NAME) == "alone"]
    assert spans[0].context is not None
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for name, value in (("correct", 0.5), ("correct", 0.5), ("polite", 1), ("", 1)):
        record = records.add(event_name="gen_ai.evaluation.result", time_unix_nano=5, observed_time_unix_nano=6)
        record.trace_id = spans[0].context.trace_id.to_bytes(16)
        record.attributes.add(key="gen_ai.evaluation.name").value.string_value = name
        record.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = value
        record.attributes.add(key="gen_ai.evaluation.explanation").value.string_value = "so"
    records.add(event_name="other", trace_id=spans[0].context.trace_id.to_bytes(16))
    async with taking(tmp_path / "t.db") as (_, client):
        for content in (request.SerializeToString(),) * 2:
            answer = await client.post("/v1/logs", content=content, headers=PROTOBUF)
            partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
            assert (answer.status_code, partial.rejected_log_records) == (200, 2)
            assert "only scores" in partial.error_message
            assert (await client.post("/v1/traces", content=body(spans), headers=PROTOBUF)).status_code == 200
    reader = StoreReader(tmp_path / "t.db")
    [row] = reader.runs()
    scores = [(score.name, score.value, score.explanation) for score in reader.scores(row.run_id)]
    assert sorted(scores) == [("correct", 0.5, "so"), ("polite", 1, "so")]


async def test_what_is_rejected_is_said(tmp_path: Path) -> None:
    """Spans without ids and metrics, with their number; the rest of the request is taken."""
    spans = await recorded()
    request = encode_spans(spans)
    bad = request.resource_spans[0].scope_spans[0].spans
    bad.add(name="no ids"), bad.add(name="late", trace_id=b"1" * 16, span_id=b"2" * 8, end_time_unix_nano=2**64 - 1)
    points = ExportMetricsServiceRequest()
    metric = points.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.sum.data_points.add(), metric.sum.data_points.add()
    async with taking(tmp_path / "t.db") as (_, client):
        answer = await client.post("/v1/traces", content=request.SerializeToString(), headers=PROTOBUF)
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (partial.rejected_spans, partial.error_message) == (2, "spans without valid ids or times")
        answer = await client.post("/v1/metrics", content=points.SerializeToString(), headers=PROTOBUF)
        dropped = ExportMetricsServiceResponse.FromString(answer.content).partial_success
        assert (dropped.rejected_data_points, dropped.error_message) == (2, "metrics are not kept here")
    assert len(StoreReader(tmp_path / "t.db").runs()) == 4


BOMB = gzip.compress(bytes(intake.MOST_BYTES + 1), mtime=0)


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"\xff" * 20, PROTOBUF, 400),
        (b"[]", JSON, 400),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', JSON, 400),
        (b"{" * 100_000, JSON, 400),
        (b'{"resourceSpans": ' + b"[" * 100_000, JSON, 400),
        (b"not gzip", PROTOBUF | {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], PROTOBUF | {"Content-Encoding": "gzip"}, 400),
        (b"", {"Content-Type": "text/plain"}, 415),
        (b"", {}, 415),
        (b"", PROTOBUF | {"Content-Encoding": "zstd"}, 415),
        (BOMB, PROTOBUF | {"Content-Encoding": "gzip"}, 413),
        (bytes(intake.MOST_BYTES + 1), PROTOBUF, 413),
    ],
    ids=[
        "not protobuf",
        "a list",
        "an invalid id",
        "half a document",
        "deep",
        "not gzip",
        "half of gzip",
        "text",
        "no type",
        "zstd",
        "large when unpacked",
        "large",
    ],
)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream")  # the client's
async def test_a_request_that_is_none_is_refused(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int
) -> None:
    """With the status that the protocol has for it, and a message in the form of the request."""
    async with taking(tmp_path / "t.db") as (_, client):
        answer = await client.post("/v1/traces", content=content, headers=headers)
        assert answer.status_code == status
        if headers.get("Content-Type") == "application/json":
            assert answer.json()["message"]
        else:
            assert Status.FromString(answer.content).message
        assert (await client.get("/v1/traces")).status_code == 405
    assert StoreReader(tmp_path / "t.db").runs() == []


async def test_callers_without_the_token_are_refused(tmp_path: Path) -> None:
    """Nothing is read of them."""
    async with taking(tmp_path / "t.db", lambda request: None) as (_, client):
        answer = await client.post("/v1/traces", content=b"\xff", headers=PROTOBUF)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_store_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The sender is told to, and what it sends again is there once."""
    spans = await recorded()
    failures: list[Exception] = [OSError("disk full"), sqlite3.OperationalError("database is locked")]

    def arriving(traces: object, runs: object) -> None:
        if failures:
            raise failures.pop()

    create_store(tmp_path / "t.db")
    with closing(ReceivedStore(tmp_path / "t.db", arriving)) as store:
        app = intake.intake_app(store, lambda request: Identity())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for expected in (503, 503, 200, 200):
                answer = await client.post("/v1/traces", content=body(spans), headers=PROTOBUF)
                assert (answer.status_code, answer.headers.get("retry-after")) == (
                    expected,
                    "1" if expected != 200 else None,
                )
        store.place(traces(spans))
    reader = StoreReader(tmp_path / "t.db")
    assert sum(row.spans for row in reader.runs()) == len(spans)


async def test_more_requests_than_can_be_taken_are_to_come_again(tmp_path: Path) -> None:
    """At once: memory is bounded."""
    spans = await recorded()
    answers: list[int] = []
    content, complete = body(spans), anyio.Event()
    async with taking(tmp_path / "t.db") as (store, client):

        async def parts() -> AsyncIterator[bytes]:
            yield content
            await complete.wait()

        async def send(chunks: bytes | AsyncIterator[bytes]) -> None:
            answer = await client.post("/v1/traces", content=chunks, headers=PROTOBUF)
            answers.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(intake.MOST_REQUESTS):
                tasks.start_soon(send, parts())
            await anyio.wait_all_tasks_blocked()
            await send(content)
            assert answers == [503]
            complete.set()
        store.place(traces(spans))
    assert answers == [503] + [200] * intake.MOST_REQUESTS
    assert sum(row.spans for row in StoreReader(tmp_path / "t.db").runs()) == len(spans)
