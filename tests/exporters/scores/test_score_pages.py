"""Scores on the pages and in the terminal, and the buttons that give them."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2 as httpx
import pytest

from pellucid import Agent
from pellucid.scores import Score, Scored, score
from pellucid.scores.record import record
from pellucid.testing import ScriptedModel
from pellucid_commands.inspection import runs as runs_command
from pellucid_commands.inspection import show as show_command
from pellucid_commands.view.actions import feedback_to
from pellucid_experiments import load_cases
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.scores import FEW
from pellucid_exporters.viewer import create_viewer_app
from pellucid_exporters.viewer.feedback.routes import MOST_COMMENT
from pellucid_exporters.viewer.run.page import MOST_SCORES
from pellucid_exporters.viewer.runs.saved import MOST_NAME, SavedFilters
from pellucid_exporters.viewer.sessions import Actions
from support.local_store import storing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid.cli import Command

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script>\u202e"
TOKEN = "a-token-that-is-long-enough"
OWN = {"sec-fetch-site": "same-origin"}


async def fill(path: Path) -> list[str]:
    """Record runs of two versions with scores, and return their ids."""
    ids = []
    with storing(path) as telemetry:
        for number in range(FEW + 2):
            version = "1" if number < FEW else "2"
            agent = Agent("support", version=version, model=ScriptedModel("done", name="small"), telemetry=telemetry)
            result = await agent.run(f"question {number}")
            score(result, "correct", value=number % 2, by="price_check", telemetry=telemetry)
            ids.append(result.run_id)
        score(Scored(run_id=ids[0]), HOSTILE, label=HOSTILE, explanation=HOSTILE, by=HOSTILE, telemetry=telemetry)
        broken = Score(name="style", error_type="TimeoutError", explanation="no answer", by="style")
        record(Scored(run_id=ids[0]), broken, telemetry)
    return ids


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with scores."""
    return tmp_path_factory.mktemp("scores") / "store.db"


@pytest.fixture(scope="module")
def ids(path: Path) -> list[str]:
    """Return the ids of its runs, the oldest first."""
    return anyio.run(fill, path)


def client(path: Path, **options: Any) -> httpx.AsyncClient:
    """Return a client of the pages of a store."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path), **options))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


async def page(path: Path, address: str, status: int = 200) -> str:
    """Return a page, in which nothing hostile is markup, without the entities of quotation marks."""
    async with client(path) as http:
        answer = await http.get(address)
    assert answer.status_code == status, answer.text
    if answer.headers["content-type"].startswith("text/html"):
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text
    return answer.text.replace("&#34;", '"').replace("&#39;", "'")


async def test_the_page_of_a_run_has_its_scores(path: Path, ids: list[str]) -> None:
    """With who gave them, why, and what could not be judged; hostile ones are text."""
    text = await page(path, f"/runs/{ids[0]}/")
    section = text.partition('id="scores"')[2].partition("</section>")[0]
    assert "Scores" in section
    style, hostile, correct = re.findall(r"<tr>.*?</tr>", section.partition("<tbody>")[2], re.DOTALL)
    assert '<span class="bad">TimeoutError</span>' in style
    assert "no answer" in style
    assert hostile.count("&lt;script&gt;alert(1)&lt;/script&gt;⟦U+202E⟧") >= 4
    assert "price_check" in correct
    assert '<td class="n">0</td>' in correct
    assert "<form" not in section
    exported = json.loads(await page(path, f"/runs/{ids[0]}/?format=json"))
    assert [each["name"] for each in exported["run"]["scores"]] == [HOSTILE, "correct", "style"]
    assert "- score correct: 0, by price\\_check" in await page(path, f"/runs/{ids[0]}/?format=md")


async def test_many_scores_of_a_run_are_bounded(tmp_path: Path) -> None:
    """The newest are shown, and the others counted."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        result = await Agent("a", model=ScriptedModel("done"), telemetry=telemetry).run("go")
        for number in range(MOST_SCORES + 3):
            score(result, "correct", value=number, telemetry=telemetry)
    text = await page(path, f"/runs/{result.run_id}/")
    assert "3 earlier ones" in text
    assert text.count('<td class="why">') == MOST_SCORES


async def test_the_list_has_columns_of_scores(path: Path, ids: list[str]) -> None:
    """By which it is sorted and filtered."""
    text = await page(path, "/runs?sort=score:correct")
    assert 'aria-sort="ascending"' in text
    rows = re.findall(r"<tr>.*?</tr>", text.partition("<tbody>")[2], re.DOTALL)
    values = [re.findall(r'score" title="[^"]*">([\d.]+)</td>', row)[-1] for row in rows]
    assert values == sorted(values)
    text = await page(path, "/runs?score=correct%3C0.5")
    assert len(re.findall(r'<td class="question">', text)) == len(ids) / 2
    assert "more-scores" not in text
    assert "Score: <b>correct&lt;0.5</b>" in text
    assert "a label, by = or !=" in await page(path, "/runs?score=correct%3Clow", 400)
    assert 'class="bad">TimeoutError<' in await page(path, "/runs?score=style")


