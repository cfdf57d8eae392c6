"""The pages of conversations, users, tenants, tools, models and trends."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio
import httpx2 as httpx
import pytest

from pellucid import Agent, Identity, Message, ModelResponse, TextPart, ToolCall, ToolError, Usage, tool
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.many_runs import DAY, write_runs
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters import Telemetry

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert('tenant')</script>"


@tool
async def price(article: str) -> str:
    """Look up a price."""
    if article == "hat":
        raise ToolError("no such article")
    return "12"


@tool
async def stock(article: str) -> str:
    """Count the articles."""
    return "none"


def spending(answer: str | ToolCall, dollars: float) -> ModelResponse:
    """Return an answer that costs something."""
    part = answer if isinstance(answer, ToolCall) else TextPart(answer)
    usage = Usage(input_tokens=100, output_tokens=10, cache_read_input_tokens=40, cost=dollars)
    return ModelResponse(message=Message(role="assistant", parts=(part,)), usage=usage)


async def sell(telemetry: Telemetry) -> None:
    """Answer three questions of two tenants, of which two are a conversation; a tool fails in the last."""
    asked = (("knit", "c-1", "scarf", 0.25), (HOSTILE, "c-2", "scarf", 0.5), ("knit", "c-1", "hat", 0.5))
    for tenant, conversation, article, dollars in asked:
        model = ScriptedModel(
            spending(ToolCall("price", {"article": article}), dollars), spending(f"One {article}.", 0.0), name="luna"
        )
        agent = Agent("sales", version="3", model=model, tools=[price], telemetry=telemetry)
        identity = Identity(tenant=tenant, principal="ann", conversation_id=conversation)
        await agent.run(f"What is the price of a {article}?", identity=identity)
    assert telemetry.flush(PATIENCE)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with three runs."""
    path = tmp_path_factory.mktemp("trends") / "store.db"
    with storing(path) as telemetry:
        anyio.run(sell, telemetry)
    return path


async def page(path: Path, address: str, status: int = 200) -> str:
    """Return a page of a store, without the entities of quotation marks."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", follow_redirects=True) as http:
        answer = await http.get(address)
    assert answer.status_code == status, answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


def cells_of(text: str) -> list[list[str]]:
    """Return the texts of the cells of the first table of a page."""
    rows = re.findall(r"<tr>.*?</tr>", text.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    return [[re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)] for row in rows]


def column(rows: Iterable[list[str]], number: int) -> list[str]:
    """Return a column of a table."""
    return [row[number] for row in rows]


async def test_tenants_come_with_the_dearest_first(shop: Path) -> None:
    """Tenants are listed with the dearest first, with runs, failures, tokens and cost, or in another order."""
    rows = cells_of(await page(shop, "/tenants"))
    assert [(row[0], row[1], row[3], row[4], row[5]) for row in rows] == [
        ("knit", "2", "1", "440", "$0.75"),
        ("&lt;script&gt;alert('tenant')&lt;/script&gt;", "1", "0", "220", "$0.5"),
    ]
    assert column(cells_of(await page(shop, "/tenants?sort=name")), 0)[1] == "knit"
    assert column(cells_of(await page(shop, "/users")), 0) == ["ann"]
    assert cells_of(await page(shop, f"/tenants?until={time.time_ns() - 2 * DAY}")) == []


async def test_a_conversation_has_its_runs_in_order(shop: Path) -> None:
    """A conversation has its runs in order and their sum, and a user has the newest first."""
    text = await page(shop, "/conversations?id=c-1")
    assert column(cells_of(text), 0) == ["What is the price of a scarf?", "What is the price of a hat?"]
    assert "$0.75 in all" in text
    assert column(cells_of(await page(shop, "/users?id=ann")), 0)[0] == "What is the price of a hat?"


async def test_a_tool_has_its_errors_with_examples(shop: Path) -> None:
    """The page of a tool has its callers, its failures, and the latest span of each error."""
    ((name, calls, failed, *_, errors),) = cells_of(await page(shop, "/tools"))
    assert (name, calls, failed, errors) == ("price", "3", "1 33.3 %", "tool_error 1")
    text = await page(shop, "/tools?id=price")
    (example,) = re.findall(r'href="([^"]+)">the latest</a>', text)
    assert "no such article" in await page(shop, example)
    assert re.search(r'agent=sales[^"]*"[^>]*>sales</a></td><td class="n">3</td>', text)
    text = await page(shop, "/models?id=luna")
    assert "<dt>Calls</dt><dd>6</dd>" in text
    assert "<dt>Cost</dt><dd>$1.25</dd>" in text
    assert "<dt>Cached input</dt><dd>40 %</dd>" in text


async def test_a_model_has_lines_over_time(shop: Path) -> None:
    """The page of a model has lines of calls, failures, durations, tokens and cost, and of the period before."""
    text = await page(shop, "/models?id=luna&range=1h")
    charts = re.findall(r"<figcaption>(\w+)<span.*?at most ([^<]*)</span></figcaption>(.*?)</figure>", text)
    assert [name for name, *_ in charts] == ["Calls", "p50", "p95", "Tokens", "Cost"]  # none failed
    assert all('class="now"' in chart for *_, chart in charts)
    assert "Tokens" not in re.findall(r"<figcaption>(\w+)<span", await page(shop, "/tools?id=price&range=1h"))
    reader, now = StoreReader(shop), time.time_ns()
    step = 3600 * 10**9 // 48
    since = now - 47 * step
    rows = reader.calls(since, now, {"inference"}, step)
    assert sum(row.calls for row in rows) == sum(row.calls for row in reader.calls(since, now, {"inference"}))
    for row in rows:
        assert (row.end - since) // step == row.step
    old = await page(shop, f"/models?id=luna&range=1h&until={now + 3600 * 10**9}")
    assert re.search(r'class="before" points="[^"]+"', old)


async def test_a_new_version_is_compared_with_the_one_before(tmp_path: Path) -> None:
    """A new version is compared with the one before within one window: how much slower it is, with a link to both."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        for version, tools in (("1.4", [price]), ("1.5", [price, stock])):
            for agent in ("sales", "sales eu"):
                await Agent(agent, version=version, model=ScriptedModel("hi"), tools=tools, telemetry=telemetry).run(
                    "?"
                )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE runs SET ended = start + iif(version = '1.4', 2, 5) * 1000000000")
        connection.commit()
    text = await page(path, "/trends?by=version&sort=p50")
    rows = {row[0]: row[3] for row in cells_of(text)}
    assert rows == {
        "sales 1.5 against sales 1.4": "5 s +150 %",
        "sales eu 1.5 against sales eu 1.4": "5 s +150 %",
        "sales 1.4": "2 s new",
        "sales eu 1.4": "2 s new",
    }
    text = await page(path, "/trends?by=version&name=sales+1.5")
    link = re.search(r'href="(/compare[^"]+)">Compare a run with one of sales 1.4', text)
    assert link is not None
    assert "stock" in await page(path, link[1].replace("&amp;", "&"))
    assert "Compare a run" not in await page(path, "/trends?by=version&name=sales+1.4")


