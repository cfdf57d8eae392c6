"""The list of runs: contents of a row, filters, order, zones, and its costs in a large store."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio
import httpx2 as httpx
import pytest

from pellucid import Agent, Identity, ToolCall, ToolError, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.run_search import BOUND
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.many_runs import DAY, write_runs
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid_exporters import Telemetry

pytestmark = pytest.mark.anyio

TABLES = re.compile(r"SCAN (?:runs|inner|parts|part_runs|run_hours|spans|bodies|events|scores|responses)\b")
"""Plans that read a table which grows with the runs from its beginning."""


@tool
async def price(article: str) -> str:
    """Look up a price."""
    raise ToolError("no such article")


async def sell(telemetry: Telemetry) -> None:
    """Run two agents: one whose tool fails, of a customer, and one that nobody in particular asks."""
    model = ScriptedModel(ToolCall("price", {"article": "scarf"}), "The scarf costs <b>12</b> euros.")
    agent = Agent("sales", version="3", model=model, tools=[price], telemetry=telemetry)
    await agent.run("What does the WOOLLEN scarf cost?", identity=Identity(tenant="knit & co", principal="ann"))
    await Agent("greeter", model=ScriptedModel("Hello."), telemetry=telemetry).run("Good morning")
    assert telemetry.flush(PATIENCE)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two runs."""
    path = tmp_path_factory.mktemp("runs") / "store.db"
    with storing(path) as telemetry:
        anyio.run(sell, telemetry)
    return path


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a thousand runs in thirty days."""
    path = tmp_path_factory.mktemp("few") / "store.db"
    write_runs(path, 1_000)
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with many runs in thirty days."""
    path = tmp_path_factory.mktemp("many") / "store.db"
    write_runs(path, 20_000)
    return path


async def page(path: Path, address: str, status: int = 200) -> str:
    """Return a page of a store, without the entities of quotation marks."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        answer = await http.get(address)
    assert answer.status_code == status, answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


def rows_of(text: str) -> list[str]:
    """Return the rows of the table of a page."""
    return re.findall(r"<tr>.*?</tr>", text.partition("<tbody>")[2], re.DOTALL)


async def test_a_row_says_what_was_asked_and_answered(shop: Path) -> None:
    """A row has the question, the answer, the caller, the version, and a mark for failures; markup stays text."""
    _, sold = rows_of(await page(shop, "/runs"))
    assert "What does the WOOLLEN scarf cost?" in sold
    assert "The scarf costs &lt;b&gt;12&lt;/b&gt; euros." in sold
    assert 'title="1 boundary within failed"' in sold
    assert 'href="/users?id=ann"' in sold
    assert 'href="/tenants?id=knit+%26+co"' in sold
    assert "<small>3</small>" in sold


@pytest.mark.parametrize("address", ["text=woollen", "text=12%3C%2Fb%3E", "faulty=1", "user=ann", "tenant=knit+%26+co"])
async def test_runs_are_found_by_text_and_caller(shop: Path, address: str) -> None:
    """Runs are found by text and caller, in any case of letters, and with characters of markup and queries."""
    (row,) = rows_of(await page(shop, f"/runs?{address}"))
    assert "WOOLLEN" in re.sub("</?mark>", "", row)


@pytest.mark.parametrize("text", ['"', "' OR 1", "%", "zzz", "a\0b", "NEAR(", "*"])
async def test_a_text_that_no_run_has_finds_none(shop: Path, text: str) -> None:
    """A text that no run has finds none, whatever it means in a query, and the page offers to look in all content."""
    found = await page(shop, f"/runs?{httpx.QueryParams(text=text)}")
    assert "No run matches" in found
    assert "everywhere=1" in found


async def test_an_address_has_no_empty_parameters(shop: Path) -> None:
    """The address of a form has only the fields that are filled."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(shop)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/runs?text=woollen+%26&agent=&outcome=&sort=-cost&column=a&column=b")
    filled = "/runs?text=woollen+%26&sort=-cost&column=a&column=b"
    assert (answer.status_code, answer.headers["location"]) == (303, filled)


async def test_hits_are_marked(shop: Path) -> None:
    """Hits are marked in question and answer; a text of a tool's result is found in all content only."""
    (row,) = rows_of(await page(shop, "/runs?text=SCARF"))
    assert row.count("<mark>scarf</mark>") == 2
    assert "No run matches" in await page(shop, "/runs?text=no+such+article")
    assert len(rows_of(await page(shop, "/runs?text=no+such+article&everywhere=1"))) == 1


