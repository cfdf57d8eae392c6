"""Pages and commands on the tools that a model call got, if the definitions are too large for a span."""

from __future__ import annotations

import json
import sqlite3
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2 as httpx
import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    Context,
    DiscoveryProvider,
    Limits,
    Message,
    ModelRequest,
    Tool,
    ToolCall,
    semconv,
    tool,
)
from pellucid.errors import ModelError
from pellucid.models import FallbackModel
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_commands.inspection import show
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.offers import tool_offers
from pellucid_exporters.stored.rows import SpanRow
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing

pytestmark = pytest.mark.anyio


def tools(number: int, size: int, name: str = "tool") -> list[Tool]:
    """Return tools whose definitions have about `size` bytes."""
    description = "It looks up what is asked. " * max(1, (size - 150) // 27)

    async def run(arguments: dict[str, Any], ctx: object) -> str:
        return "found"

    return [Tool(name=f"{name}_{place:04}", description=description, run=run) for place in range(number)]


async def recorded(path: Path, hubs: Sequence[Any], **options: Any) -> tuple[StoreReader, list[SpanRow]]:
    """Run an agent for three iterations; return its store and model calls."""
    calls: list[Any] = [ToolCall("tool_0001", {}), ToolCall("tool_0002", {}), "done"]
    with storing(path, **{key: options.pop(key) for key in ("capture",) if key in options}) as telemetry:
        await Agent("a", model=ScriptedModel(*calls), providers=hubs, telemetry=telemetry, **options).run("x")
    reader = StoreReader(path)
    (run,) = reader.runs()
    return reader, [span for span in reader.spans(run.run_id) if span.phase == semconv.INFERENCE]


def hub(name: str, listed: Sequence[Tool]) -> DiscoveryProvider:
    """Return a hub."""
    return DiscoveryProvider(FakeHub(list(listed)), id=name)


def shown(reader: StoreReader, call: SpanRow, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """Return what `pellucid show --span` prints."""
    capsys.readouterr()
    options = {"json": False, "content": False, **options}
    show.run(Namespace(store=reader._path, run=call.run_id, span=call.sequence, **options))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "size"), [(40, 1_000), (1_000, 200)], ids=["40 tools of 1 kB", "1,000 tools of 200 bytes"]
)
async def test_all_offered_tools_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, size: int
) -> None:
    """All tools that were offered are shown in each iteration; the catalogue has definitions that a span lacks."""
    offered = tools(number, size)
    reader, calls = await recorded(tmp_path / "s.db", [hub("files", offered)])
    content = RunContent(reader, reader.spans(calls[0].run_id))
    held = len(json.loads(content.text(calls[0], semconv.TOOL_DEFINITIONS) or ""))
    assert held < number
    cut = f"definitions cut: {number:,} offered, {held} recorded here"
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        for call in calls:
            offers = tool_offers(content, reader.events(call.run_id), call)
            assert [(offer.name, offer.is_offered, offer.reason) for offer in offers] == [
                (tool.name, True, "") for tool in offered
            ]
            address = f"/runs/{call.run_id}/{call.sequence}"
            page = (await http.get(address)).text
            assert f"{number:,} offered" in page
            assert cut in page
            for word in ("withheld", "not recorded"):
                assert word not in page
            whole = json.loads((await http.get(f"{address}/request")).text)
            assert whole["tools"] == [tool.definition.to_dict() for tool in offered]
            assert all("not_recorded" not in message for message in whole["messages"])
            text = shown(reader, call, capsys)
            assert cut in text
            assert offered[-1].name in text
            assert "not recorded" not in text
            request = json.loads(shown(reader, call, capsys, json=True))["span"]["content"]["request"]
            assert len(request["tools"]) == number
            assert (request["missing"], request["tools_offered"], request["tools_recorded"]) == (0, number, held)