async def test_trends_find_the_version_that_is_slower(tmp_path: Path) -> None:
    """Trends list the largest change first, against the period before."""
    path = tmp_path / "store.db"
    write_runs(path, 1_200, days=4)
    halfway = time.time_ns() - DAY
    with closing(sqlite3.connect(path)) as connection:
        slower = "UPDATE runs SET ended = start + 600000000000 WHERE agent = 'agent-1' AND version = '2' AND start > ?"
        connection.execute(slower, (halfway,))
        connection.commit()
    rows = cells_of(await page(path, "/trends?by=version&range=24h&sort=p95"))
    assert rows[0][0] == "agent-1 2"
    assert re.match(r"10 min \+\d+ %", rows[0][4])
    runs = [int(row[1].split()[0]) for row in rows]
    assert sum(runs) in {299, 300}
    text = await page(path, "/trends?by=version&range=24h&name=agent-1+2")
    assert "p95 <b>10 min</b>" in text
    assert text.count("<polyline") >= 12
    assert int(re.findall(r"Runs <b>(\d+)</b>", text)[0]) == runs[0]


@pytest.mark.parametrize("by", ["agent", "user", "tenant", "conversation", "model", "tool", "hub"])
async def test_trends_are_by_what_runs_have_in_common(shop: Path, by: str) -> None:
    """Trends by any kind of name count each run once."""
    rows = cells_of(await page(shop, f"/trends?by={by}&range=1h"))
    assert sum(int(row[1].split()[0]) for row in rows) == 3
    assert {row[7] for row in rows} == {"40 % new"}


@pytest.mark.parametrize(
    ("address", "status"),
    [
        *((f"/{kind}?id=%3Cscript%3E", 404) for kind in ("conversations", "users", "tenants", "tools", "models")),
        *((f"/{kind}?range=%3Cscript%3E", 400) for kind in ("conversations", "trends", "tools", "models")),
        *(("/trends?by=key", 400), ("/trends?sort=x", 400), ("/users?sort=x", 400), ("/users?until=-1", 400)),
        *(("/trends?by=tool&name=%3Cscript%3E", 200), (f"/trends?until={2**63 - 1}", 200), ("/tools?until=0", 200)),
    ],
)
async def test_what_is_unknown_is_a_page(shop: Path, address: str, status: int) -> None:
    """An unknown id or option in an address is a page without markup from the address."""
    assert "<script>" not in await page(shop, address, status)


async def test_an_empty_store_has_pages(tmp_path: Path) -> None:
    """Pages of an empty store say that there is nothing yet."""
    path = tmp_path / "store.db"
    with storing(path):
        pass
    for address in ("conversations", "users", "tenants", "tools", "models", "trends", "runs"):
        text: Any = await page(path, f"/{address}")
        assert "No " in text or "no runs yet" in text
