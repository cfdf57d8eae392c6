"""The pages of the viewer, over captured runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from pellucid import Agent, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.errors import ModelError
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture
from pellucid_exporters.viewer import create_viewer_app
from support.sample_reader import SampleReader

BASE = "http://127.0.0.1:8000"
HOSTILE = "<script>alert(1)</script> \u202egnp.exe \x1b[31m \ud800"

pytestmark = pytest.mark.anyio


@tool
def weather(city: str) -> str:
    """Look up the weather."""
    return HOSTILE


@tool
def order(number: int) -> str:
    """Look up an order."""
    raise ValueError(f"order {number} does not exist")


@pytest.fixture
async def reader() -> SampleReader:
    """Return a reader of two runs: one completes after a tool failed; the other fails, and asks for another city."""
    with capture(fixed=False) as telemetry:
        for city, last in (("Bergen", "Take an umbrella."), ("Oslo", RuntimeError("the vendor is overloaded"))):
            model = ScriptedModel(ToolCall("weather", {"city": city}), ToolCall("order", {"number": 7}), last)
            hub = DiscoveryProvider(FakeHub([weather, order]), id="rube")
            agent = Agent(f"forecast-{city}", model=model, providers=[hub], instructions="Be brief.")
            try:
                await agent.run("What is the weather?")
            except ModelError:
                assert isinstance(last, RuntimeError)
    return SampleReader(telemetry, {"rube": 1e-9})


@pytest.fixture
async def http(reader: SampleReader) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the pages."""
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url=BASE, follow_redirects=True) as client:
        yield client


def run_path(reader: SampleReader, number: int) -> str:
    """Return the path of the first or second run."""
    return f"/runs/{list(reader.span_rows)[number]}/"


def sequences(reader: SampleReader, number: int, name: str) -> list[int]:
    """Return the sequences of a run's spans with a name."""
    return [span.sequence for span in list(reader.span_rows.values())[number] if span.name.startswith(name)]


