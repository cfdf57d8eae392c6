"""Requests of `AnthropicModel`."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from pellucid import (
    Agent,
    BlobPart,
    FilePart,
    Message,
    ModelError,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    tool,
)
from pellucid.messages import ServerToolCall
from pellucid.models import AnthropicModel, OutputSchema
from support.anthropic_wire import message, text, thinking, tool_use, whole_or_streamed
from support.models import ADD, HELLO, asking, sent
from support.runs import within
from support.vendor_server import answer_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.vendor_server import VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

EPHEMERAL = {"type": "ephemeral"}


@pytest.fixture
def server(server: VendorServer) -> VendorServer:
    """Run a server that answers every request."""
    server.always(answer_json(message(text("Hi"))))
    return server


@pytest.fixture
async def model(server: VendorServer) -> AsyncIterator[AnthropicModel]:
    """Return a model at that server."""
    async with aclosing(AnthropicModel("claude", api_key="key-1", base_url=server.url)) as model:
        yield model


async def test_a_plain_request(server: VendorServer, model: AnthropicModel) -> None:
    """A plain request has the model, the message, `max_tokens` and a mark for the cache."""
    body = await sent(server, model, HELLO)
    assert body == {
        "model": "claude",
        "max_tokens": 16384,
        "messages": [{"role": "user", "content": [text("Hello?")]}],
        "cache_control": EPHEMERAL,
    }
    assert server.requests[-1].headers["anthropic-version"] > "2023-06-01"


async def test_instructions_and_tools(server: VendorServer, model: AnthropicModel) -> None:
    """The last instruction is marked for the cache, or the last tool if there are no instructions."""
    described = replace(ADD, output_schema={"type": "object"})  # which the API does not take
    body = await sent(server, model, asking(*HELLO.messages, instructions="Be brief.", tools=[described]))
    assert body["system"] == [{**text("Be brief."), "cache_control": EPHEMERAL}]
    assert body["tools"] == [{"name": "add", "description": "Add two numbers.", "input_schema": ADD.parameters}]
    body = await sent(server, model, asking(*HELLO.messages, tools=[ADD, ADD]))
    assert "system" not in body
    assert [each.get("cache_control") for each in body["tools"]] == [None, EPHEMERAL]


@pytest.mark.parametrize(("cache", "mark"), [(False, None), (True, EPHEMERAL), ("1h", {**EPHEMERAL, "ttl": "1h"})])
async def test_the_cache_can_be_switched(server: VendorServer, cache: Any, mark: Any) -> None:
    """The cache can be switched off, or kept for five minutes or an hour."""
    async with aclosing(AnthropicModel("claude", api_key="key-1", base_url=server.url, cache=cache)) as model:
        body = await sent(server, model, asking(*HELLO.messages, instructions="Be brief."))
    assert body.get("cache_control") == mark
    assert body["system"][0].get("cache_control") == mark


async def test_settings(server: VendorServer, model: AnthropicModel) -> None:
    """Settings are sent under the vendor's names, and `extra` unchanged."""
    settings: Any = {
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ("END",),
        "reasoning_level": "high",
        "extra": {"service_tier": "standard_only", "metadata": {"user_id": "u1"}},
    }
    body = await sent(server, model, asking(*HELLO.messages, settings=settings))
    expected = {
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "service_tier": "standard_only",
        "metadata": {"user_id": "u1"},
    }
    assert expected.items() <= body.items()
    # Newer versions of the API have nothing to do with sampling, and refuse it whichever model is asked.
    assert server.requests[-1].headers["anthropic-version"] == "2023-06-01"
    body = await sent(server, model, asking(*HELLO.messages, settings={"reasoning_level": "none"}))
    assert body["thinking"] == {"type": "disabled"}


async def test_an_answer_of_a_type(server: VendorServer, model: AnthropicModel) -> None:
    """An output type is sent as the vendor's own parameter, beside the effort."""
    schema = OutputSchema(name="Sum", schema={"type": "object", "properties": {}})
    body = await sent(server, model, asking(*HELLO.messages, output=schema, settings={"reasoning_level": "low"}))
    assert body["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {**schema.schema, "additionalProperties": False}},
    }

    class Sum(BaseModel):
        total: int

    server.answers(answer_json(message(text('{"total": 3}'))))
    result = await within(Agent("a", model=model, output=Sum).run("1 + 2?"))
    assert result.output == Sum(total=3)
    assert "system" not in server.requests[-1].json


async def test_a_conversation_with_tools(server: VendorServer, model: AnthropicModel) -> None:
    """Calls and results are sent in the vendor's blocks, with errors, data, raw arguments and images."""
    image = BlobPart(content="AA==", modality="image", mime_type="image/png")
    calls = [ToolCall("add", {"a": 1}, "t1"), ToolCall("add", "nonsense", "t2"), ToolCall("add", "", "t.3")]
    results = [
        ToolResult("t1", "text", name="add"),
        ToolResult("t2", {"sum": [1, "ü"]}, is_error=True, name="add"),
        ToolResult("t.3", (TextPart("see"), image), name="add"),
    ]
    body = await sent(
        server, model, asking(Message("user", "go"), Message("assistant", calls), Message("tool", results), tools=[ADD])
    )
    assert body["messages"][1] == {
        "role": "assistant",
        "content": [
            tool_use("add", {"a": 1}, "t1"),
            tool_use("add", {"INVALID_JSON": "nonsense"}, "t2"),
            tool_use("add", {}, "t_3"),
        ],
    }
    shown = [text("see"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]
    assert body["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "text"},
            {"type": "tool_result", "tool_use_id": "t2", "content": '{"sum": [1, "ü"]}', "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "t_3",
                "content": shown,
            },
        ],
    }


