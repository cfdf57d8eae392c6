"""Pages of durable runs, and the actions that they offer."""

from __future__ import annotations

import re
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import httpx2 as httpx
import pytest

from pellucid import Agent, ModelError, Tool, ToolCall
from pellucid.cli import main
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import FunctionModel
from pellucid_exporters.stored.nothing import NoTelemetry
from pellucid_exporters.viewer import create_viewer_app
from pellucid_exporters.viewer.durable import Actions, DurablePages
from support.durable_agents import JOB, PAY, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pellucid import ModelRequest
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

BASE = "http://127.0.0.1:8000"
TOKEN = "a-token-of-the-operator"
HOSTILE = "<script>alert(1)</script>"
OWN = {"Sec-Fetch-Site": "same-origin"}


def act(request: ModelRequest) -> Any:
    """Call both tools, fail, or answer."""
    text = request.messages[0].text
    if text in ("overloaded", "broken"):
        raise ModelError("m", HOSTILE, error_kind="unavailable" if text == "overloaded" else "invalid_request")
    if text == "go" and len(request.messages) == 1:
        return [ToolCall("job", {"to": HOSTILE}, "c1"), ToolCall("pay", {"to": HOSTILE}, "c2")]
    return "done"


AGENT = Agent("clerk", model=FunctionModel(act), tools=[JOB, PAY, Tool(name="do", run=nothing)])


@asynccontextmanager
async def pages(store: RunStore, *, has_actions: bool = False) -> AsyncIterator[tuple[httpx.AsyncClient, DurableRuns]]:
    """Serve the pages of a store with runs: one that waits, and ones that completed, failed, retry and are due."""
    runs = DurableRuns(store, [AGENT])
    for text in ("simple", "go", "broken", "overloaded"):
        await runs.submit(AGENT, text, run_id=text, idempotency_key=f"key-{text}")
    await runs.work_until_idle()
    await runs.submit(AGENT, "later", run_id=f"due/{HOSTILE}")
    durable = DurablePages(store, DurableRuns(store, []), Actions(TOKEN, "ann") if has_actions else None)
    transport = httpx.ASGITransport(create_viewer_app(NoTelemetry(), durable=durable))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
        yield http, runs


async def page(http: httpx.AsyncClient, path: str) -> str:
    """Return a page, in which nothing hostile is markup."""
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    assert HOSTILE not in answer.text
    return str(answer.text)


def listed(text: str) -> set[str]:
    """Return the runs to which a page links."""
    return set(re.findall(r'class="row" href="/durable/runs/([^"]*)/"', text))


async def form_of(http: httpx.AsyncClient) -> dict[str, str]:
    """Sign in, and return the token that the forms of a page have."""
    answer = await http.get(f"/durable/sign-in?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/durable/waiting")
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert "httponly" in answer.headers["set-cookie"].lower()
    match = re.search('name="csrf" value="([0-9a-f]+)"', await page(http, "/durable/waiting"))
    assert match is not None
    return {"csrf": match.group(1)}


async def test_the_list(store: RunStore) -> None:
    """Filters narrow the list of runs; a retrying run shows its attempt, and a wrong filter is answered with 400."""
    due = quote(f"due/{HOSTILE}")
    async with pages(store) as (http, _):
        everything = {"simple", "go", "broken", "overloaded", due}
        assert listed(await page(http, "/durable")) == everything
        retrying = await page(http, "/durable?status=retrying")
        assert listed(retrying) == {"overloaded"}
        assert "attempt 2" in retrying
        for query, expected in (
            ("status=open", {"go", "overloaded", due}),
            ("status=failed", {"broken"}),
            ("text=SIMPLE", {"simple"}),
            ("key=key-go", {"go"}),
            ("agent=other", set()),
            ("older_than=60", set()),
            ("worker=nobody", set()),
        ):
            assert listed(await page(http, f"/durable?{query}")) == expected, query
        for query in ("status=odd", "older_than=-1", "older_than=nan", "cursor=x"):
            assert (await http.get(f"/durable?{query}")).status_code == 400, query


async def test_a_run(store: RunStore) -> None:
    """The page of a run shows its state, what it waits for, and its events."""
    async with pages(store) as (http, runs):
        waiting = await page(http, "/durable/runs/go/")
        assert waiting.count("for ") >= 2
        for text in ("claim 1 and the wait for it", "run.waiting", "async_tool.registered", "&lt;script"):
            assert text in waiting, text
        state = await runs.status("go")
        await runs.settle(state.external[0].id, output=1)
        await runs.cancel("go", "by mistake")
        assert "by mistake" in await page(http, "/durable/runs/go/")
        failed = await page(http, "/durable/runs/broken/")
        assert "&lt;script&gt;alert(1)" in failed
        assert "run.retrying" in await page(http, "/durable/runs/overloaded/")
        assert "due" in await page(http, f"/durable/runs/{quote(f'due/{HOSTILE}', safe='')}/")
        assert (await http.get("/durable/runs/none/")).status_code == 404


async def test_without_actions_the_pages_are_read_only(store: RunStore) -> None:
    """Pages without actions have no form, take none, and offer no way to sign in."""
    async with pages(store) as (http, _):
        for path in ("/durable/waiting", "/durable/runs/go/", "/durable/runs/broken/"):
            assert 'method="post"' not in await page(http, path)
        assert (await http.post("/durable/do/retry", data={"run": "broken"}, headers=OWN)).status_code == 405
        assert (await http.get(f"/durable/sign-in?token={TOKEN}")).status_code == 404


