"""The page of a run: windows of its rows and messages, the critical path, gaps, zoom, and the panel of a span."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import anyio
import httpx2 as httpx
import pytest
from opentelemetry import trace

from pellucid import Agent, Decision, Message, ToolCall, semconv, tool
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader, Telemetry
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.mcp_servers import modern_server
from support.processes import PATIENCE
from support.view_scene import crawl, thousands

RUN = "7" * 32
MS = 1_000_000
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)

pytestmark = pytest.mark.anyio


def client(path: Path, **options: Any) -> httpx.AsyncClient:
    """Return a client of the pages of a store."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path), **options))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", follow_redirects=True)


async def text_of(http: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """Return a page without the entities of quotation marks."""
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


class Elements(HTMLParser):
    """Counts the elements and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements = self.texts = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element."""
        self.elements += 1

    def handle_data(self, data: str) -> None:
        """Count a text."""
        self.texts += bool(data.strip())


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a store with a run of 5,001 spans of a real agent with a long conversation, and the id of the run."""
    path = tmp_path_factory.mktemp("viewer") / "crawled.db"
    with storing(path) as telemetry:
        run_id = anyio.run(crawl, telemetry)
        assert telemetry.flush(PATIENCE)
    return path, run_id


@pytest.fixture
async def http(crawled: tuple[Path, str]) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the pages of the long run."""
    async with client(crawled[0]) as http:
        yield http


@pytest.mark.parametrize(
    "state",
    [
        *("", "?open=all", "?open=all&row=2500", "?side=calls", "?side=events", "?side=configuration", "?span=0"),
        *("?span=2501", "?span=4999", "?span=5000&open=all&from=0.5", "?last=300", "?side=calls&last=77"),
    ],
)
async def test_a_run_of_thousands_of_spans_stays_small(
    http: httpx.AsyncClient, crawled: tuple[Path, str], state: str
) -> None:
    """No state of the page of 5,001 spans and 528 messages has more than 3,000 elements or 600 kB."""
    reader = StoreReader(crawled[0])
    assert len(reader.spans(crawled[1])) == 5_001
    page = await text_of(http, f"/runs/{crawled[1]}/{state}")
    counted = Elements(page)
    assert counted.elements <= 3_000
    assert len(page.encode()) <= 600_000
    assert "Compare the prices of all pages." in page
    assert "All pages are **compared**" in page


@pytest.mark.parametrize("state", ["?open=all", "?span=2500", "?side=calls", "?format=md"])
async def test_a_run_of_thousands_of_spans_takes_little_memory(
    http: httpx.AsyncClient, crawled: tuple[Path, str], state: str
) -> None:
    """A page of 5,001 spans and 2 MB of messages decodes what it shows: it takes at most 9 MB at once."""
    address = f"/runs/{crawled[1]}/{state}"
    await text_of(http, address)  # templates are compiled once
    tracemalloc.start()
    try:
        await text_of(http, address)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 9_000_000


async def test_each_row_is_in_one_window(tmp_path: Path) -> None:
    """The links to later rows lead over all rows, each once, in order; those to earlier rows lead back."""
    with storing(tmp_path / "s.db") as telemetry:
        thousands(telemetry, 1_000)
    async with client(tmp_path / "s.db") as http:
        address, seen, windows = "./?open=all", [], 0
        while address:
            page = await text_of(http, f"/runs/{'5' * 32}/{address[2:]}".replace("&amp;", "&"))
            seen += [int(number) for number in re.findall(r"<a href=\"(\d+)\" class=\"r ", page)]
            windows += 1
            found = re.search(r'rel="next" href="([^"]+)"', page)
            address = found[1] if found else ""
        assert list(dict.fromkeys(seen)) == list(range(1, 1_001))
        assert len(seen) - 1_000 < 150  # the last window is a full one
        back = re.search(r'rel="prev" href="([^"]+)"', page)
        assert back is not None
        assert "rows 801 to 950 of 1,100" in await text_of(
            http, f"/runs/{'5' * 32}/{back[1][2:].replace('&amp;', '&')}"
        )
    assert windows == 8


async def test_iterations_open_by_their_address(http: httpx.AsyncClient, crawled: tuple[Path, str]) -> None:
    """An iteration of a large run is one row, whose link shows its spans, and closes it again."""
    base = f"/runs/{crawled[1]}/"
    page = await text_of(http, base)
    assert 'class="r ' not in page
    assert page.count('class="g"') == 150
    link = re.search(r'<a href="\./([^"#]+)#i2" id="i2"', page)
    assert link is not None
    opened = await text_of(http, base + link[1].replace("&amp;", "&"))
    assert opened.count('class="r ') == 19
    link = re.search(r'<a href="\./([^"#]*)#i2" id="i2" class="g open"', opened)
    assert link is not None
    assert 'class="r ' not in await text_of(http, base + link[1])


async def test_the_conversation_is_windowed(http: httpx.AsyncClient, crawled: tuple[Path, str]) -> None:
    """The page has the last 20 messages; links lead to all the others, and every answer is in one of the windows."""
    base, address, answers = f"/runs/{crawled[1]}/", "./", 0
    page = await text_of(http, base)
    assert "showing the last 20 of 528 messages" in page
    while address:
        page = await text_of(http, base + address[2:].replace("&amp;", "&"))
        answers += page.count('<div class="message assistant">')
        found = re.search(r'<a href="([^"]+)">earlier</a>', page)
        address = found[1] if found else ""
    assert answers == 264


def write(telemetry: Telemetry, *spans: tuple[str, int, int, str | None, dict[str, Any]]) -> None:
    """Write a run of spans: name, start and end in milliseconds, name of the parent, attributes.

    The first one is the run's own.
    """
    tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
    first = time.time_ns() // MS * MS - 600_000 * MS
    made: dict[str | None, trace.Span] = {}
    for name, start, _, parent, attributes in spans:
        context = trace.set_span_in_context(made[parent]) if parent else None
        facts = {semconv.RUN_ID: RUN, semconv.PHASE: semconv.DISPATCH, **attributes}
        made[name] = tracer.start_span(name, context, start_time=first + start * MS, attributes=facts)
    for name, _, end, _, _ in spans:
        made[name].end(first + end * MS)


ROOT = {semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "a", semconv.OUTCOME: semconv.COMPLETED}


def own(end: int) -> tuple[str, int, int, None, dict[str, Any]]:
    """Return the span of a run."""
    return ("invoke_agent a", 0, end, None, ROOT)


def tool_span(name: str, start: int, end: int, parent: str = "invoke_agent a", **more: Any) -> Any:
    """Return the span of a tool call."""
    return (name, start, end, parent, {semconv.ITERATION: 1, **more})


@pytest.mark.parametrize(
    ("spans", "marked", "times"),
    [
        ([own(100), tool_span("one", 0, 60), tool_span("two", 60, 100)], ["one", "two"], {"tools": 100}),
        ([own(100), tool_span("long", 0, 100), tool_span("short", 0, 40)], ["long"], {"tools": 100}),
        (
            [own(100), tool_span("one", 10, 60), tool_span("late", 50, 100)],
            ["late"],
            {"tools": 50, "between spans": 50},
        ),
        (
            [own(100), tool_span("outer", 0, 90), tool_span("inner", 20, 80, "outer")],
            ["outer", "inner"],
            {"tools": 90, "between spans": 10},
        ),
        (
            [own(100), tool_span("outer", 10, 50), tool_span("overrun", 30, 120, "outer")],
            ["outer", "overrun"],
            {"tools": 40, "between spans": 60},
        ),
        ([own(100), tool_span("outlives", 40, 150)], ["outlives"], {"tools": 60, "between spans": 40}),
        ([own(100), tool_span("moment", 50, 50)], [], {"between spans": 100}),
        ([own(100), tool_span("longer", 0, 100), tool_span("shorter", 50, 100)], ["longer"], {"tools": 100}),
    ],
    ids=["in turn", "at once", "overlapping", "nested", "over its parent", "over the run", "a moment", "a tie"],
)
async def test_the_critical_path_is_marked(
    tmp_path: Path, spans: list[Any], marked: list[str], times: dict[str, int]
) -> None:
    """Spans that the run waited for are marked, and the times of the path add up to the duration of the run."""
    with storing(tmp_path / "s.db") as telemetry:
        write(telemetry, *spans)
    async with client(tmp_path / "s.db") as http:
        page = await text_of(http, f"/runs/{RUN}/")
    assert re.findall(r'class="[^"]* k"><b>(\w+)', page) == marked
    shown = re.findall(r'<span class="key \w">([a-z ]+) <b>(\d+) ms</b> (\d+) %', page)
    assert {name: int(time) for name, time, _ in shown} == times
    assert sum(times.values()) == 100
    assert [int(share) for _, _, share in shown] == sorted(times.values(), reverse=True)


@pytest.mark.parametrize("depth", [2_000])
async def test_a_deep_chain_of_spans_is_followed(tmp_path: Path, depth: int) -> None:
    """Spans that are nested thousands of levels deep are shown, and all of them are on the path."""
    with storing(tmp_path / "s.db") as telemetry:
        chain = [tool_span(f"t{n}", n, 3 * depth - n, f"t{n - 1}" if n else "invoke_agent a") for n in range(depth)]
        write(telemetry, own(3 * depth), *chain)
    async with client(tmp_path / "s.db") as http:
        page = await text_of(http, f"/runs/{RUN}/?span={depth}")
    assert page.count(" k") >= 150
    assert f"t{depth - 1}" in page


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({semconv.TOOL_QUEUED: 480.0}, "queueing"),
        ({semconv.APPROVAL_WAITED: 0.48}, "waiting for approval"),
        ({semconv.TOOL_QUEUED: 3.0}, "between spans"),
        ({semconv.APPROVAL_WAITED: "long"}, "between spans"),
    ],
)
async def test_gaps_have_names(tmp_path: Path, attributes: dict[str, Any], name: str) -> None:
    """Time before a tool call, in which the run waited for no span, has a row that says what the call waited for."""
    with storing(tmp_path / "s.db") as telemetry:
        write(telemetry, own(1_000), tool_span("one", 0, 500), tool_span("two", 1_000 - 10, 1_000, **attributes))
    async with client(tmp_path / "s.db") as http:
        page = await text_of(http, f"/runs/{RUN}/")
    rows = re.findall(r'class="r [^"]*"><b>([\w ]+)(?:<em>[^<]+</em>)?</b><i>(\d+ ms)', page)
    assert rows == [("one", "500 ms"), (name, "490 ms"), ("two", "10 ms")]