async def test_output_schemas_are_rebuilt(tmp_path: Path) -> None:
    """A definition that comes from a catalogue has its output schema."""
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
    offered = [replace(each, output_schema=schema, on_invalid_output=None) for each in tools(40, 1_000)]
    reader, calls = await recorded(tmp_path / "s.db", [hub("files", offered)])
    content = RunContent(reader, reader.spans(calls[0].run_id))
    assert content.offered(calls[0]).definitions == [each.definition.to_dict() for each in offered]


async def test_tools_of_several_hubs_are_rebuilt(tmp_path: Path) -> None:
    """Tools that a policy denies are withheld, and those of all hubs are in the order in which they were offered."""
    first, second = tools(30, 1_000), tools(30, 1_000, "other")
    denied = {"tool_0007", "other_0003"}

    def policy(request: Any) -> str:
        return "deny" if request.tool_name in denied else "allow"

    reader, calls = await recorded(tmp_path / "s.db", [hub("a", first), hub("b", second)], policy=policy)
    expected = [tool.name for tool in [*first, *second] if tool.name not in denied]
    content = RunContent(reader, reader.spans(calls[0].run_id))
    for call in calls:
        offered = content.offered(call)
        assert [tool["name"] for tool in offered.definitions or ()] == expected
        offers = tool_offers(content, reader.events(call.run_id), call)
        assert {offer.name for offer in offers if not offer.is_offered} == denied


async def test_tools_that_cannot_be_rebuilt_are_not_called_withheld(tmp_path: Path) -> None:
    """Tools whose definitions were cut count as offered if the catalogue is gone, and the page says why."""
    path = tmp_path / "s.db"
    reader, (call, *_) = await recorded(path, [hub("a", tools(40, 1_000))])
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM catalogs")
    connection.close()
    content = RunContent(reader, reader.spans(call.run_id))
    offered = content.offered(call)
    held = offered.recorded
    assert (offered.number, len(offered.definitions or ()), held < 40) == (40, held, True)
    offers = tool_offers(content, reader.events(call.run_id), call)
    assert {offer.is_offered for offer in offers} == {None, True}
    assert sum(offer.is_offered or False for offer in offers) == held
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        page = (await http.get(f"/runs/{call.run_id}/{call.sequence}")).text
        assert f"definitions cut: 40 offered, {held} recorded here" in page
        assert "40 offered" in page
        assert "withheld" not in page
        whole = json.loads((await http.get(f"/runs/{call.run_id}/{call.sequence}/request")).text)
        assert whole["tools"][-1] == {"not_recorded": 40 - held}


async def test_omitted_content_is_named(tmp_path: Path) -> None:
    """A span names the attributes whose messages or items were omitted, and how many of each."""
    capture = CapturePolicy(max_bytes=2_000)
    reader, calls = await recorded(tmp_path / "s.db", [hub("a", tools(10, 1_000))], capture=capture)
    attributes = calls[0].attributes
    assert attributes[semconv.CONTENT_OMITTED] == 8
    assert attributes[semconv.CONTENT_OMITTED_FROM] == [semconv.TOOL_DEFINITIONS]
    assert attributes[semconv.CONTENT_OMITTED_COUNTS] == [8]
    content = RunContent(reader, reader.spans(calls[0].run_id))
    assert [content.request(call).missing for call in calls] == [0, 0, 0]


async def test_a_call_sent_all_messages_before_it(tmp_path: Path) -> None:
    """A call has all messages that were sent before it, also after a failed attempt and with a second model."""
    sent: list[Sequence[Any]] = []

    def answer(request: ModelRequest) -> Any:
        sent.append([message.to_dict() for message in request.messages])
        if len(sent) in {2, 5}:
            raise ModelError("first", "reset", error_kind="unavailable")
        return ToolCall("look", {"word": f"word {len(sent)}"}) if len(sent) < 7 else "done"

    def look(word: str) -> str:
        return f"{word} is a word"

    first, second = FunctionModel(answer, name="first"), FunctionModel(answer, name="second")
    with storing(tmp_path / "s.db", capture=CapturePolicy("full")) as telemetry:
        agent = Agent("a", model=FallbackModel(first, second), tools=[tool(look)], telemetry=telemetry)
        await agent.run("x", history=[Message("user", "a"), Message("assistant", "b")])
    reader = StoreReader(tmp_path / "s.db")
    (run,) = reader.runs()
    spans = reader.spans(run.run_id)
    content, calls = RunContent(reader, spans), [span for span in spans if span.phase == semconv.INFERENCE]
    assert len(calls) == len(sent) == 7
    for call, messages in zip(calls, sent, strict=True):
        assert [message.message for message in content.request(call).messages] == messages


