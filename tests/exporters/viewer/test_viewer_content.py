"""Recorded content on the pages of runs: Markdown, images, audio, hostile texts, and what a model call got."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pellucid import (
    Agent,
    BlobPart,
    Context,
    Limits,
    Message,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCall,
    UriPart,
    Usage,
    semconv,
    tool,
)
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import emit, storing

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c63f8cfc0f01f00050001ff56c7e8870000000049454e44ae426082"
    )
).decode()

pytestmark = pytest.mark.anyio


def client(path: Path, **options: Any) -> httpx.AsyncClient:
    """Return a client of the pages of a store."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path), **options))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", follow_redirects=True)


async def pages(path: Path, **options: Any) -> tuple[str, str]:
    """Return the page of the newest run with its conversation, and that of its last model call."""
    reader = StoreReader(path)
    run = reader.runs()[0]
    call = [span for span in reader.spans(run.run_id) if span.phase == semconv.INFERENCE][-1]
    async with client(path, **options) as http:
        shown = [await http.get(f"/runs/{run.run_id}/{place}") for place in ("", call.sequence)]
    assert [answer.status_code for answer in shown] == [200, 200]
    first, second = (answer.text.replace("&#34;", '"').replace("&#39;", "'") for answer in shown)
    return first, second


async def run(path: Path, *answers: Any, question: Any = "x", **options: Any) -> None:
    """Run an agent once."""
    with storing(path) as telemetry:
        await Agent("a", model=ScriptedModel(*answers), telemetry=telemetry, **options).run(question)


async def test_markdown_is_rendered(tmp_path: Path) -> None:
    """Headings, lists, tables, code and emphasis of messages are markup; line breaks stay, and so does plain text."""
    text = "# Prices\n\n- **wool**: 60\n- `silk`\n\n| a | b |\n|---|---|\n| 1 | ~~2~~ |\n\n"
    text += "```python\nx < 1\n```\nline\nbreak"
    await run(tmp_path / "s.db", text, question="Which * costs 5 * 3?\n  indented")
    for page in await pages(tmp_path / "s.db"):
        assert "<p><b>Prices</b></p>" in page
        assert "<li><strong>wool</strong>: 60</li>" in page
        assert "<code>silk</code>" in page
        assert "<td><s>2</s></td>" in page
        assert '<pre class="code" data-language="python">x &lt; 1\n</pre>' in page
        assert "line<br" in page
        assert '<pre class="prose">Which * costs 5 * 3?\n  indented</pre>' in page


@pytest.mark.parametrize(
    ("text", "shown", "never"),
    [
        ("**x** <script>alert(1)</script>", "&lt;script&gt;", "<script>alert"),
        ("**x** <img src=x onerror=alert(1)>", "&lt;img", "<img"),
        ("[run](javascript:alert(1))", "[run](javascript:alert(1))", 'href="javascript'),
        ("[run](JaVaScRiPt:alert(1))", "alert(1)", '<a href="J'),
        ("[run](data:text/html;base64,PHNjcmlwdD4=)", "[run]", 'href="data'),
        ("[x](vbscript:x) [y](file:///etc/passwd) [z](/runs)", "file:///etc/passwd", 'href="file'),
        ("[x][1]\n\n[1]: javascript:alert(1)", "javascript:alert(1)", 'href="java'),
        ("<javascript:alert(1)> `x`", "javascript:alert(1)", 'href="java'),
        ("![x](https://evil.example/x.png)", '<a href="https://evil.example/x.png" rel="noreferrer noopener', "<img"),
        ('![x](https://evil.example/" onerror="alert(1))', "onerror", '" onerror="'),
        ("[a](https://evil.example 'x\" onclick=\"y')", 'href="https://evil.example"', 'onclick="y'),
        ("![x](data:image/svg+xml;base64,PHN2Zz4=)", "image", 'src="data:'),
        (f"![dot](data:image/png;base64,{PNG})", "/media/", 'src="data:'),
        ("**\u202egnp.exe\x1b[31m**", "⟦U+202E⟧gnp.exe␛[31m", "\u202e"),
        ("**x** &lt;b&gt; &#x3c;script&#x3e;", "&lt;b&gt; &lt;script&gt;", "<script>x"),
    ],
)  # fmt: skip
async def test_hostile_markdown_is_harmless(tmp_path: Path, text: str, shown: str, never: str) -> None:
    """Nothing in it becomes raw HTML, a script address, or a request to another host before it is clicked."""
    await run(tmp_path / "s.db", text)
    for page in await pages(tmp_path / "s.db"):
        talk = page[page.index('class="message') :]
        assert shown in talk
        assert never not in talk
        assert not re.search(r'<(?:img|audio|iframe|link|object)[^>]*(?:src|href)="(?!/)', talk)


