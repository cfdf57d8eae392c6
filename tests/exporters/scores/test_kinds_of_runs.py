"""Runs of judges and of experiments are left out of lists of runs, unless they are asked for."""

from __future__ import annotations

import json
import re
import sqlite3
from argparse import ArgumentParser
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from pellucid import Agent, Identity
from pellucid.cli import Command
from pellucid.scores import Case, judge, no_tool_errors
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_commands.inspection import runs, top
from pellucid_commands.scoring.arrivals import Arrivals
from pellucid_commands.scoring.claims import Claims
from pellucid_commands.scoring.recording import Recorder
from pellucid_commands.scoring.watching import Watch
from pellucid_experiments import experiment
from pellucid_exporters import File, StoreReader
from pellucid_exporters.file.reader import FileReader
from pellucid_exporters.stored.many import ManyReader
from pellucid_exporters.stored.rows import AGENT, ALL, EXPERIMENT, JUDGE, kind_of
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.testing import capture
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

AGENTS = {AGENT: ["shop"], JUDGE: ["judge.polite"], EXPERIMENT: ["shop"], ALL: ["judge.polite", "shop", "shop"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a store with a run, one of an experiment, and one of the judge of its answer; a recording, too."""
    anyio.run(record, tmp_path)
    return tmp_path / "t.db"


async def record(folder: Path) -> None:
    """Record these runs."""
    with storing(folder / "t.db", file=File(folder / "t.jsonl")) as telemetry:
        agent = Agent("shop", model=FunctionModel(lambda request: "good morning"), telemetry=telemetry)
        await agent.run("hello", identity=Identity(conversation_id="ticket-17"))
        model = ScriptedModel('{"reason": "kind", "score": 1}')
        polite = judge("Polite.", model=model, name="polite", telemetry=telemetry)
        await experiment([Case(id="a", input="hello")], agent, scorers=[polite], name="greetings")


@pytest.mark.parametrize("kind", AGENTS)
async def test_readers_return_runs_of_a_kind(path: Path, kind: str) -> None:
    """Of one store, of several, and of a recording, in the list and in the search, which counts the others."""
    store = StoreReader(path)
    for reader in (store, ManyReader([store]), FileReader(path.with_suffix(".jsonl"))):
        found = reader.runs(kind=kind)
        assert sorted(row.agent for row in found) == AGENTS[kind]
        assert all(kind in {ALL, kind_of(row.conversation)} for row in found)
    for searched in (store, ManyReader([store])):
        result = searched.search(RunFilter(kind=kind))
        assert sorted(match.agent for match in result.matches) == AGENTS[kind]
        assert result.hidden == 3 - len(AGENTS[kind])
        assert result.tokens == StoreReader(path).search(RunFilter(kind=kind)).tokens
    assert store.search(RunFilter(kind=kind, agent="nobody")).hidden == 0


async def page(path: Path, address: str, status: int = 200) -> str:
    """Return a page of a store."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        answer = await http.get(address)
    assert answer.status_code == status, answer.text
    return answer.text


@pytest.mark.parametrize(
    ("address", "agents", "hidden"),
    [
        ("", ["shop"], "2 runs of judges and experiments are"),
        ("?kind=all", ["judge.polite", "shop"], None),
        ("?kind=judge", ["judge.polite"], "2 runs of other kinds are"),
        ("?by=conversation", ["experiment/greetings", "judge/polite", "ticket-17"], None),
    ],
)
async def test_trends_count_runs_of_a_kind(path: Path, address: str, agents: list[str], hidden: str | None) -> None:
    """Those of agents, like the list; the page says how many it leaves out."""
    shown = await page(path, f"/trends{address}")
    assert sorted(re.findall(r'<a class="row"[^>]* title="([^"]*)">', shown.partition('id="scores"')[0])) == agents
    assert ("not counted" in shown) == (hidden is not None)
    assert (hidden or "") in shown
    await page(path, "/trends?kind=other", 400)


def command(of: Command, *arguments: str) -> int:
    """Run a command."""
    parser = ArgumentParser()
    of.add_arguments(parser)
    return of.run(parser.parse_args(arguments))


def test_commands_leave_them_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--kind` shows them, and so does a conversation."""
    for options, expected in (
        ((), ["shop"]),
        (("--kind", "judge"), ["judge.polite"]),
        (("--kind", "all"), ["judge.polite", "shop", "shop"]),
        (("--conversation", "ticket-17"), ["shop"]),
        (("--conversation", "experiment/greetings"), ["shop"]),
        (("--conversation", "judge/polite"), ["judge.polite"]),
        (("--conversation", "other"), []),
    ):
        assert command(runs.COMMAND, "--json", "--store", str(path), *options) == int(not expected)
        found = json.loads(capsys.readouterr().out)["runs"]
        assert sorted(run["agent"] for run in found) == expected
    assert command(runs.COMMAND, "--store", str(path), "--agent", "judge.polite") == 1
    assert "see: --kind all" in capsys.readouterr().err
    for options, number in (((), 1), (("--kind", "all"), 3)):
        command(top.COMMAND, "--json", "--store", str(path), *options)
        assert len(json.loads(capsys.readouterr().out)["latest"]) == number


async def test_the_page_says_how_many_are_hidden(path: Path) -> None:
    """With a link that shows them; its figures are of what it shows."""
    content = await page(path, "/runs?agent=shop")
    assert re.search(r'<a href="([^"]*)">1 run of judges and experiments</a> is hidden\.', content)
    whole = await page(path, "/runs")
    [link] = re.findall(r'<a href="([^"]*)">2 runs of judges and experiments</a> are hidden\.', whole)
    assert "<dt>Runs</dt><dd>1</dd>" in whole
    shown = await page(path, link.replace("&amp;", "&"))
    assert "<dt>Runs</dt><dd>3</dd>" in shown
    assert "hidden." not in shown
    assert "<dt>Runs</dt><dd>1</dd>" in await page(path, "/runs?conversation=experiment/greetings")
    assert "The kind must be one of agent" in await page(path, "/runs?kind=other", status=400)


def test_a_watch_scores_neither(path: Path) -> None:
    """Runs of live experiments have scores of their own."""
    told: list[str] = []
    with (
        capture() as telemetry,
        closing(Recorder(path, telemetry, is_once=True)) as recorder,
        closing(Claims(path, "x", 60)) as claims,
        closing(Arrivals(path, "x")) as arrivals,
    ):
        claims.since(0)
        watch = Watch(
            *(StoreReader(path), [no_tool_errors], claims, arrivals, recorder, None),
            lambda row, scores: told.append(str(row.conversation)),
        )
        anyio.run(partial(watch.run, is_once=True))
    assert told == ["ticket-17"]


def test_an_index_finds_runs_of_a_conversation_and_a_kind(path: Path) -> None:
    """No list reads all runs."""
    statements: list[str] = []
    connect: Any = sqlite3.connect

    def tracing(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", tracing)
        StoreReader(path).runs(conversation="c")
        for kind in (JUDGE, AGENT, EXPERIMENT):
            StoreReader(path).runs(kind=kind)
    with closing(sqlite3.connect(path)) as connection:
        for statement in [each for each in statements if "FROM runs LEFT JOIN processes" in each]:
            plan = [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            [reading] = [detail for detail in plan if re.match("(SCAN|SEARCH) runs", detail)]
            assert "USING INDEX runs_by_" in reading, statement
