"""The pages of the viewer, over stores that agents have written."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import anyio
import httpx2 as httpx
import pytest
from opentelemetry import trace

from pellucid import Agent, DiscoveryProvider, Message, ModelResponse, Tool, ToolCall, Usage, semconv
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.inspection import runs as runs_command
from pellucid_commands.inspection import show
from pellucid_dashboards.grafana.runs_and_models import UID
from pellucid_exporters import StoreReader
from pellucid_exporters.file.reader import FileReader
from pellucid_exporters.options import resolve_file
from pellucid_exporters.stored.nothing import NoTelemetry
from pellucid_exporters.stored.rows import SpanRow
from pellucid_exporters.stored.text import MOST
from pellucid_exporters.viewer import create_viewer_app
from pellucid_exporters.viewer.security import HEADERS
from support.local_store import emit, storing
from support.processes import PATIENCE
from support.view_scene import QUESTION, shop, tell

BASE = "http://127.0.0.1:8000"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def shop_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two runs that complete after a tool failed, and one that fails."""
    path = tmp_path_factory.mktemp("viewer") / "store.db"
    with storing(path) as telemetry:
        anyio.run(shop, telemetry)
        assert telemetry.flush(PATIENCE)
    return path


@pytest.fixture
def path(shop_path: Path, tmp_path: Path) -> Path:
    """Return a copy of the store, for a test that changes it."""
    return Path(shutil.copy(shop_path, tmp_path / "store.db"))


@pytest.fixture
def reader(shop_path: Path) -> StoreReader:
    """Return a reader of the store."""
    return StoreReader(shop_path)


@pytest.fixture
async def http(reader: StoreReader) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the pages."""
    async with client(reader) as http:
        yield http


def client(reader: StoreReader, **options: Any) -> httpx.AsyncClient:
    """Return a client of the pages of a store."""
    transport = httpx.ASGITransport(create_viewer_app(reader, **options))
    return httpx.AsyncClient(transport=transport, base_url=BASE, follow_redirects=True)


def span_path(reader: StoreReader, name: str, number: int = 0) -> str:
    """Return the path of a span of the failed run, which is the newest, by the beginning of its name."""
    return f"/runs/{reader.runs()[0].run_id}/{spans_named(reader, name)[number].sequence}"


def spans_named(reader: StoreReader, name: str) -> list[SpanRow]:
    """Return the spans of the newest run whose names begin with a text."""
    return [span for span in reader.spans(reader.runs()[0].run_id) if span.name.startswith(name)]


async def text_of(http: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """Return a page without the entities of quotation marks."""
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


@pytest.mark.parametrize("page", ["/?window=15m", "/hub?id=help-centre&window=15m"])
async def test_hubs_show_the_slow_one_and_lead_to_a_span(http: httpx.AsyncClient, page: str) -> None:
    """A hub over its objective is called slow; rows and cells of its heatmap lead to a discovery."""
    text = await text_of(http, page)
    assert 'class="badge slow"' in text
    links = re.findall(r'href="(/runs/\w+/span/\w+|/hub/span\?[^"]+)"', text)
    assert any("/hub/span" in link for link in links) == page.startswith("/hub")
    for link in {links[0], links[-1]}:
        assert "discover_tools " in await text_of(http, link.replace("&amp;", "&"))


async def test_short_addresses_lead_to_the_page(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """The beginning of a run's id, the id of a span and a cell of a heatmap are redirected to what they name."""
    span = spans_named(reader, "chat")[0]
    for short in (f"/runs/{span.run_id[:12]}/", f"/runs/{span.run_id[:12]}"):
        assert await led_to(http, short) == f"/runs/{span.run_id}/"
    assert await led_to(http, f"/runs/{span.run_id}/span/{span.span_id}") == f"/runs/{span.run_id}/{span.sequence}"
    cells = re.findall(r'href="(/hub/span\?[^"]+)"', await text_of(http, "/hub?id=help-centre&window=15m"))
    assert cells
    for cell in cells:
        _, _, run_id, sequence = (await led_to(http, cell.replace("&amp;", "&"))).split("/")
        (found,) = (span for span in reader.spans(run_id) if span.sequence == int(sequence))
        assert found.attributes[semconv.PROVIDER_ID] == "help-centre"


async def led_to(http: httpx.AsyncClient, path: str) -> str:
    """Return the path of the page to which an address is redirected."""
    answer = await http.get(path)
    assert answer.history
    assert answer.status_code == 200, answer.text
    return answer.url.path