async def test_the_list_says_which_scores_are_no_columns(tmp_path: Path) -> None:
    """Four names are, first those that the address names; each further one is a link to its column."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        agent = Agent("support", model=ScriptedModel("done"), telemetry=telemetry)
        result = await agent.run("go")
        for name in "abcdef":
            score(result, name, value=1, telemetry=telemetry)

    async def columns(address: str) -> tuple[str, str]:
        text = await page(path, address)
        line = re.search(r'<p class="cut more-scores">(.*?)</p>', text)
        assert line is not None
        return "".join(re.findall(r"sort=score%3A(\w)", text)), line[1]

    shown, more = await columns("/runs?range=7d")
    assert shown == "abcd"
    assert re.sub("<.*?>", "", more) == "Columns of scores: a, b, c, d and 2 more: e, f"
    assert 'href="/runs?range=7d&amp;column=f"' in more
    shown, more = await columns("/runs?range=7d&column=f")
    assert (shown, re.sub("<.*?>", "", more)) == ("abcf", "Columns of scores: a, b, c, f and 2 more: d, e")
    assert '<input type="hidden" name="column" value="f">' in await page(path, "/runs?column=f")
    assert (await columns("/runs?sort=-score:e&score=f%3E0"))[0] == "abef"
    assert (await columns("/runs?column=unknown"))[0] == "abcd"


async def test_trends_say_when_there_are_too_few_scores(path: Path, ids: list[str]) -> None:
    """A mean by version has its number; of two scores there is none."""
    text = await page(path, "/trends?by=version")
    section = text.partition('id="scores"')[2]
    one, two = (row for row in re.findall(r"<tr>.*?</tr>", section, re.DOTALL) if 'title="correct"' in row)
    assert re.search(r'support 1</td><td class="n">0\.500 <small>n=10</small>', one)
    assert re.search(r'support 2</td><td class="n"><small[^>]*>too few</small> <small>n=2</small>', two)
    assert "1 without a judgement" in section
    assert 'title="support"' not in (await page(path, "/trends?by=tool")).partition('id="scores"')[2]
    assert "n=12" in await page(path, "/trends?by=model&name=small")


def run(command: Command, *arguments: str) -> int:
    """Run a command."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("correct~1", "no score is named 'correct~1'"),
        ("fine<1", "no score is named 'fine'"),
        ("correct=abc", "no score 'correct' has the label 'abc', which is no number"),
        ("correct<0", ""),
        ("style!=late", ""),
    ],
)
def test_the_terminal_says_why_no_run_has_such_a_score(
    given: str, hint: str, path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A condition with a slip is a name or a label that nothing has."""
    assert run(runs_command.COMMAND, "--store", str(path), "--score", given) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.strip()) == ("no run matches\n", hint)


def test_the_terminal_has_scores(path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In the list and of a run; hostile ones do nothing."""
    assert run(runs_command.COMMAND, "--store", str(path), "--score", "correct<0.5") == 0
    listed = capsys.readouterr().out
    assert "SCORES" in listed
    assert len(listed.splitlines()) == len(ids) / 2 + 1
    assert "style=!TimeoutError" in listed
    with pytest.raises(SystemExit):
        run(runs_command.COMMAND, "--score", "correct<low")
    assert "a label, by = or !=" in capsys.readouterr().err
    assert run(show_command.COMMAND, ids[0], "--store", str(path)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"score     correct=0  by price_check  \S+", shown)
    assert re.search(r"score     style=!TimeoutError  by style  \S+  no answer", shown)
    assert "\u202e" not in listed + shown
    assert run(show_command.COMMAND, ids[0], "--store", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)["scores"]
    assert [each["explanation"] for each in found] == [None, HOSTILE, "no answer"]


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of pages with buttons, of a store with one run."""
    path = tmp_path / "store.db"
    with storing(path) as telemetry:
        await Agent("support", version="3", model=ScriptedModel("done"), telemetry=telemetry).run("What now?")
    reader = StoreReader(path)
    with feedback_to(path, reader, Actions(TOKEN, "ann"), tmp_path / "cases.jsonl") as feedback:
        filters = SavedFilters(tmp_path / "store.filters.json")
        async with client(path, feedback=feedback, filters=filters) as http:
            yield http


async def form_of(http: httpx.AsyncClient, run_id: str) -> dict[str, str]:
    """Sign in, and return what the forms of a run send."""
    answer = await http.get(f"/sign-in?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    text = (await http.get(f"/runs/{run_id}/")).text
    (csrf, *_) = re.findall(r'name="csrf" value="([^"]+)"', text)
    return {"csrf": csrf, "run": run_id}


async def test_a_thumb_is_recorded(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """In the name of the system's user, with a comment, on the span of the run."""
    reader = StoreReader(tmp_path / "store.db")
    (row,) = reader.runs()
    form = await form_of(http, row.run_id)
    answer = await http.post("/do/score", data={**form, "label": "down", "comment": " too long "}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{row.run_id}/#scores")
    (thumb,) = reader.scores(row.run_id)
    assert (thumb.name, thumb.value, thumb.label, thumb.explanation) == ("thumb", 0, "down", "too long")
    assert (thumb.by, thumb.trace_id, thumb.version) == ("ann", row.trace_id, "3")
    assert thumb.span_id == reader.spans(row.run_id)[0].span_id
    assert ">down<" in (await http.get(f"/runs/{row.run_id}/")).text


async def test_a_run_is_added_to_a_set(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """Once; again says that it is there."""
    (row,) = StoreReader(tmp_path / "store.db").runs()
    form = await form_of(http, row.run_id)
    answer = await http.post("/do/case", data=form, headers=OWN)
    assert answer.status_code == 303
    (case,) = load_cases(tmp_path / "cases.jsonl")
    assert (case.input, case.source) == ("What now?", row.run_id)
    assert f"added as {case.id}" in (await http.get(answer.headers["location"])).text
    again = await http.post("/do/case", data=form, headers=OWN)
    assert again.status_code == 409
    assert len(load_cases(tmp_path / "cases.jsonl")) == 1


async def test_a_filter_is_saved_under_a_name(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """In a private file, for each browser, until it is removed; what is no parameter of the list is left out."""
    (row,) = StoreReader(tmp_path / "store.db").runs()
    form = {"csrf": (await form_of(http, row.run_id))["csrf"], "name": HOSTILE}
    query = {"query": "agent=support&sort=-cost&evil=//elsewhere&text="}
    answer = await http.post("/do/filter", data={**form, **query}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?agent=support&sort=-cost")
    file = tmp_path / "store.filters.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with client(tmp_path / "store.db", filters=SavedFilters(file)) as other:
        text = (await other.get("/runs")).text
    assert '<a href="/runs?agent=support&amp;sort=-cost">&lt;script&gt;alert(1)' in text
    assert "/do/filter" not in text
    assert 'aria-current="true">&lt;script' in (await http.get("/runs?agent=support&sort=-cost")).text
    await http.post("/do/filter", data={**form, "query": "agent=other"}, headers=OWN)
    assert list(SavedFilters(file).all().values()) == ["agent=other"]
    for wrong, status in (
        ({"csrf": "x"}, 403),
        ({"name": "n" * (MOST_NAME + 1)}, 409),
        ({"query": ""}, 409),
        ({"name": ""}, 400),
    ):
        answer = await http.post("/do/filter", data={**form, **query, **wrong}, headers=OWN)
        assert answer.status_code == status, wrong
    await http.post("/do/filter", data={**form, "remove": "yes"}, headers=OWN)
    assert SavedFilters(file).all() == {}
    file.write_text("[broken")
    assert (await http.get("/runs")).status_code == 200
    assert (await http.post("/do/filter", data={**form, **query}, headers=OWN)).status_code == 409
    assert file.read_text() == "[broken"


async def test_forms_of_others_do_nothing(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """Without the cookie, the token of the page, or its origin; nor with what is no thumb."""
    reader = StoreReader(tmp_path / "store.db")
    (row,) = reader.runs()
    thumb = {"run": row.run_id, "label": "up"}
    assert (await http.post("/do/score", data={**thumb, "csrf": "x"}, headers=OWN)).status_code == 403
    assert (await http.get("/sign-in?token=other")).status_code == 403
    assert "To score it" in (await http.get(f"/runs/{row.run_id}/")).text
    form = {**thumb, **await form_of(http, row.run_id)}
    for wrong, headers, status in (
        ({"csrf": "x"}, OWN, 403),
        ({}, {"sec-fetch-site": "same-site"}, 403),
        ({}, {"origin": "http://127.0.0.1:9999"}, 403),
        ({"label": "sideways"}, OWN, 400),
        ({"comment": "x" * (MOST_COMMENT + 1)}, OWN, 400),
        ({"comment": "x" * 200_000}, OWN, 413),
        ({"run": "unknown"}, OWN, 404),
    ):
        answer = await http.post("/do/score", data={**form, **wrong}, headers=headers)
        assert answer.status_code == status, (wrong, headers)
    assert reader.scores(row.run_id) == []


async def test_pages_are_read_only_otherwise(path: Path, ids: list[str]) -> None:
    """There are no such addresses."""
    async with client(path) as http:
        assert (await http.post("/do/score", data={"run": ids[0], "label": "up"}, headers=OWN)).status_code == 405
        assert (await http.get(f"/sign-in?token={TOKEN}")).status_code == 404