async def text_of(http: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """Return a page without the entities of quotation marks."""
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


async def test_hubs_show_the_slow_one_and_lead_to_a_span(http: httpx.AsyncClient) -> None:
    """A hub over its objective is called slow, and a bucket of its heatmap leads to the page of a discovery."""
    page = await text_of(http, "/?window=15m")
    assert 'class="badge slow"' in page
    exemplar = re.search(r'href="(/runs/\w+/span/\w+)"', page)
    assert exemplar is not None
    assert "discover_tools rube" in await text_of(http, exemplar.group(1))


async def test_runs_are_filtered_by_the_url(http: httpx.AsyncClient) -> None:
    """Filters are parameters of the URL; a number that is none is refused."""
    assert "forecast-Bergen" in await text_of(http, "/runs")
    failed = await text_of(http, "/runs?outcome=failed")
    assert "forecast-Oslo" in failed
    assert "forecast-Bergen" not in failed
    assert "No run matches" in await text_of(http, "/runs?agent=other&min_duration=5")
    assert "min_cost must be a number" in await text_of(http, "/runs?min_cost=much", 400)


async def test_a_run_says_why_it_failed(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """The reason comes first, then the spans that went wrong, then the waterfall."""
    page = await text_of(http, run_path(reader, 1))
    places = [page.index(text) for text in ("Why this run failed", "the vendor is overloaded", "order 7", "Waterfall")]
    assert places == sorted(places)


async def test_a_model_call_shows_its_whole_request(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """The request of the second call has what only the first one recorded: instructions, tools and messages."""
    page = await text_of(http, f"{run_path(reader, 0)}{sequences(reader, 0, 'chat')[1]}")
    assert "model call 2 of 3" in page
    for text in ("Be brief.", "Look up an order.", "What is the weather?", "new in this call"):
        assert text in page


async def test_messages_that_were_not_recorded_are_counted(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """A request whose earlier spans are gone says how many messages it lacks."""
    spans = next(iter(reader.span_rows.values()))
    first, second = sequences(reader, 0, "chat")[:2]
    spans[:] = [span for span in spans if span.sequence != first]
    assert "1 message not recorded" in await text_of(http, f"{run_path(reader, 0)}{second}")


async def test_hostile_content_is_text(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """Markup is escaped; control characters, direction marks and lone surrogates are named."""
    path = run_path(reader, 0)
    for sequence in (*sequences(reader, 0, "execute_tool weather"), sequences(reader, 0, "chat")[1]):
        page = await text_of(http, f"{path}{sequence}")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "⟦U+202E⟧gnp.exe ␛[31m" in page
        assert not {"\u202e", "\x1b"} & set(page)


async def test_long_text_is_cut_and_linked(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """A page shows the beginning of a text of 10 MB; its link returns all of it as plain text."""
    spans = list(reader.span_rows.values())[1]
    place = sequences(reader, 1, "execute_tool weather")[0]
    result = "<b>rain</b> " * 850_000
    spans[place] = replace(spans[place], attributes={**spans[place].attributes, semconv.TOOL_CALL_RESULT: result})
    page = await text_of(http, f"{run_path(reader, 1)}{place}")
    link = re.search(r'href="([^"]+)">The whole text', page)
    assert link is not None
    assert len(page) < 100_000
    answer = await http.get(link.group(1))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == result


async def test_compare_finds_the_first_difference(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """Boundaries that differ only in ids and times are equal; the first one that differs is shown with both sides."""
    first, second = reader.span_rows
    page = await text_of(http, f"/compare?run={second}&run={first}")
    heading = page.index("First difference: iteration 1, <b>chat scripted</b>")
    assert heading < page.index('"city": "Bergen"') < page.index('"city": "Oslo"') < page.index("All differences")
    assert "No boundary differs" in await text_of(http, f"/compare?run={first}&run={first}")
    assert "Choose two runs" in await text_of(http, "/compare?run=1", 400)


async def test_what_is_unknown_is_a_page(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """An unknown run, span, text or path is a 404 that says so, without markup from the URL."""
    assert "There is no run" in await text_of(http, "/runs/%3Cscript%3E/", 404)
    for path in (f"{run_path(reader, 0)}9999", f"{run_path(reader, 0)}1/raw/none", "/none"):
        assert "<script>" not in await text_of(http, path, 404)


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


async def test_pages_load_only_their_own_files(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """Pages have no inline script or style and refer to no other host; their files are served."""
    chat = f"{run_path(reader, 0)}{sequences(reader, 0, 'chat')[1]}"
    for path in ("/", "/runs", run_path(reader, 0), chat):
        page = await text_of(http, path)
        assert re.findall(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=\"|(?:src|href)=\"?https?:", page) == []
    for name in ("viewer.css", "viewer.js", "icon.svg"):
        assert (await http.get(f"/static/{name}")).status_code == 200


async def test_changes_grow(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """The script asks for a number that grows with each write."""
    reader.version = 7
    assert (await http.get("/changes")).json() == {"changes": 7}


async def test_a_run_of_thousands_of_spans_stays_small(http: httpx.AsyncClient, reader: SampleReader) -> None:
    """Every row of 5,001 spans fits into 1 MB."""
    spans = next(iter(reader.span_rows.values()))
    root, tool_call = spans[0], spans[sequences(reader, 0, "execute_tool")[0]]
    changes: list[dict[str, Any]] = [
        {"sequence": number, "span_id": f"{number:016x}", "iteration": number // 4, "parent_span_id": root.span_id}
        for number in range(1, 5_001)
    ]
    spans[:] = [root, *(replace(tool_call, **change) for change in changes)]
    page = await text_of(http, run_path(reader, 0))
    assert page.count('class="r ') == 5_000
    assert len(page.encode()) < 1_000_000