async def test_waiting_outside_is_named(tmp_path: Path) -> None:
    """Time in the span of an asynchronous call counts as waiting outside of the run."""
    with storing(tmp_path / "s.db") as telemetry:
        waits = tool_span("await_tool pay", 20, 90, **{semconv.PHASE: semconv.AWAIT})
        write(telemetry, own(100), waits)
    async with client(tmp_path / "s.db") as http:
        assert "waiting outside <b>70 ms</b> 70 %" in await text_of(http, f"/runs/{RUN}/")


async def test_a_range_of_time_is_zoomed(tmp_path: Path) -> None:
    """With a range in the address, only the spans within it are rows, and bars are drawn to its scale."""
    with storing(tmp_path / "s.db") as telemetry:
        write(telemetry, own(1_000), tool_span("one", 0, 400), tool_span("two", 450, 500), tool_span("three", 600, 900))
    async with client(tmp_path / "s.db") as http:
        page = await text_of(http, f"/runs/{RUN}/?from=440&to=540")
        assert re.findall(r'class="r t[^"]*"><b>(\w+)', page) == ["two"]
        assert '<rect x="10.0%" width="50.0%"/>' in page
        assert "the whole run" in page
        zoom = re.search(
            r'<a href="\./([^"]+)" aria-label="zoom to iteration 1">', await text_of(http, f"/runs/{RUN}/")
        )
        assert zoom is not None
        assert zoom[1] == "?from=0&amp;to=900"
        for state in ("?from=x", "?to=-1", "?row=1e3", f"?last={'9' * 50}", "?from=inf"):
            await text_of(http, f"/runs/{RUN}/{state}", 400)
        for state in ("?from=5000", "?from=5&to=1", "?row=999999999", "?span=none", "?fold=x,y,<b>&side=<b>&open=<b>"):
            assert "<b>&" not in await text_of(http, f"/runs/{RUN}/{state}")