async def test_a_call_of_a_cut_conversation_has_what_was_sent(tmp_path: Path) -> None:
    """A call whose conversation was cut shows the results as the model got them, and so do later calls."""
    sent: list[Sequence[Any]] = []

    def answer(request: ModelRequest) -> Any:
        sent.append([message.to_dict() for message in request.messages])
        return ToolCall("read", {"page": len(sent)}, f"call_{len(sent)}") if len(sent) < 12 else "done"

    @tool
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page}: " + "word " * 800

    with storing(tmp_path / "s.db") as telemetry:
        agent = Agent(
            "a",
            model=FunctionModel(answer),
            tools=[read],
            context=Context(window=10_000),
            limits=Limits(max_iterations=20),
            telemetry=telemetry,
        )
        await agent.run("x")
    assert "[left out: " in str(sent[-1])
    reader = StoreReader(tmp_path / "s.db")
    spans = reader.spans(reader.runs()[0].run_id)
    content, calls = RunContent(reader, spans), [span for span in spans if span.phase == semconv.INFERENCE]
    for call, messages in zip(calls, sent, strict=True):
        assert [message.message for message in content.request(call).messages] == messages


def model_call(number: int, new: Sequence[str], repeats: int = 0, of: int | None = None, **more: Any) -> SpanRow:
    """Return a model call with new messages, that repeats some of those of an earlier call."""
    attributes: dict[str, Any] = {semconv.INPUT_MESSAGES: json.dumps([{"role": "user", "text": text} for text in new])}
    if of is not None:
        attributes |= {semconv.CONTENT_REPEATED: repeats, semconv.CONTENT_RECORDED_ON: f"{of:016x}"}
    return SpanRow(
        run_id="r",
        sequence=number,
        trace_id="t",
        span_id=f"{number:016x}",
        name="chat",
        phase=semconv.INFERENCE,
        start=number,
        status="ok",
        attributes={**attributes, **more},
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([model_call(1, "abc"), model_call(2, "d", 3, of=1)], ["a1", "b1", "c1", "d2 new"]),
        ([model_call(1, "abc"), model_call(2, "d", 2, of=1)], ["a1", "b1", "d2 new"]),
        ([model_call(1, "abc"), model_call(2, "d", 5, of=1)], ["2 missing of 1", "a1", "b1", "c1", "d2 new"]),
        (
            [
                model_call(1, "ab"),
                model_call(2, "x", 2, of=1),
                model_call(3, "cd", 2, of=1),
                model_call(4, "e", 4, of=3),
            ],
            ["a1", "b1", "c3", "d3", "e4 new"],
        ),
        ([model_call(1, "ab"), model_call(2, "c")], ["c2 new"]),
        ([model_call(1, "ab"), model_call(2, "c", 1, of=2)], ["1 missing of 2", "c2 new"]),
        ([model_call(1, "ab"), model_call(2, "c", 2, of=9)], ["2 missing of 2", "c2 new"]),
    ],
    ids=["all", "the first", "more than were recorded", "a branch", "none", "itself", "of a call that is gone"],
)
def test_which_earlier_messages_a_call_sent(calls: Sequence[SpanRow], expected: Sequence[str]) -> None:
    """A call has the messages of the calls that it refers to, in order; those that are gone are counted as missing."""
    request = RunContent(cast("StoreReader", None), calls).request(calls[-1])
    assert [
        f"{message.missing} missing of {message.sequence}"
        if message.message is None
        else f"{message.message['text']}{message.sequence}{' new' * message.is_new}"
        for message in request.messages
    ] == expected