async def test_links_name_their_host(tmp_path: Path) -> None:
    """A link whose text is not its address says where it leads, and sends no referrer."""
    await run(
        tmp_path / "s.db", "[https://bank.example](https://evil.example/x) or [shop.example](https://shop.example/)"
    )
    for page in await pages(tmp_path / "s.db"):
        assert '>https://bank.example</a> <span class="host">(evil.example)</span>' in page
        assert 'rel="noreferrer noopener nofollow" target="_blank">shop.example</a>\n' in page.replace("</p>", "\n")


@pytest.mark.parametrize("text", ["*" * 40_000, "[" * 20_000, "> " * 9_000 + "x", "* a\n" * 5_000, "`" * 30_000])
async def test_markdown_bombs_stay_small(tmp_path: Path, text: str) -> None:
    """Markup that nests without end, or has thousands of elements, is shown within the room of the page."""
    await run(tmp_path / "s.db", text)
    first, _ = await pages(tmp_path / "s.db")
    assert first.count("<") - first.count("</") < 3_000
    assert len(first.encode()) < 600_000


async def test_images_and_audio_are_shown_from_the_store(tmp_path: Path) -> None:
    """Blobs of messages and results are served by the page itself with their type and size; others are named."""
    sound = base64.b64encode(b"RIFF0000WAVE").decode()
    parts: list[BlobPart | UriPart] = [
        BlobPart(content=PNG, modality="image", mime_type="image/png"),
        BlobPart(content=sound, modality="audio", mime_type="audio/wav"),
        BlobPart(content=PNG, modality="image", mime_type="image/svg+xml"),
        BlobPart(content="not base64", modality="image", mime_type="image/png"),
        UriPart(uri="https://shop.example/x.png", modality="image"),
        UriPart(uri="javascript:alert(1)", modality="image"),
        UriPart(uri=f"data:image/gif;base64,{PNG}", modality="image"),
    ]
    path = tmp_path / "s.db"
    await run(path, "fine", question=[Message("user", parts)])
    async with client(path) as http:
        for page in await pages(path):
            sources = re.findall(r'<img src="([^"]+)"', page)
            players = re.findall(r'<audio controls preload="none" src="([^"]+)"', page)
            assert (len(sources), len(players)) == (2, 1)
            assert "image/gif, 70 bytes" in page
            assert "image/png, 70 bytes" in page
            assert "image/svg+xml, 70 bytes" in page
            assert "not shown: cut or redacted" in page
            assert '<a href="https://shop.example/x.png" rel="noreferrer' in page
            assert 'href="javascript' not in page
            image, audio = await http.get(sources[0]), await http.get(players[0])
            assert (image.headers["content-type"], image.content) == ("image/png", base64.b64decode(PNG))
            assert (audio.headers["content-type"], audio.content) == ("audio/wav", b"RIFF0000WAVE")
            assert image.headers["x-content-type-options"] == "nosniff"
            assert "media-src 'self'" in image.headers["content-security-policy"]
            assert (await http.get(sources[0][:-1])).status_code == 404


async def test_images_of_other_hosts_need_an_option(tmp_path: Path) -> None:
    """With the option, pages load them, and their policy allows that; without it neither."""
    path = tmp_path / "s.db"
    await run(path, "![x](https://shop.example/x.png)")
    for has_images in (False, True):
        for page in await pages(path, images=has_images):
            assert ('<img src="https://shop.example/x.png"' in page) is has_images
        async with client(path, images=has_images) as http:
            policy = (await http.get("/runs")).headers["content-security-policy"]
        assert ("img-src 'self' https:" in policy) is has_images


async def test_results_of_tools_with_parts_are_shown_as_parts(tmp_path: Path) -> None:
    """An image that a tool returned is an image in the conversation."""

    @tool
    def look() -> list[Any]:
        """Look."""
        return [TextPart("here"), BlobPart(content=PNG, modality="image", mime_type="image/png")]

    path = tmp_path / "s.db"
    await run(path, ToolCall("look", {}), "fine", tools=[look])
    for page in await pages(path):
        assert page.count("<img src=") == 1


def spent(answer: Any, tokens: int, cached: int) -> ModelResponse:
    """Return an answer with tokens of input, some of them from the vendor's cache."""
    message = Message("assistant", [answer] if isinstance(answer, ToolCall) else answer)
    usage = Usage(input_tokens=tokens, output_tokens=5, cache_read_input_tokens=cached, cost=tokens / 1e5)
    return ModelResponse(message=message, usage=usage)