async def test_without_an_index_texts_are_found(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are found without an index, with a SQLite that cannot have it."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 0))
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        await sell(telemetry)
    for store in (path, shop):
        assert len(rows_of(await page(store, "/runs?text=woollen"))) == 1
    monkeypatch.undo()
    assert len(rows_of(await page(path, "/runs?text=woollen"))) == 1


async def test_runs_are_in_the_order_of_a_column(many: Path) -> None:
    """Runs are sorted by a column, among those that were examined; another column is refused."""
    text = await page(many, "/runs?sort=-cost")
    costs = [float(found) for found in re.findall(r'cost"[^>]*>\$([\d.]+)', text)]
    assert costs == sorted(costs, reverse=True)
    assert len(costs) == 100
    assert 'aria-sort="descending"' in text
    users = re.findall(r"/users\?id=(user-\d+)", await page(many, "/runs?sort=user"))
    assert users == sorted(users)
    assert "sorted by one of" in await page(many, "/runs?sort=%3Cscript%3E", 400)
    assert "The page must be a number" in await page(many, "/runs?page=first", 400)
    assert "The outcome must be one of running, completed" in await page(many, "/runs?outcome=good", 400)


async def test_what_is_bounded_says_so(many: Path) -> None:
    """A list that is bounded says so: its figures are those of the newest runs, and the histogram counts all."""
    text = await page(many, "/runs")
    assert f"of the newest {BOUND:,}" in text
    bars = [int(number.replace(",", "")) for number in re.findall(r'aria-label="([\d,]+) runs?', text)]
    assert sum(bars) == 20_000
    (older,) = re.findall(r'since [-\d: ]+\. <a href="([^"]+)">Older ones', text)
    second = await page(many, older.replace("&amp;", "&"))
    assert f"scarf {20_000 - BOUND - 1} of" in rows_of(second)[0]
    whole = await page(many, "/runs?tool=rare")
    assert "of the newest" not in whole
    assert len(rows_of(whole)) == 21


async def test_a_range_counts_its_runs(many: Path) -> None:
    """A bar of the histogram leads to as many runs as it says."""
    text = await page(many, "/runs?user=user-7")
    bars = re.findall(r'<a href="([^"]+)" tabindex="-1" aria-label="(\d+) run', text)
    assert sum(int(number) for _, number in bars) == 40
    for address, number in bars[:3]:
        assert len(rows_of(await page(many, address.replace("&amp;", "&")))) == int(number)


async def test_times_are_in_a_zone(tmp_path: Path) -> None:
    """Times have their date and zone, and an unknown zone is refused."""
    path = tmp_path / "store.db"
    write_runs(path, 1, days=1, until=1_790_000_000 * 10**9 + DAY)
    assert 'title="2026-09-21 14:13:20.000 UTC"' in await page(path, "/runs?zone=UTC")
    assert 'title="2026-09-21 23:13:20.000 JST"' in await page(path, "/runs?zone=Asia/Tokyo")
    for zone in ("Nowhere", "../../etc/passwd", "x" * 300):
        assert "no time zone" in await page(path, f"/runs?zone={zone}", 400)


class Work:
    """Work of SQLite: hundreds of steps of its virtual machine, and the statements."""

    def __init__(self) -> None:
        self.steps = 0
        self.statements: set[str] = set()

    def step(self) -> int:
        """Count a hundred steps."""
        self.steps += 1
        return 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count what connections do."""
    counted, connect = Work(), sqlite3.connect

    def counting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(counted.step, 100)
        connection.set_trace_callback(counted.statements.add)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counting)
    yield counted
    monkeypatch.undo()


ADDRESSES = (
    *("", "agent=agent-1", "user=user-7", "tenant=tenant-3", "outcome=failed", "error_type=ModelError", "version=1"),
    *("tool=rare", "tool=tool-3&agent=agent-2", "hub=search", "model=model-1&outcome=failed", "conversation=c-7"),
    *(
        "text=scarf",
        "text=order+A-777",
        "text=12+euros",
        "text=zz",
        "min_cost=0.019",
        "min_duration=9",
        "faulty=1",
        "range=24h",
    ),
    *("sort=-cost", "outcome=running", "outermost=1", "page=3"),
    *("score=correct", "score=correct%3C0.5", "score=correct%3Dfail", "score=correct%21%3D1", "sort=score:correct"),
    *("kind=all", "kind=judge", "kind=experiment"),
)


SELECTIVE = {"user=user-7", "tool=rare", "conversation=c-7", "text=order+A-777", "text=12+euros", "score=correct%3C0.5"}
"""Searches that find few runs, and so read few."""


async def test_the_cost_of_a_list_does_not_grow_with_the_store(few: Path, many: Path, work: Work) -> None:
    """A list over twenty times the runs takes at most three times the steps, with any filter."""
    await page(few, "/runs")
    whole = work.steps
    for address in ADDRESSES:
        work.steps = 0
        await page(many, f"/runs?{address}")
        assert work.steps <= (1 if address in SELECTIVE else 3) * whole, address
    plans: dict[str, list[str]] = {}
    with closing(sqlite3.connect(many)) as connection:
        connection.execute(
            "CREATE TEMP TABLE wanted (shape INTEGER PRIMARY KEY, sum_0, sum_1, sum_2, sum_3, sum_4)"
        )  # of alerts
        for statement in [each for each in work.statements if re.match(r"\s*(SELECT|WITH)", each)]:
            found = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            plans[statement] = [detail for *_, detail in found if TABLES.search(detail)]
    assert {statement: found for statement, found in plans.items() if found} == {}


async def test_running_runs_show_what_they_have_used(tmp_path: Path) -> None:
    """A run that has not ended shows its tokens and cost so far, marked as such."""
    path = tmp_path / "store.db"
    write_runs(path, 1, days=1, until=time.time_ns() + DAY)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE runs SET ended = NULL, outcome = NULL, used_input = 120, used_cost = 0.25")
        connection.commit()
    (row,) = rows_of(await page(path, "/runs"))
    assert ">120…<" in row
    assert ">$0.25…<" in row
    assert "interrupted" in row