async def test_approvals_are_decided(store: RunStore) -> None:
    """A reader with the token approves in their own name; a second, other decision is refused."""
    async with pages(store, has_actions=True) as (http, runs):
        assert 'method="post"' not in await page(http, "/durable/waiting")
        form = await form_of(http)
        [request] = (await runs.status("go")).approvals
        decision = {**form, "run": "go", "approval": request.approval_id, "reason": "fine"}
        approved = await http.post(
            "/durable/do/decide", data={**decision, "approved": "yes", "back": "run"}, headers=OWN
        )
        assert (approved.status_code, approved.headers["location"]) == (303, "/durable/runs/go/")
        call = await runs.call(request.approval_id)
        assert call is not None
        assert (call.status, call.output["approved"], call.output["decided_by"]) == ("completed", True, "ann")
        assert (
            await http.post("/durable/do/decide", data={**decision, "approved": "no"}, headers=OWN)
        ).status_code == 409
        assert (
            await http.post("/durable/do/decide", data={**decision, "approved": "?"}, headers=OWN)
        ).status_code == 400


async def test_runs_are_mended(store: RunStore) -> None:
    """A failed run is retried, an external call settled as failed, and an open run cancelled, each once."""
    async with pages(store, has_actions=True) as (http, runs):
        form = await form_of(http)
        [call] = (await runs.status("go")).external
        for action, members in (
            ("retry", {"run": "broken"}),
            ("settle", {"run": "go", "result": call.id, "error": "the service is down"}),
            ("cancel", {"run": "overloaded"}),
        ):
            for status in (303, 303 if action == "settle" else 409):  # the same result again is a duplicate
                answer = await http.post(f"/durable/do/{action}", data={**form, **members}, headers=OWN)
                assert answer.status_code == status, (action, answer.text)
        assert (await runs.status("broken")).status == "due"
        assert (await runs.status("overloaded")).error == "Cancelled by ann."
        settled = await runs.call(call.id)
        assert settled is not None
        assert (settled.status, settled.output) == ("failed", "the service is down")
        for path, members in (("odd", {}), ("retry", {}), ("settle", {"run": "go", "result": call.id, "error": " "})):
            assert (await http.post(f"/durable/do/{path}", data={**form, **members}, headers=OWN)).status_code in (
                400,
                404,
            )


@pytest.mark.parametrize("wrong", ["token", "csrf", "cookie", "site", "port", "origin", "size", "host"])
async def test_forms_of_others_are_refused(store: RunStore, wrong: str) -> None:
    """A form without the token, or from a page of another site or port, changes nothing."""
    async with pages(store, has_actions=True) as (http, runs):
        assert (await http.get("/durable/sign-in?token=other")).status_code == 403
        form = {**await form_of(http), "run": "broken"}
        headers = dict(OWN)
        if wrong in ("token", "csrf"):
            form["csrf"] = "" if wrong == "csrf" else TOKEN
        elif wrong == "cookie":
            http.cookies.clear()
        elif wrong in ("site", "port"):
            headers["Sec-Fetch-Site"] = "cross-site" if wrong == "site" else "same-site"
        elif wrong == "origin":
            headers = {"Origin": "http://127.0.0.1:9999"}
        elif wrong == "size":
            form["reason"] = "x" * 200_000
        else:
            headers["Host"] = "evil.example"
        answer = await http.post("/durable/do/retry", data=form, headers=headers)
        assert answer.status_code == {"size": 413, "host": 421}.get(wrong, 403)
        assert (await runs.status("broken")).status == "failed"
        own = {"Origin": BASE}  # of a browser without Sec-Fetch-Site
        http.cookies.clear()
        for run_id in ("broken", "overloaded"):
            form = {**await form_of(http), "run": run_id}
            assert "Retry from the journal" in await page(http, f"/durable/runs/{run_id}/")
            assert (await http.post("/durable/do/retry", data=form, headers=own)).status_code == 303


async def test_a_store_that_does_not_answer(location: Location) -> None:
    """Pages of a store that does not answer say so, and work again afterwards."""
    async with location.open(patience=0.0) as store, pages(store) as (http, _):
        location.execute("ALTER TABLE runs RENAME TO elsewhere")
        assert location.server is not None or (await http.get("/durable")).status_code == 503
        location.execute("ALTER TABLE elsewhere RENAME TO runs")
        assert listed(await page(http, "/durable"))


@pytest.mark.parametrize("prepared", ["none", "older"])
def test_a_store_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    """The command neither creates a store nor migrates one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs.db"
    if prepared == "older":

        async def create() -> None:
            async with open_store(f"sqlite:///{path}"):
                pass

        anyio.run(create)
        with closing(sqlite3.connect(path)) as file:
            file.execute("DROP TABLE schema_revision")
    assert main(["view", "--durable", f"sqlite:///{path}"]) == 2
    message = capsys.readouterr().err
    assert ("there is no store of durable runs" if prepared == "none" else "pellucid durable migrate") in message
    assert path.exists() == (prepared == "older")
    assert main(["view", "--cases", "cases.jsonl"]) == 2
    assert "--allow-actions" in capsys.readouterr().err
    assert main(["view", "--allow-actions", "--cases", "none/cases.jsonl"]) == 2
    assert "there is no folder none" in capsys.readouterr().err