async def test_waits_of_a_real_run_are_named(tmp_path: Path) -> None:
    """A call that waited for its turn says how long; a run that continues after an approval names the run before."""

    @tool(serial=True)
    async def slow(number: int) -> str:
        """Take a while."""
        await anyio.sleep(0.02)
        return "done"

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    calls = Message("assistant", [ToolCall("slow", {"number": 1}), ToolCall("slow", {"number": 2})])
    with storing(tmp_path / "s.db") as telemetry:
        await Agent("a", model=ScriptedModel(calls, "done"), tools=[slow], telemetry=telemetry).run("x")
        model = ScriptedModel(ToolCall("pay", {"amount": 3}), "done")
        payer = Agent("b", model=model, tools=[pay], telemetry=telemetry)
        waiting = await payer.run("x")
        assert waiting.checkpoint is not None
        await payer.resume(waiting.checkpoint, decisions=[Decision(waiting.approvals[0].approval_id, approved=True)])
    reader = StoreReader(tmp_path / "s.db")
    (resumed, first), (queued,) = reader.runs(agent="b"), reader.runs(agent="a")
    async with client(tmp_path / "s.db") as http:
        assert re.search(
            r"<b>execute_tool slow<em>queued [\d.]+ ms</em>", await text_of(http, f"/runs/{queued.run_id}/")
        )
        page = await text_of(http, f"/runs/{resumed.run_id}/")
        assert f'Continues run <a href="/runs/{first.run_id}/">' in page
        assert re.search(r"after <b>[\d.]+ .s</b> of waiting for approval", page)
        assert re.search(r"<b>execute_tool pay<em>approved after [\d.]+ .s</em>", page)