async def test_a_closing_request_keeps_the_history_valid(server: VendorServer, model: AnthropicModel) -> None:
    """A closing request without tools names those of the history and forbids their use."""
    history = [Message("assistant", [ToolCall("add", {}, "t1")]), Message("tool", [ToolResult("t1", "3")])]
    body = await sent(server, model, asking(Message("user", "go"), *history))
    assert [each["name"] for each in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


async def test_media(server: VendorServer, model: AnthropicModel) -> None:
    """Images and documents are sent by value, by address and by id."""
    note = base64.b64encode("Grüße".encode()).decode()
    body = await sent(
        server,
        model,
        asking(
            Message(
                "user",
                [
                    BlobPart(content="AA==", modality="image", mime_type="image/jpeg"),
                    UriPart(uri="https://example.com/a.png", modality="image"),
                    FilePart(file_id="file_1", modality="image"),
                    BlobPart(content="JVBERg==", modality="document", mime_type="application/pdf"),
                    BlobPart(content=note, modality="document", mime_type="text/plain"),
                    UriPart(uri="https://example.com/a.pdf", modality="document"),
                    FilePart(file_id="file_2", modality="document"),
                ],
            )
        ),
    )
    sources = [(block["type"], block["source"]) for block in body["messages"][0]["content"]]
    assert sources == [
        ("image", {"type": "base64", "media_type": "image/jpeg", "data": "AA=="}),
        ("image", {"type": "url", "url": "https://example.com/a.png"}),
        ("image", {"type": "file", "file_id": "file_1"}),
        ("document", {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}),
        ("document", {"type": "text", "media_type": "text/plain", "data": "Grüße"}),
        ("document", {"type": "url", "url": "https://example.com/a.pdf"}),
        ("document", {"type": "file", "file_id": "file_2"}),
    ]


@pytest.mark.parametrize("modality", ["audio", "video"])
async def test_media_that_the_api_does_not_take(server: VendorServer, model: AnthropicModel, modality: Any) -> None:
    """A part that the API does not accept is refused before anything is sent."""
    part = UriPart(uri="https://example.com/a", modality=modality)
    with pytest.raises(ModelError, match=f"does not accept {modality}; remove the UriPart") as caught:
        await within(model.generate(asking(Message("user", [part]))))
    assert caught.value.error_kind == "invalid_request"
    assert server.requests == []


async def test_thoughts_go_back_to_their_vendor_only(server: VendorServer, model: AnthropicModel) -> None:
    """Reasoning is sent back with its signature, and that of other vendors is left out with their tools."""
    signed = ReasoningPart("Hm.", vendor={"anthropic": {"signature": "sig-1"}})
    hidden = ReasoningPart("", vendor={"anthropic": {"data": "c2VjcmV0"}})
    foreign = ReasoningPart("Hm?", vendor={"openai": {"encrypted_content": "x"}})
    theirs = ServerToolCall(name="web_search", server_tool_call={"type": "web_search_call"}, id="ws_1")
    said = Message("assistant", [signed, hidden, foreign, theirs, TextPart(""), TextPart("42")])
    body = await sent(server, model, asking(Message("user", "go"), said, Message("user", "why?")))
    assert body["messages"][1]["content"] == [
        thinking("Hm."),
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        text("42"),
    ]


async def test_system_messages(server: VendorServer, model: AnthropicModel) -> None:
    """Leading system messages join the instructions, and later ones stay in the history."""
    body = await sent(
        server,
        model,
        asking(Message("system", "Be kind."), *HELLO.messages, Message("system", "Hurry."), instructions="Be brief."),
    )
    assert [block["text"] for block in body["system"]] == ["Be brief.", "Be kind."]
    assert body["messages"][1] == {"role": "system", "content": [text("Hurry.")]}


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_what_was_sent_is_sent_again_byte_for_byte(server: VendorServer, model: AnthropicModel, how: str) -> None:
    """Tools, instructions and history of a request are the same bytes in the next one."""

    @tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    replies = [
        message(thinking("Add."), tool_use("add", {"b": number, "a": 1}, f"toolu_{number}"), stop="tool_use")
        for number in range(3)
    ]
    replies.append(message(text("Done.")))
    server.answers(*(whole_or_streamed(reply, stream=how == "stream") for reply in replies))
    agent = Agent("a", model=model, tools=[add], instructions="Be brief.")
    if how == "run":
        await within(agent.run("Add."))
    else:
        async with agent.stream("Add.") as events:
            async for _ in events:
                pass
    bodies = [request.body for request in server.requests]
    assert len(bodies) == 4
    for earlier, later in pairwise(bodies):
        for member in ("tools", "system", "model"):
            written = json.dumps(json.loads(earlier)[member], ensure_ascii=False, separators=(",", ":")).encode()
            assert written in earlier
            assert written in later
        history = json.dumps(json.loads(earlier)["messages"], ensure_ascii=False, separators=(",", ":")).encode()
        assert history in earlier
        assert history[:-1] in later
