"""Runs and spans as JSON and Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2 as httpx
import pytest
from markdown_it import MarkdownIt

from pellucid import Agent, semconv
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.processes import PATIENCE
from support.view_scene import HOSTILE, QUESTION, shop

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """Return a reader of the runs of the shop; the newest one has failed."""
    path = tmp_path_factory.mktemp("formats") / "store.db"
    with storing(path) as telemetry:
        anyio.run(shop, telemetry)
        assert telemetry.flush(PATIENCE)
    return StoreReader(path)


async def fetched(reader: StoreReader, address: str, status: int = 200) -> httpx.Response:
    """Return the answer for an address."""
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        answer = await http.get(address)
    assert answer.status_code == status, answer.text
    return answer


async def test_a_run_is_json(reader: StoreReader) -> None:
    """It has the row of the run, its spans with all of their texts, and a critical path that adds up to the run."""
    run = reader.runs()[0]
    answer = await fetched(reader, f"/runs/{run.run_id}/?format=json")
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    assert (document["run"]["run_id"], document["run"]["status"]) == (run.run_id, "failed")
    assert [span["sequence"] for span in document["spans"]] == list(range(run.spans))
    assert "$body" not in answer.text
    root = document["spans"][0]
    assert QUESTION in root["attributes"][semconv.INPUT_MESSAGES]
    duration = root["end"] - root["start"]
    assert sum(document["critical_path"].values()) == duration
    assert sum(span["critical"] for span in document["spans"]) == duration


async def test_a_span_is_json(reader: StoreReader) -> None:
    """It has what went in and out; of a model call the whole request."""
    run = reader.runs()[0]
    call = [span for span in reader.spans(run.run_id) if span.phase == semconv.INFERENCE][1]
    document = (await fetched(reader, f"/runs/{run.run_id}/{call.sequence}?format=json")).json()["span"]
    assert document["span_id"] == call.span_id
    assert [message["role"] for message in document["content"]["request"]["messages"]] == ["user", "assistant", "tool"]
    assert document["content"]["output"][0]["role"] == "assistant"


async def test_a_run_is_markdown(reader: StoreReader) -> None:
    """It has question, reason, where the time went, a tree of spans and the conversation, in this order."""
    run = reader.runs()[0]
    answer = await fetched(reader, f"/runs/{run.run_id}/?format=md")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    texts = [f"# support `{run.run_id}`: failed", QUESTION, "answered 529", "Where the time went", "- discovery: "]
    texts += [
        "## Spans",
        "invoke_agent support",
        "execute_tool track_parcel",
        "## Conversation",
        "**user**",
        "**assistant**",
    ]
    places = [answer.text.index(text) for text in texts]
    assert places == sorted(places)


async def test_a_span_is_markdown(reader: StoreReader) -> None:
    """It has arguments, the reason why it failed, and attributes."""
    run = reader.runs()[0]
    call = next(span for span in reader.spans(run.run_id) if span.attributes.get(semconv.TOOL_NAME) == "track_parcel")
    text = (await fetched(reader, f"/runs/{run.run_id}/{call.sequence}?format=md")).text
    for shown in (
        "track\\_parcel: failed",
        "RuntimeError: Posten does not know",
        '"carrier": "Posten"',
        "## Attributes",
    ):
        assert shown in text


@pytest.mark.parametrize("text", ["```\n# out\n<b>", f"`````{HOSTILE}\n````", "# x\n\n---\n", HOSTILE])
async def test_recorded_text_cannot_leave_its_fence(tmp_path: Path, text: str) -> None:
    """Whatever was recorded stays a block of code in Markdown, also as the name of an agent."""
    with storing(tmp_path / "s.db") as telemetry:
        await Agent("a", model=ScriptedModel(text), telemetry=telemetry).run(text)
    reader = StoreReader(tmp_path / "s.db")
    run_id = reader.runs()[0].run_id
    for place in ("", "0"):
        shown = (await fetched(reader, f"/runs/{run_id}/{place}?format=md")).text
        tokens = MarkdownIt().parse(shown)
        headings = [tokens[index + 1].content for index, token in enumerate(tokens) if token.type == "heading_open"]
        assert not {"out", "x"} & set(headings)
        assert "html_block" not in {token.type for token in tokens}
        assert not {"\u202e", "\x1b"} & set(shown)


async def test_other_formats_are_refused(reader: StoreReader) -> None:
    """An unknown format is a 400 that names those that there are."""
    run = reader.runs()[0]
    for place in ("", "3"):
        answer = await fetched(reader, f"/runs/{run.run_id}/{place}?format=xml", 400)
        assert "must be json or md" in answer.text
