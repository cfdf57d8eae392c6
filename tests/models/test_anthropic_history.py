"""Histories that `AnthropicModel` sends so that the API takes them, and those that it refuses itself."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field

from pellucid import (
    Agent,
    BlobPart,
    Limits,
    Message,
    ModelError,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    tool,
)
from pellucid.messages import ServerToolResult
from pellucid.models import AnthropicModel, OutputSchema
from support.anthropic_rules import strict
from support.anthropic_wire import message, text, thinking, tool_use
from support.models import ADD, HELLO, asking, sent
from support.runs import within
from support.vendor_server import answer_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from support.vendor_server import VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

IMAGE = BlobPart(content="AA==", modality="image", mime_type="image/png")
SIGNED = ReasoningPart("Hm.", vendor={"anthropic": {"signature": "sig-1"}})
CITED = TextPart("Rain.", vendor={"anthropic": {"citations": [{"type": "char_location"}]}})


@pytest.fixture
def server(server: VendorServer) -> VendorServer:
    """Run a server that answers what the API answers, and refuses what it refuses."""
    server.always(strict(answer_json(message(text("Hi")))))
    return server


@pytest.fixture
async def model(server: VendorServer) -> AsyncIterator[AnthropicModel]:
    """Return a model at that server."""
    async with aclosing(AnthropicModel("claude", api_key="key-1", base_url=server.url)) as model:
        yield model


def user(*parts: Any) -> Message:
    """Return a message of the user."""
    return Message("user", [TextPart(part) if isinstance(part, str) else part for part in parts])


def said(*parts: Any) -> Message:
    """Return an answer."""
    return Message("assistant", [TextPart(part) if isinstance(part, str) else part for part in parts])


def done(*calls: str) -> Message:
    """Return results of tools."""
    return Message("tool", [ToolResult(call, "3", name="add") for call in calls])


ONE, TWO = ToolCall("add", {"a": 1}, "t1"), ToolCall("add", {"a": 2}, "t2")


@pytest.mark.parametrize(
    "history",
    [
        [user("a"), user("b"), said("c"), said("d"), user("e")],
        [user("a"), said(ONE, TWO), done("t1"), done("t2"), user("go on")],
        [user("a"), said(ONE), user("are you there?"), done("t1")],
        [user("a"), said(), user("b")],
        [user("a"), said("  \n"), user("\n", "b")],
        [user("a"), said(SIGNED), user("b")],
        [user("a"), said(SIGNED, "\n\n"), user("b")],
        [user("a"), said(ReasoningPart("another's"), ReasoningPart("unsigned", vendor={"anthropic": {}})), user("b")],
        [user("a"), said(SIGNED, "so", ONE), done("t1")],
        [user("a"), said(ToolCall("functions.add", {}, "call|1.2")), done("call|1.2")],
        [user("a"), said(ToolCall("add", "[1]", "t1")), Message("tool", [ToolResult("t1", "")])],
        [user("a"), said(ONE), Message("tool", [ToolResult("t1", (TextPart(" "), IMAGE))])],
        [user("a", CITED), said(CITED), user("b")],
        [Message("system", "s"), Message("system", " "), user("a")],
        [user("a"), Message("system", "s")],
        [user("a"), Message("system", "s"), Message("system", "t"), said("b"), user("c")],
        [user("a"), said("b"), Message("system", "s"), user("c")],
        [user("a"), said(ONE), done("t1"), Message("system", "s"), user("c")],
    ],
)
@pytest.mark.parametrize("tools", [[], [ADD]])
async def test_the_api_takes_it(
    server: VendorServer, model: AnthropicModel, history: Sequence[Message], tools: Sequence[Any]
) -> None:
    """Roles alternate, results come first and follow their calls, no text is blank, no thought is the end."""
    await sent(server, model, asking(*history, tools=tools, instructions="Be brief."))


async def test_messages_of_one_side_are_one(server: VendorServer, model: AnthropicModel) -> None:
    """In order, but for results of tools, which come first."""
    calls = said("first", ONE), said(TWO)
    body = await sent(server, model, asking(user("a"), *calls, done("t1"), user("b"), done("t2"), tools=[ADD]))
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    results = body["messages"][2]["content"]
    assert [block.get("tool_use_id", block.get("text")) for block in results] == ["t1", "t2", "b"]


async def test_a_system_message_in_the_middle(server: VendorServer, model: AnthropicModel) -> None:
    """Comes after what the user says, where the API takes it, and leaves what is before it as it is."""
    body = await sent(server, model, asking(user("a"), said("b"), Message("system", "s"), user("c")))
    assert [(one["role"], one["content"][0]["text"]) for one in body["messages"]] == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("system", "s"),
    ]
    assert "system" not in body


async def test_thoughts_and_calls_keep_their_order(server: VendorServer, model: AnthropicModel) -> None:
    """Thoughts between calls of tools go back between them."""
    other = ReasoningPart("Oh.", vendor={"anthropic": {"signature": "sig-2"}})
    body = await sent(server, model, asking(user("a"), said(SIGNED, ONE, other, TWO), done("t1", "t2"), tools=[ADD]))
    assert body["messages"][1]["content"] == [
        thinking("Hm.", "sig-1"),
        tool_use("add", {"a": 1}, "t1"),
        thinking("Oh.", "sig-2"),
        tool_use("add", {"a": 2}, "t2"),
    ]


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([user("a"), said("b", IMAGE), user("c")], "does not accept BlobPart in a message of role 'assistant'"),
        ([user("a", ONE)], "does not accept ToolCall in a message of role 'user'"),
        ([user("a"), said(ToolResult("t1", "3"))], "does not accept ToolResult in a message of role 'assistant'"),
        ([user("a"), Message("system", [IMAGE])], "does not accept BlobPart in a message of role 'system'"),
        (
            [user(BlobPart(content="AA==", modality="image", mime_type="image/bmp"))],
            "image/bmp; convert the BlobPart to",
        ),
        ([user(BlobPart(content="AA==", modality="document", mime_type="application/msword"))], "application/msword"),
        ([user(BlobPart(content="/w==", modality="document", mime_type="text/csv"))], "not UTF-8 in base64"),
        ([user(BlobPart(content="%", modality="document", mime_type="text/plain"))], "not UTF-8 in base64"),
        (
            [user(BlobPart(content="AA==", modality="audio", mime_type="audio/wav"))],
            "does not accept audio; remove the BlobPart",
        ),
        (
            [
                user("a"),
                said(ONE),
                Message("tool", [ToolResult("t1", (UriPart(uri="https://x/v", modality="video"),))]),
            ],
            "does not accept video; remove the UriPart",
        ),
    ],
)
async def test_what_the_api_has_no_place_for(
    server: VendorServer, model: AnthropicModel, history: Sequence[Message], problem: str
) -> None:
    """Is refused by name, with a remedy, and nothing is sent."""
    with pytest.raises(ModelError, match=problem) as caught:
        await within(model.generate(asking(*history, tools=[ADD])))
    assert (caught.value.error_kind, server.requests) == ("invalid_request", [])


@pytest.mark.parametrize("kind", ["text/csv", "text/markdown", "application/json"])
async def test_documents_that_are_text(server: VendorServer, model: AnthropicModel, kind: str) -> None:
    """Go as text, which is all that the API calls them."""
    part = BlobPart(content="w6TDtg==", modality="document", mime_type=kind)
    body = await sent(server, model, asking(user(part)))
    source = {"type": "text", "media_type": "text/plain", "data": "äö"}
    assert body["messages"][0]["content"] == [{"type": "document", "source": source}]


async def test_files_that_the_vendor_s_tools_made(server: VendorServer, model: AnthropicModel) -> None:
    """Go back as they came."""
    made = {"type": "container_upload", "file_id": "file_1"}
    body = await sent(
        server, model, asking(user("a"), said(ServerToolResult(server_tool_call_response=made)), user("b"))
    )
    assert body["messages"][1]["content"] == [made]


async def test_a_run_that_closes(server: VendorServer, model: AnthropicModel) -> None:
    """The last request of a run that reached its limit has no tools to offer, and is taken nevertheless."""

    @tool
    async def add(a: int) -> int:
        """Add."""
        return a

    calling = answer_json(message(tool_use("add", {"a": 1}, "t1"), stop="tool_use"))
    server.answers(strict(calling))
    ran = await within(Agent("a", model=model, tools=[add], limits=Limits(max_iterations=1)).run("go"))
    assert (ran.output, ran.status) == ("Hi", "limit_reached")
    assert server.requests[-1].json["tool_choice"] == {"type": "none"}


class Measured(BaseModel):
    """A number in bounds."""

    total: int = Field(ge=0, le=10)
    names: list[str] = Field(min_length=2)


async def test_bounds_of_an_answer_are_told_in_words(server: VendorServer, model: AnthropicModel) -> None:
    """Because the vendor's JSON mode refuses a schema with them; pydantic checks them in the end."""
    server.answers(answer_json(message(text('{"total": 3, "names": ["a", "b"]}'))))
    ran = await within(Agent("a", model=model, output=Measured).run("go"))
    assert ran.output == Measured(total=3, names=["a", "b"])
    schema = server.requests[-1].json["output_config"]["format"]["schema"]
    assert schema["properties"]["total"]["type"] == "integer"
    assert schema["properties"]["total"].keys() <= {"type", "title", "description"}
    assert "maximum: 10" in schema["properties"]["total"]["description"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            r"arbitrary members in an answer, such as \$",
        ),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, r"such as \$\.properties\.a of the output 'Sum'"),
        ({"anyOf": [{"type": "object"}]}, r"such as \$\.anyOf\[0\]"),
        ({"type": "object", "properties": {"a": {}}}, "schemas such as that of the output 'Sum'; add types"),
        ({"type": ["string", "null"]}, "schemas such as that of the output 'Sum'"),
    ],
)
async def test_schemas_that_the_vendor_would_make_empty(
    server: VendorServer, model: AnthropicModel, schema: Any, problem: str
) -> None:
    """Are refused with a remedy: an object of any members could not have one."""
    with pytest.raises(ModelError, match=problem) as caught:
        await within(model.generate(asking(*HELLO.messages, output=OutputSchema(name="Sum", schema=schema))))
    assert (caught.value.error_kind, server.requests) == ("invalid_request", [])