async def test_changes_of_a_catalogue_are_a_diff(http: httpx.AsyncClient) -> None:
    """The page of a hub says which tools came, and leads to the discovery that listed them."""
    page = await text_of(http, "/hub?id=help-centre&window=15m")
    assert "1 added, 0 removed, 0 changed" in page
    link = re.search(r'class="more">read_article</div></div>\s*<p class="cut"><a href="([^"]+)"', page)
    assert link is not None
    assert "Read an article" in await text_of(http, link.group(1))
    assert "No hub" in await text_of(http, "/hub?id=none", 404)


async def test_hidden_characters_of_a_catalogue_are_shown_escaped(tmp_path: Path) -> None:
    """The page of a hub says which tools have them and since when, and that a catalogue differs in nothing else."""
    texts = iter(["Read.", "<b>Read.\u202e", "<b>Read."])
    hub = DiscoveryProvider(
        FakeHub(lambda call: [Tool(name="read", description=next(texts), run=lambda arguments, ctx: "")]),
        id="files",
        ttl=0,
    )
    with storing(tmp_path / "store.db") as telemetry:
        agent = Agent("a", model=ScriptedModel("done", "done", "done"), providers=[hub], telemetry=telemetry)
        for _ in range(3):
            await agent.run("x")
    async with client(StoreReader(tmp_path / "store.db")) as http:
        page = await text_of(http, "/hub?id=files")
        link = re.search(r'<a href="([^"]+)">read</a>', page)
        assert link is not None
        assert "discover_tools files" in await text_of(http, link.group(1))
    assert r"<div>&lt;b&gt;Read.\u202e</div>" in page
    assert "hidden characters in description, removed for the model" in page
    assert "0 added, 0 removed, 1 changed" in page
    assert page.count("only hidden characters") == 1
    assert "\u202e" not in page


async def test_runs_are_filtered_by_the_url(http: httpx.AsyncClient) -> None:
    """Filters are parameters of the URL; a number that is none is refused."""
    assert (await text_of(http, "/runs")).count('class="badge completed"') == 2
    failed = await text_of(http, "/runs?outcome=failed&agent=support&tool=find_order")
    assert failed.count('class="row"') == 1
    assert "answered 529" in failed
    assert "No run matches" in await text_of(http, "/runs?agent=other&min_duration=5")
    assert "min_cost must be a number" in await text_of(http, "/runs?min_cost=much", 400)