async def test_a_call_shows_what_it_got(tmp_path: Path) -> None:
    """Messages that are new and that the call before had, tokens from the cache, and tools by hub; bars by call."""

    @tool
    def look(word: str) -> str:
        """Look."""
        return "found"

    path = tmp_path / "s.db"
    answers = [spent(ToolCall("look", {"word": "a"}), 100, 0), spent("fine", 400, 300)]
    await run(path, *answers, tools=[look])
    reader = StoreReader(path)
    run_id = reader.runs()[0].run_id
    _, page = await pages(path)
    assert "<b>3</b> messages: 1 as in the call before, 2 new, 0 cut" in page
    assert "300 of 400 tokens from the vendor's cache (75 %)" in page
    assert "Compared with the call before" not in page
    async with client(path) as http:
        calls = (await http.get(f"/runs/{run_id}/?side=calls")).text
    assert '<rect class="new" width="25.0%"/>' in calls
    assert '<rect class="new" width="100.0%"/><rect class="old" width="75.0%"/>' in calls
    assert re.findall(r'<rect class="cost" width="([\d.]+)%"', calls) == ["25.0", "100.0"]


def chat(number: int, messages: Sequence[Any], **attributes: Any) -> dict[str, Any]:
    """Return the attributes of a model call."""
    return {
        semconv.RUN_ID: "1" * 32,
        semconv.PHASE: semconv.INFERENCE,
        semconv.ITERATION: number,
        semconv.REQUEST_MODEL: "m",
        semconv.INPUT_MESSAGES: json.dumps(messages),
        **attributes,
    }


def said(text: str) -> dict[str, Any]:
    """Return a message."""
    return {"role": "user", "parts": [{"type": "text", "content": text}]}


async def test_differences_to_the_call_before_are_marked(tmp_path: Path) -> None:
    """Instructions, settings, tools and messages that changed have their words marked; what was cut is named."""
    path = tmp_path / "s.db"

    def definitions(*names: str) -> str:
        return json.dumps([{"type": "function", "name": name, "description": f"A {name}."} for name in names])

    one = {
        semconv.SYSTEM_INSTRUCTIONS: '[{"type":"text","content":"Be brief, and never promise <b>a refund</b>."}]',
        semconv.REQUEST_TEMPERATURE: 0.2,
        semconv.TOOL_DEFINITIONS: definitions("pay", "look"),
        semconv.CATALOG_DIGEST: "1" * 32,
    }
    two = {
        semconv.SYSTEM_INSTRUCTIONS: '[{"type":"text","content":"Be brief, and always promise <b>a refund</b>."}]',
        semconv.REQUEST_TEMPERATURE: 0.9,
        semconv.TOOL_DEFINITIONS: definitions("look", "search"),
        semconv.CATALOG_DIGEST: "2" * 32,
    }
    with storing(path) as telemetry:
        emit(telemetry, "chat m", **chat(1, [said("hello there"), said("the long result"), said("go")], **one))
        emit(telemetry, "chat m", **chat(2, [said("hello there"), said("the cut result"), said("on")], **two))
    _, page = await pages(path)
    assert "never promise" not in page[page.index("Compared") : page.index("What it answered")]
    assert "Be brief, and <del>never</del><ins>always</ins> promise &lt;b&gt;a refund&lt;/b&gt;." in page
    assert "<del>2</del><ins>9</ins>" in page
    assert "<h4>tools removed</h4><p>pay</p><h4>tools added</h4><p>search</p>" in page
    assert "<h4>message 2</h4>" in page
    assert "the <del>long</del><ins>cut</ins> result" in page
    assert "<b>3</b> messages: 1 as in the call before, 2 new, 2 cut" in page


async def test_what_compaction_left_out_is_shown(tmp_path: Path) -> None:
    """A call whose request was cut says how many messages it lacks, by which strategies, and what they were."""

    def answer(request: ModelRequest) -> Any:
        number = sum(message.role == "assistant" for message in request.messages)
        return ToolCall("read", {"page": number}, f"call_{number}") if number < 12 else "Read."

    @tool
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page}: " + "word " * 800

    path = tmp_path / "s.db"
    with storing(path) as telemetry:
        agent = Agent(
            "reader",
            model=FunctionModel(answer),
            tools=[read],
            context=Context(window=10_000),
            limits=Limits(max_iterations=20),
            telemetry=telemetry,
        )
        await agent.run("Read all pages.")
    reader = StoreReader(path)
    spans = reader.spans(reader.runs()[0].run_id)
    composed = next(span for span in spans if span.attributes.get(semconv.COMPOSE_LEFT_OUT))
    call = next(span for span in spans if span.phase == semconv.INFERENCE and span.iteration == composed.iteration)
    async with client(path) as http:
        page = (await http.get(f"/runs/{call.run_id}/{call.sequence}")).text
    assert f"<b>{composed.attributes[semconv.COMPOSE_LEFT_OUT]} left out</b> by compaction" in page
    assert re.search(r"Compaction by DropResults: \d+ messages, [\d,]+ → [\d,]+ tokens \(estimated\)", page)
    changed = page[page.index("<h4>message 3</h4>") : page.index("<h4>message 5</h4>")]
    assert "left out" in re.sub("<del>.*?</del>|</?ins>", "", changed)
    assert "word word" in re.sub("<ins>.*?</ins>|</?del>", "", changed)