async def test_a_call_of_an_mcp_server_has_its_request_and_answer(tmp_path: Path) -> None:
    """Also on the span of the MCP SDK below it, which has recorded nothing itself."""
    server = modern_server()
    with storing(tmp_path / "s.db") as telemetry:
        async with MCPProvider.connect(server, id="calculator") as provider:
            model = ScriptedModel(ToolCall("add", {"a": 2, "b": 3}), "five")
            await Agent("a", model=model, providers=[provider], telemetry=telemetry).run("x")
        tracer = telemetry.tracer_provider.get_tracer("mcp-python-sdk")
        spans = StoreReader(tmp_path / "s.db").spans if telemetry.flush(PATIENCE) else None
        assert spans is not None
        run_id = StoreReader(tmp_path / "s.db").runs()[0].run_id
        call = next(span for span in spans(run_id) if span.attributes.get(semconv.TOOL_NAME) == "add")
        parent = trace.NonRecordingSpan(
            trace.SpanContext(int(call.trace_id, 16), int(call.span_id, 16), is_remote=False, trace_flags=SAMPLED)
        )
        sent = {semconv.MCP_METHOD_NAME: "tools/call", semconv.JSONRPC_REQUEST_ID: "5", semconv.RUN_ID: run_id}
        context = trace.set_span_in_context(parent)
        tracer.start_span("MCP send tools/call add", context, start_time=call.start, attributes=sent).end(call.end)
    inner = next(span for span in spans(run_id) if span.name.startswith("MCP send"))
    async with client(tmp_path / "s.db") as http:
        for sequence in (call.sequence, inner.sequence):
            for address in (f"{sequence}", f"?span={sequence}"):
                wire = (await text_of(http, f"/runs/{run_id}/{address}")).partition("On the wire")[2]
                assert "tools/call" in wire
                assert re.search(r"name:</span>.{0,40}add<", wire)
                assert re.search(r"a:</span> <span class=\"j-n\">2</span>", wire)
                assert "5" in re.sub("<[^>]+>", "", wire.partition("Result, as the model got it")[2])[:40]


async def test_runs_of_sub_agents_are_in_their_place(tmp_path: Path) -> None:
    """Their spans are below the call, close with their row, open beside the waterfall, and their faults are listed."""

    @tool
    def look() -> str:
        """Look."""
        raise RuntimeError("the library is closed")

    with storing(tmp_path / "s.db") as telemetry:
        inner = Agent(
            "researcher", model=ScriptedModel(ToolCall("look", {}), "found"), tools=[look], description="Looks."
        )
        model = ScriptedModel(ToolCall("researcher", {"input": "rain"}), "done")
        result = await Agent("lead", model=model, tools=[inner.as_tool()], telemetry=telemetry).run("go")
    reader = StoreReader(tmp_path / "s.db")
    (nested,) = reader.runs(agent="researcher")
    base = f"/runs/{result.run_id}/"
    async with client(tmp_path / "s.db") as http:
        page = await text_of(http, base)
        names = re.findall(r'class="r [^"]+"><b>([\w ]+)', page)
        start = names.index("execute_tool researcher")
        assert names[start + 1] == "run of researcher"
        assert "execute_tool look" in names[start:]
        fault = re.search(r'<li><a class="row" href="(/runs/\w+/(\d+))"><b>execute_tool look', page)
        assert fault is not None
        assert fault[1] == f"/runs/{nested.run_id}/{fault[2]}"
        panel = await text_of(http, f"{base}?span={nested.run_id}/{fault[2]}")
        assert "the library is closed" in panel.partition('class="side"')[2]
        assert 'class="r t d2 x k on"' in panel
        fold = re.search(rf'<a href="\./([^"#]+)#[^"]+" id="{nested.run_id}/0"', page)
        assert fold is not None
        closed = re.findall(r'class="r [^"]+"><b>([\w ]+)', await text_of(http, base + fold[1]))
        assert "run of researcher" in closed
        assert "execute_tool look" not in closed