async def test_a_run_says_why_it_failed(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """The question comes first, then the reason, the spans that went wrong, the waterfall and the conversation."""
    page = await text_of(http, f"/runs/{reader.runs()[0].run_id}/")
    texts = (QUESTION, "Why this run failed", "answered 529", "not know parcel", "Waterfall", 'class="messages"')
    places = [page.index(text) for text in texts]
    assert places == sorted(places)


async def test_a_span_that_failed_has_its_stack_trace(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """The stack trace is a large text, which the store keeps apart."""
    page = await text_of(http, span_path(reader, "execute_tool track_parcel"))
    assert "Traceback (most recent call last)" in page
    assert "$body" not in page


async def test_the_waterfall_is_a_tree(tmp_path: Path) -> None:
    """A span comes below its parent, also if another one started in between."""
    run: dict[str, Any] = {semconv.RUN_ID: "2" * 32, semconv.ITERATION: 1, semconv.PHASE: semconv.DISPATCH}
    with storing(tmp_path / "tree.db") as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        parent = tracer.start_span("parent", attributes=run)
        tracer.start_span("other", attributes=run).end()
        tracer.start_span("child", trace.set_span_in_context(parent), attributes=run).end()
        parent.end()
    async with client(StoreReader(tmp_path / "tree.db")) as http:
        page = await text_of(http, f"/runs/{'2' * 32}/")
    assert re.findall(r"<b>(\w+)</b><i>", page) == ["parent", "child", "other"]


async def test_a_model_call_shows_its_whole_request(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """The request of the second call has what only the first one recorded: instructions, tools and messages."""
    path = span_path(reader, "chat", 1)
    page = await text_of(http, path)
    for text in ("model call 2 of 3", "You answer customers", "money back?", "new in this call", "Wool jumper"):
        assert text in page
    request = json.loads((await http.get(f"{path}/request")).text)
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool"]
    assert [tool["name"] for tool in request["tools"]][-1] == "read_article"
    assert request["instructions"][0]["content"].startswith("You answer customers")


@pytest.mark.parametrize("name", ["chat", "compose_request"])
async def test_tools_are_offered_or_withheld_for_a_reason(
    http: httpx.AsyncClient, reader: StoreReader, name: str
) -> None:
    """The page of a request says which tools the model was offered, which not, and why."""
    page = await text_of(http, span_path(reader, name))
    row = r"withheld</span></td><td><b>refund</b>.*the policy says deny: refunds need a signed-in customer</td></tr>"
    assert re.search(row, page)
    assert "<b>find_order</b>" in page


async def test_messages_that_were_not_recorded_are_counted(path: Path, reader: StoreReader) -> None:
    """A request whose earlier spans are gone says how many messages it lacks."""
    first, second = spans_named(reader, "chat")[:2]
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM spans WHERE span_id = ?", (bytes.fromhex(first.span_id),))
    connection.close()
    async with client(StoreReader(path)) as http:
        page = await text_of(http, f"/runs/{second.run_id}/span/{second.span_id}")
    assert "1 message not recorded" in page


async def test_hostile_content_is_text(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """Markup is escaped; control characters and direction marks are named."""
    for page in (span_path(reader, "execute_tool search"), span_path(reader, "chat", 1)):
        text = await text_of(http, page)
        assert "&lt;script&gt;alert('run')&lt;/script&gt;" in text
        assert "⟦U+202E⟧gnp.exe ␛[31m" in text
        assert not {"\u202e", "\x1b"} & set(text)


@pytest.mark.parametrize(
    "value",
    [7, 0.5, True, ["x"], "x", '{"recorded_on": []}', '{"$body": []}', "[1, null]", '[{"parts": [{"type": {}}]}]'],
)
async def test_attributes_of_any_type_are_shown(tmp_path: Path, value: Any) -> None:
    """Tools and other libraries can set any attribute of a span to any type: the pages still show the run."""
    own = ("gen_ai.", "pellucid.", "error.")
    names = {name for name in vars(semconv).values() if isinstance(name, str) and name.startswith(own)}
    facts = dict.fromkeys(sorted(names - {semconv.RUN_ID, semconv.PHASE}), value)
    with storing(tmp_path / "odd.db") as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for run in ("1" * 32, "2" * 32):
            for phase in (semconv.RUN, semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH):
                span = tracer.start_span("x", attributes={**facts, semconv.RUN_ID: run, semconv.PHASE: phase})
                span.add_event("e", {"$body": value})
                span.end()
        emit(telemetry, "other", **{**facts, semconv.RUN_ID: "1" * 32, semconv.PHASE: value})
    run = f"/runs/{'1' * 32}/"
    async with client(StoreReader(tmp_path / "odd.db")) as http:
        pages = ["/", "/runs", "/alerts", run, f"{run}3/request", *(f"{run}{number}" for number in range(6))]
        for page in (*pages, f"/compare?run={'1' * 32}&run={'2' * 32}"):
            await text_of(http, page)


@pytest.mark.parametrize("version", ["1.4.0-<b>", None])
async def test_a_run_has_the_version_of_its_agent(tmp_path: Path, version: str | None) -> None:
    """Beside the name, as text; without one there is nothing."""
    facts = {semconv.RUN_ID: "1" * 32, semconv.PHASE: semconv.RUN}
    with storing(tmp_path / "version.db") as telemetry:
        emit(telemetry, "invoke_agent support", **facts, **({semconv.AGENT_VERSION: version} if version else {}))
    async with client(StoreReader(tmp_path / "version.db")) as http:
        heading = (await text_of(http, f"/runs/{'1' * 32}/")).partition("<h1>")[2].partition("</h1>")[0]
    shown = '<span class="quiet">1.4.0-&lt;b&gt;</span> ' if version else ""
    assert heading.strip().startswith(f'{shown}<code class="quiet">11111111</code>')


async def test_long_text_is_cut_and_linked(tmp_path: Path) -> None:
    """A page shows the beginning of a text of 10 MB; its link returns all of it as plain text."""
    result = "<b>rain</b>\n" * 850_000
    facts: dict[str, Any] = {semconv.PHASE: semconv.DISPATCH, semconv.TOOL_CALL_RESULT: result}
    with storing(tmp_path / "long.db") as telemetry:
        emit(telemetry, "execute_tool weather", **{semconv.RUN_ID: "1" * 32, **facts})
    async with client(StoreReader(tmp_path / "long.db")) as http:
        page = await text_of(http, f"/runs/{'1' * 32}/0")
        link = re.search(r'href="([^"]+)">The whole text', page)
        assert link is not None
        assert len(page) < 100_000
        assert f", {result.count(chr(10), MOST):,} lines more." in page
        answer = await http.get(link.group(1))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == result


async def test_compare_finds_the_first_difference(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """Boundaries that differ only in ids and times are equal; the first one that differs is shown with both sides."""
    failed, completed, signed_in = [run.run_id for run in reader.runs()]
    page = await text_of(http, f"/compare?run={failed}&run={completed}")
    heading = page.index('First difference: <span class="quiet">iteration 3</span> chat gpt-6-luna')
    assert heading < page.index("arrive tomorrow") < page.index("status: failed") < page.index("All differences")
    assert "<h3>tools denied</h3>" in await text_of(http, f"/compare?run={signed_in}&run={completed}")
    assert "No boundary differs" in await text_of(http, f"/compare?run={failed}&run={failed}")
    assert "Choose two runs" in await text_of(http, "/compare?run=1", 400)


async def test_alerts_are_those_of_the_rules(tmp_path: Path) -> None:
    """All pages count the alerts that fire; their page has the words of the rules and a span that shows each."""
    with storing(tmp_path / "well.db") as telemetry:
        await Agent("a", model=ScriptedModel("done"), telemetry=telemetry).run("go")
    async with client(StoreReader(tmp_path / "well.db")) as well:
        assert "No alert fires" in await text_of(well, "/alerts")
    with storing(tmp_path / "failing.db") as telemetry:
        for _ in range(6):
            await tell(telemetry)
    async with client(StoreReader(tmp_path / "failing.db")) as failing:
        assert 'Alerts<span class="count">' in await text_of(failing, "/runs")
        page = await text_of(failing, "/alerts")
        link = re.search(r'ToolFailing</h2>.*?href="(/runs/[^"]+)">a span that shows it', page, re.DOTALL)
        assert link is not None
        assert "execute_tool track_parcel" in await text_of(failing, link.group(1))
        advice = await text_of(failing, "/runbooks/ToolFailing?gen_ai_tool_name=%3Cb%3E")
        assert "<code>execute_tool &lt;b&gt;</code>" in advice
        assert (await failing.get("/runbooks/None")).status_code == 404


async def test_traces_link_to_jaeger(reader: StoreReader) -> None:
    """With the address of Jaeger, runs and spans link to their trace there."""
    run = reader.runs()[0]
    async with client(reader, jaeger="http://localhost:16686") as http:
        for page in (f"/runs/{run.run_id}/", f"/runs/{run.run_id}/3"):
            assert f'href="http://localhost:16686/trace/{run.trace_id}' in await text_of(http, page)


async def test_runs_link_to_grafana_and_are_found_by_trace(reader: StoreReader) -> None:
    """With the address of Grafana, a run links to the dashboard of its agent; a trace leads to its outermost run."""
    run = reader.runs()[0]
    async with client(reader, grafana="http://localhost:3000") as http:
        page = await text_of(http, f"/runs/{run.run_id}/")
        link = re.search(rf'href="http://localhost:3000/d/{UID}\?from=(\d+)&amp;to=(\d+)&amp;var-agent=([^"]+)"', page)
        assert link is not None
        assert int(link[1]) * 10**6 < run.start < int(link[2]) * 10**6
        assert link[3] == run.agent
        outer = next(each for each in reader.trace(run.trace_id) if each.parent_run_id is None)
        answer = await http.get(f"/traces/{run.trace_id}")
        assert (answer.status_code, answer.url.path) == (200, f"/runs/{outer.run_id}/")
        for unknown in ("0" * 32, "<b>"):
            assert (await http.get(f"/traces/{unknown}")).status_code == 404
    async with client(reader) as http:
        assert "in Grafana" not in await text_of(http, f"/runs/{run.run_id}/")


async def test_a_discovery_of_no_run_is_no_link(tmp_path: Path) -> None:
    """A warm-up counts for its hub, but has no run to open."""
    with storing(tmp_path / "warm.db") as telemetry:
        provider = DiscoveryProvider(FakeHub(), id="cold")
        await Agent("a", model=ScriptedModel(), providers=[provider], telemetry=telemetry).warm_up()
    async with client(StoreReader(tmp_path / "warm.db")) as http:
        for page in ("/", "/hub?id=cold"):
            text = await text_of(http, page)
            assert "Requests by duration" in text
            assert "/runs//" not in text


async def test_a_store_that_is_damaged_or_gone_is_named(path: Path) -> None:
    """A store that was damaged or removed while its pages are open is an answer with the reason."""
    async with client(StoreReader(path)) as http:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE bodies SET content = x'00'")
        connection.close()
        assert "cannot be read" in await text_of(http, "/runs?text=late&everywhere=1", 503)
        await anyio.Path(path).unlink()
        for page in ("/runs", "/none"):
            assert "there is no store" in await text_of(http, page, 503)


async def test_what_is_unknown_is_a_page(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """An unknown run, span, text or path is a 404 that says so, without markup from the URL."""
    assert "There is no run" in await text_of(http, "/runs/%3Cscript%3E/", 404)
    run = f"/runs/{reader.runs()[0].run_id}/"
    for page in (f"{run}9999", f"{run}1/raw/none", f"{run}1/request", "/none", "/hub/span?id=x&bucket=1&until=9"):
        assert "<script>" not in await text_of(http, page, 404)
    assert "<script>" not in await text_of(http, f"{run}{'9' * 5000}", 404)
    for page in ("/?window=%3Cscript%3E", "/?until=-1", "/runs?before=x", f"/runs?before={'9' * 5000}"):
        assert "<script>" not in await text_of(http, page, 400)


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ({"host": "evil.example:8000"}, "GET", 421),
        ({"host": "127.0.0.1.evil.example"}, "GET", 421),
        ({"host": "[::1]:8000"}, "GET", 200),
        ({"host": "localhost"}, "GET", 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, "GET", 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, "GET", 200),
        ({}, "POST", 405),
    ],
)
async def test_only_this_machine_reads(
    http: httpx.AsyncClient, headers: dict[str, str], method: str, status: int
) -> None:
    """Other host names, other sites and writes are refused; each answer has the protective headers."""
    answer = await http.request(method, "/runs", headers=headers)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


async def test_an_answer_to_a_fault_is_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the pages is a 500 with the protective headers, and no details."""

    def fail(*_: object) -> NoReturn:
        raise RuntimeError("a secret of the server")

    reader = NoTelemetry()
    monkeypatch.setattr(reader, "hubs", fail)
    transport = httpx.ASGITransport(create_viewer_app(reader), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
        answer = await http.get("/")
    assert answer.status_code == 500
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "secret" not in answer.text


async def test_pages_load_only_their_own_files(http: httpx.AsyncClient, reader: StoreReader) -> None:
    """Pages have no inline script or style and refer to no other host; their files are served."""
    run = f"/runs/{reader.runs()[0].run_id}/"
    for path in ("/", "/runs", "/alerts", "/hub?id=help-centre", run, span_path(reader, "chat", 1)):
        page = await text_of(http, path)
        assert re.findall(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=\"|(?:src|href)=\"?https?:", page) == []
    for name in ("viewer.css", "viewer.js", "icon.svg"):
        assert (await http.get(f"/static/{name}")).status_code == 200


async def test_changes_grow(path: Path) -> None:
    """The script asks for a number that grows with each write."""
    async with client(StoreReader(path)) as http:
        before = (await http.get("/changes")).json()["changes"]
        with storing(path) as telemetry:
            emit(telemetry, "x")
        assert (await http.get("/changes")).json()["changes"] > before


def spending(answer: str | ToolCall, dollars: float) -> ModelResponse:
    """Return an answer that used 100 tokens for some dollars."""
    message = Message("assistant", [answer] if isinstance(answer, ToolCall) else answer)
    return ModelResponse(message=message, usage=Usage(input_tokens=90, output_tokens=10, cost=dollars))


async def test_costs_of_nested_runs_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, pages and `--min-cost` have a run's own tokens and cost, and those with the runs nested in it."""
    store, recording = tmp_path / "nested.db", tmp_path / "nested.jsonl"
    with storing(store, file=resolve_file(recording)) as telemetry:
        deepest = Agent("deepest", model=ScriptedModel(spending("found", 0.3)), description="Looks things up.")
        steps = [spending(ToolCall("deepest", {"input": "x"}), 0.1), spending("found", 0.1)]
        inner = Agent("inner", model=ScriptedModel(*steps), description="Looks.", tools=[deepest.as_tool()])
        outer_steps = [spending(ToolCall("inner", {"input": "x"}), 0.001), spending("done", 0.0)]
        tools = [inner.as_tool()]
        outer = Agent("lead", model=ScriptedModel(*outer_steps), tools=tools, telemetry=telemetry)
        result = await outer.run("go")
        await Agent("alone", model=ScriptedModel(spending("x", 0.2)), telemetry=telemetry).run("go")
    assert result.usage.cost == pytest.approx(0.501)
    for reader in (StoreReader(store), FileReader(recording)):
        rows = {run.agent: run for run in reader.runs()}
        totals: dict[str, Any] = {
            name: (run.cost, run.total and (run.total.runs, run.total.input_tokens, run.total.cost))
            for name, run in rows.items()
        }
        assert totals == {
            "lead": (pytest.approx(0.001), (3, 450, pytest.approx(0.501))),
            "inner": (pytest.approx(0.2), (2, 270, pytest.approx(0.5))),
            "deepest": (pytest.approx(0.3), None),
            "alone": (pytest.approx(0.2), None),
        }
        assert {run.agent for run in reader.runs(min_cost=0.4)} == {"lead", "inner"}
        assert [run.agent for run in reader.runs(min_cost=0.501)] == ["lead"]
    rows = {run.agent: run for run in StoreReader(store).runs()}
    async with client(StoreReader(store)) as http:
        page = await text_of(http, "/runs")
        assert page.count("Nested in") == 2
        assert f'href="/runs/{rows["lead"].run_id}/" title="Nested in {rows["lead"].run_id[:8]}">' in page
        assert 'title="with 2 nested runs; its own: $0.001">$0.5<' in page
        page = await text_of(http, f"/runs/{rows['lead'].run_id}/")
        assert "$0.5 with 2 nested runs" in page
        assert "450 / 50 with 2 nested runs" in page
    show.COMMAND.run(Namespace(store=store, run=rows["lead"].run_id, span=None, content=False, logs=False, json=False))
    text = capsys.readouterr().out
    assert "180 in, 20 out, cost $0.001; with 2 nested runs 450 in, 50 out, cost $0.5" in text
    show.COMMAND.run(Namespace(store=store, run=rows["inner"].run_id, span=None, content=False, logs=False, json=False))
    assert f"agent     inner (shop), nested in {rows['lead'].run_id[:12]}" in capsys.readouterr().out
    lines = runs_command.run_table(StoreReader(store).runs())
    (line,) = [line for line in lines if "lead" in line]
    assert "200 (500)" in line
    assert "$0.001 ($0.5)" in line
    assert sum(f"(nested in {rows['lead'].run_id[:8]})" in line for line in lines) == 1


async def test_runs_of_a_trace_lead_to_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The call of a sub-agent leads to its run, which names the run that it is nested in; `pellucid show`, too."""
    store = tmp_path / "nested.db"
    with storing(store) as telemetry:
        inner = Agent("researcher", model=ScriptedModel("found"), description="Looks things up.")
        model = ScriptedModel(ToolCall("researcher", {"input": "rain"}), "done")
        outer = Agent("lead", model=model, tools=[inner.as_tool()], telemetry=telemetry)
        run_id = (await outer.run("go")).run_id
    reader = StoreReader(store)
    nested = next(row.run_id for row in reader.runs() if row.parent_run_id == run_id)
    async with client(reader) as http:
        page = (await http.get(f"/runs/{run_id}/")).text
        row = f'<div class="l"><a href="/runs/{nested}/0" class="r o d1 k"><b>run of researcher</b>'
        assert re.search(rf'<a href="(\d+)" class="r t k"><b>execute_tool researcher</b>.*\n{row}', page)
        roles = re.findall(r'<div class="message (\w+)">', page)
        assert roles == ["user", "assistant", "tool", "assistant"]
        call = next(span for span in reader.spans(run_id) if span.name == "execute_tool researcher")
        assert f'href="/runs/{nested}/">run of researcher<' in (await http.get(f"/runs/{run_id}/{call.sequence}")).text
        assert "outer run" in (await http.get(f"/runs/{nested}/")).text
    show.COMMAND.run(Namespace(store=store, run=run_id, span=None, content=False, logs=False, json=False))
    assert f"run of researcher  {nested[:12]}" in capsys.readouterr().out
