from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    BlobPart,
    FilePart,
    Message,
    ModelDelta,
    ModelError,
    ModelRequest,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UriPart,
    Usage,
)
from pellucid.messages import ServerToolCall
from pellucid.models import OutputSchema, Settings
from pellucid.models.openai import OpenAIModel
from support.models import joined, read
from support.openai_wire import CHAT_USAGE, ask, call, chunk, chunks, completion, sse
from support.vendor_server import answer_json, answer_sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid.messages import FinishReason, Part
    from support.vendor_server import VendorServer

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=[Message("user", "hi")])
ADD = ToolDefinition(
    name="add",
    description="Add numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
LOOSE = ToolDefinition(name="find", description="", parameters={"type": "object", "properties": {"q": {}}})
IMAGE = BlobPart(content="aGk=", modality="image", mime_type="image/png")
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


@pytest.fixture
async def model(
    server: VendorServer, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> AsyncIterator[OpenAIModel]:
    """Return a model of that server, which needs no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    asked = OpenAIModel("gpt-x", base_url=f"{server.url}/v1", provider_name="vllm")
    yield asked
    await asked.aclose()


async def sent(server: VendorServer, model: OpenAIModel, *messages: Message, **others: Any) -> dict[str, Any]:
    """Return the body of a request."""
    server.answers(answer_json(completion({"content": "ok"})))
    await ask(model, ModelRequest(messages=messages, **others), stream=False)
    body: dict[str, Any] = server.requests[-1].json
    return body


async def written(server: VendorServer, model: OpenAIModel, *messages: Message) -> list[dict[str, Any]]:
    """Return the messages as they are sent."""
    found: list[dict[str, Any]] = (await sent(server, model, *messages))["messages"]
    return found


# --- answers ----------------------------------------------------------------------------------------------------------

ANSWERS = {
    "text": completion({"content": "Grüße, it is ☀️."}),
    "calls": completion(
        {"content": None, "tool_calls": [call("add", '{"a": 1, "b": 2}', "c1"), call("find", '{"q": "ö"}', "c2")]},
        "tool_calls",
    ),
    "text and call": completion({"content": "Let me see.", "tool_calls": [call("add", "{}", "c1")]}, "tool_calls"),
    "reasoning": completion({"content": "4", "reasoning_content": "2 and 2 is 4"}),
    "reasoning, another name": completion({"content": "4", "reasoning": "2 and 2 is 4"}),
    "refusal": completion({"content": None, "refusal": "I will not."}),
    "cut": completion({"content": "Once upon"}, "length"),
    "cut in a call": completion({"content": None, "tool_calls": [call("add", '{"a": 1, "b', "c1")]}, "length"),
    "cut in thought": completion({"content": None, "reasoning_content": "hmm"}, "length"),
    "filtered": completion({"content": None}, "content_filter"),
    "empty": completion({"content": ""}),
    "no usage": completion({"content": "hi"}, usage=None),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_streamed_and_whole_answers_are_equal(
    server: VendorServer, model: OpenAIModel, answer: dict[str, Any]
) -> None:
    """A streamed answer equals the whole one, and its pieces have the same content."""
    server.answers(answer_json(answer), answer_sse(sse(*chunks(answer))))
    whole = await ask(model, ASKED, stream=False)
    deltas, streamed = await read(model, ASKED)
    assert streamed == whole
    assert joined(deltas, "text") == whole.message.text
    thoughts = [part.content for part in whole.message.parts if isinstance(part, ReasoningPart)]
    assert joined(deltas, "reasoning") == "".join(thoughts)
    assert [delta.content for delta in deltas if delta.type == "tool_call"] == [
        made.name for made in whole.message.tool_calls
    ]
    assert (whole.id, whole.model) == ("chatcmpl-1", "gpt-x-2026")


async def test_parallel_calls_keep_their_ids_and_arguments(server: VendorServer, model: OpenAIModel) -> None:
    """Parallel calls keep their ids and arguments when their pieces alternate."""
    server.answers(answer_sse(sse(*chunks(ANSWERS["calls"]))))
    answer = await ask(model, ASKED, stream=True)
    assert answer.message.parts == (ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("find", {"q": "ö"}, "c2"))
    assert answer.finish_reason == "tool_call"


@pytest.mark.parametrize("text", ['{"a": 1, "b', "[1, 2]", "add them", '{"a": NaN}'])
async def test_arguments_that_are_no_object_are_kept_as_text(
    server: VendorServer, model: OpenAIModel, text: str
) -> None:
    """Arguments that are no JSON object are kept as text."""
    server.answers(answer_json(completion({"tool_calls": [call("add", text, "c1")]}, "tool_calls")))
    assert (await ask(model, ASKED, stream=False)).message.tool_calls == (ToolCall("add", text, "c1"),)


async def test_a_refusal_is_text_of_a_filtered_answer(server: VendorServer, model: OpenAIModel) -> None:
    """A refusal is the text of an answer with finish reason `content_filter`."""
    server.answers(answer_json(ANSWERS["refusal"]))
    answer = await ask(model, ASKED, stream=False)
    assert (answer.message.text, answer.finish_reason) == ("I will not.", "content_filter")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        (None, "stop"),
        ("length", "length"),
        ("model_length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_call"),
        ("function_call", "tool_call"),
        ("something new", "error"),
    ],
)
async def test_finish_reasons_are_mapped(
    server: VendorServer, model: OpenAIModel, said: str | None, reason: FinishReason
) -> None:
    """The API's finish reasons become ours, and an unknown one is no success."""
    server.answers(answer_json(completion({"content": "hi"}, said)))
    assert (await ask(model, ASKED, stream=False)).finish_reason == reason


async def test_stop_with_calls_is_a_tool_call(server: VendorServer, model: OpenAIModel) -> None:
    """The finish reason `stop` with tool calls becomes `tool_call`."""
    server.answers(answer_json(completion({"tool_calls": [call("add", "{}", "c1")]}, "stop")))
    assert (await ask(model, ASKED, stream=False)).finish_reason == "tool_call"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            CHAT_USAGE,
            Usage(
                input_tokens=30,
                output_tokens=12,
                cache_read_input_tokens=20,
                cache_write_input_tokens=4,
                reasoning_output_tokens=5,
            ),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(input_tokens=3, output_tokens=4)),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 2},
            Usage(input_tokens=3, output_tokens=4, cache_read_input_tokens=2),
        ),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 17,
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
            Usage(input_tokens=3, output_tokens=14, reasoning_output_tokens=10),
        ),
        (
            {
                "prompt_tokens": 30,
                "completion_tokens": 12,
                "prompt_tokens_details": {
                    "audio_tokens": 10,
                    "cached_tokens": 5,
                    "image_tokens": 0,
                    "cached_tokens_details": {"audio_tokens": 5},
                },
                "completion_tokens_details": {"audio_tokens": 8, "text_tokens": 4},
            },
            Usage(
                input_tokens=30,
                output_tokens=12,
                cache_read_input_tokens=5,
                by_modality={
                    "audio.input_tokens": 10,
                    "audio.cache_read.input_tokens": 5,
                    "audio.output_tokens": 8,
                    "text.output_tokens": 4,
                },
            ),
        ),
        ({"prompt_tokens": None, "completion_tokens": "4", "cost": 1}, Usage()),
        (None, Usage()),
    ],
    ids=["all", "plain", "DeepSeek", "reasoning apart", "modalities", "unreadable", "none"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_what_the_server_counted(
    server: VendorServer, model: OpenAIModel, usage: dict[str, Any] | None, expected: Usage, stream: bool
) -> None:
    """Usage is what the server counted: a missing number is unknown, and output includes reasoning."""
    answer = completion({"content": "hi"}, usage=usage)
    server.answers(answer_sse(sse(*chunks(answer))) if stream else answer_json(answer))
    assert (await ask(model, ASKED, stream=stream)).usage == expected


async def test_openrouter_says_what_an_answer_cost(server: VendorServer) -> None:
    """The cost that OpenRouter gives is the cost of the call."""
    model = OpenAIModel("m", base_url=server.url, api_key="sk-router-key", provider_name="openrouter")
    server.answers(answer_json(completion({"content": "hi"}, usage={"prompt_tokens": 3, "cost": 0.25})))
    assert (await ask(model, ASKED, stream=False)).usage == Usage(input_tokens=3, cost=0.25)
    await model.aclose()


async def test_images_come_as_parts(server: VendorServer, model: OpenAIModel) -> None:
    """Images of an answer are parts, whole and streamed, and are sent back in the same shape."""
    images = [{"type": "image_url", "index": 0, "image_url": {"url": "data:image/png;base64,aGk="}}]
    streamed: list[Any] = [chunk({"content": "Here."}), chunk({"images": images}), chunk({}, "stop"), "[DONE]"]
    server.answers(
        answer_json(completion({"content": "Here.", "images": images}, usage=None)), answer_sse(sse(*streamed))
    )
    whole = await ask(model, ASKED, stream=False)
    assert whole.message.parts == (TextPart("Here."), IMAGE)
    assert await ask(model, ASKED, stream=True) == whole
    [back] = await written(server, model, whole.message)
    assert back == {"role": "assistant", "content": "Here.", "images": [IMAGE_URL]}


async def test_content_in_parts_is_read(server: VendorServer, model: OpenAIModel) -> None:
    """Content that comes in parts becomes reasoning and text."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thinking, {"type": "text", "text": "4"}]
    streamed = [chunk({"content": [thinking]}), chunk({"content": "4"}), chunk({}, "stop")]
    server.answers(answer_json(completion({"content": content}, usage=None)), answer_sse(sse(*streamed)))
    whole = await ask(model, ASKED, stream=False)
    assert whole.message.parts == (ReasoningPart("hm"), TextPart("4"))
    deltas, again = await read(model, ASKED)
    assert again == whole
    assert deltas == [ModelDelta("reasoning", "hm"), ModelDelta("text", "4")]


# --- accents ----------------------------------------------------------------------------------------------------------


def piece(name: str | None = None, arguments: Any = None, **others: Any) -> dict[str, Any]:
    """Return an event with a piece of a tool call."""
    given = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{**others, "function": {key: value for key, value in given.items() if value}}]})


TWO = (ToolCall("add", {"a": 1}, "c1"), ToolCall("add", {"a": 2}, "c2"))
NAMELESS = (ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2}))
ACCENTS: dict[str, tuple[list[Any], tuple[ToolCall, ...]]] = {
    "no index": ([piece("add", '{"a"', id="c1"), piece(None, ":1}"), piece("add", '{"a":2}', id="c2")], TWO),
    "no index, id in each": (
        [piece("add", '{"a"', id="c1"), piece(None, ":1}", id="c1"), piece("add", '{"a":2}', id="c2")],
        TWO,
    ),
    "no index and no id": ([piece("add", '{"a":1}'), piece("add", '{"a":2}')], NAMELESS),
    "one index for all": (
        [
            piece("add", '{"a":1}', id="c1", index=0),
            piece("add", '{"a":2', id="c2", index=0),
            piece(None, "}", index=0),
        ],
        TWO,
    ),
    "name and id in each": (
        [
            piece("add", '{"a"', id="c1", index=0),
            piece("add", ":1}", id="c1", index=0),
            piece("add", '{"a":2}', id="c2", index=1),
        ],
        TWO,
    ),
    "empty ids": ([piece("add", '{"a":1}', id="", index=0), piece("add", '{"a":2}', id="", index=1)], NAMELESS),
    "arguments as an object": (
        [piece("add", {"a": 1}, id="c1", index=0), piece("add", {"a": 2}, id="c2", index=1)],
        TWO,
    ),
    "id late": ([piece("add", '{"a":', index=0), piece(None, "1}", id="c1", index=0)], TWO[:1]),
    "null members": (
        [
            chunk({"content": None, "tool_calls": None}),
            chunk({"tool_calls": [{"index": 0, "function": None}]}),
            piece("add", '{"a":1}', id="c1", index=0),
        ],
        TWO[:1],
    ),
}


@pytest.mark.parametrize(("streamed", "expected"), ACCENTS.values(), ids=ACCENTS)
async def test_tool_calls_are_understood_in_all_accents(
    server: VendorServer, model: OpenAIModel, streamed: list[Any], expected: tuple[ToolCall, ...]
) -> None:
    """Tool calls are read without ids or indexes, or with repeated ones, and each is streamed once."""
    server.answers(answer_sse(sse(*streamed, chunk({}, "stop"), "[DONE]")))
    deltas, answer = await read(model, ASKED)
    assert answer.message.tool_calls == expected
    assert answer.finish_reason == "tool_call"
    assert [delta.content for delta in deltas] == ["add"] * len(expected)


async def test_other_accents_of_streams(server: VendorServer, model: OpenAIModel) -> None:
    """Streams may have events without choices, repeated usage, a missing delta, or no `[DONE]`."""
    counted = [{"prompt_tokens": 3, "completion_tokens": number} for number in (1, 2)]
    events = [
        {"id": "", "model": "", "choices": [], "prompt_filter_results": []},
        chunk({"role": "assistant", "content": None}, usage=None),
        chunk({"content": "h"}, usage=counted[0]),
        {"id": "x", "model": "m", "choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        chunk({"content": "i"}, usage=counted[1]),
        {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}], "object": ""},
    ]
    server.answers(answer_sse(sse(*events)))
    answer = await ask(model, ASKED, stream=True)
    assert answer.message.parts == (TextPart("hi"),)
    assert answer.usage == Usage(input_tokens=3, output_tokens=2)
    assert (answer.id, answer.model) == ("chatcmpl-1", "gpt-x-2026")


async def test_accents_of_whole_answers(server: VendorServer, model: OpenAIModel) -> None:
    """Whole answers may have arguments as an object, calls without an id, missing members, or a number as id."""
    calls = [{"function": {"name": "add", "arguments": {"a": 1}}}, {"id": "", "function": {"name": "add"}}]
    answer = {"id": 7, "choices": [{"message": {"content": None, "tool_calls": calls}}]}
    server.answers(answer_json(answer, content_type="text/plain"))
    found = await ask(model, ASKED, stream=False)
    assert found.message.tool_calls == (ToolCall("add", {"a": 1}), ToolCall("add", {}))
    assert (found.finish_reason, found.id, found.model, found.usage) == ("tool_call", "7", None, Usage())


# --- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_as_it_came(server: VendorServer, model: OpenAIModel, name: str) -> None:
    """Reasoning is sent back in the member of the message in which it came."""
    server.answers(answer_json(completion({"content": "4", name: "2 and 2"})))
    answer = await ask(model, ASKED, stream=False)
    assert [type(part) for part in answer.message.parts] == [ReasoningPart, TextPart]
    [back] = await written(server, model, answer.message)
    assert back == {"role": "assistant", "content": "4", name: "2 and 2"}


async def test_details_of_reasoning_go_back_joined(server: VendorServer, model: OpenAIModel) -> None:
    """Details of reasoning are sent back joined and with their signatures, streamed or whole."""
    details = [
        {"type": "reasoning.text", "index": 0, "text": "2 and 2", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "index": 1, "data": "eHh4"},
    ]
    server.answers(answer_json(completion({"content": "4", "reasoning": "2 and 2", "reasoning_details": details})))
    whole = await ask(model, ASKED, stream=False)
    events = [
        chunk({"reasoning": "2 ", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "2 "}]}),
        chunk({"reasoning": "and 2", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "and 2"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": None, "signature": "c2ln"}]}),
        chunk({"reasoning_details": [details[1]]}),
        chunk({"content": "4"}, "stop"),
    ]
    server.answers(answer_sse(sse(*events, chunk(None, usage=CHAT_USAGE), "[DONE]")))
    assert await ask(model, ASKED, stream=True) == whole
    [back] = await written(server, model, whole.message)
    assert back == {"role": "assistant", "content": "4", "reasoning_details": details}


async def test_foreign_reasoning_stays_at_home(server: VendorServer, model: OpenAIModel) -> None:
    """Reasoning and server tools of other vendors are not sent."""
    parts: list[Part] = [
        ReasoningPart(
            "secret", vendor={"openai": {"message": {"reasoning": "secret"}}, "anthropic": {"signature": "s"}}
        ),
        ServerToolCall(name="web_search", server_tool_call={"type": "server_tool_use"}),
        TextPart("4"),
    ]
    assert await written(server, model, Message("assistant", parts)) == [{"role": "assistant", "content": "4"}]


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_conversation_is_written(server: VendorServer, model: OpenAIModel) -> None:
    """A conversation is sent with the instructions first, and calls with their results."""
    history = [
        Message("system", "Be brief."),
        Message("user", "Add."),
        Message("assistant", [ToolCall("add", {"b": 2, "a": "ö"}, "c1"), ToolCall("add", "{broken", "c2")]),
        Message("tool", [ToolResult("c1", {"sum": 3}), ToolResult("c2", "Arguments are no object.", is_error=True)]),
        Message("assistant", "Three."),
    ]
    body = await sent(server, model, *history, instructions="You add.")
    assert body == {
        "model": "gpt-x",
        "messages": [
            {"role": "system", "content": "You add."},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Add."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("add", '{"b":2,"a":"ö"}', "c1"), call("add", '{"arguments":"{broken"}', "c2")],
            },
            {"role": "tool", "tool_call_id": "c1", "content": '{"sum":3}'},
            {"role": "tool", "tool_call_id": "c2", "content": "Arguments are no object."},
            {"role": "assistant", "content": "Three."},
        ],
    }


async def test_an_answer_and_a_call_that_was_added_are_one_message(server: VendorServer, model: OpenAIModel) -> None:
    """An answer and the call that was added to it are sent as one message."""
    added = ToolCall("async_status", {"resultId": "r"}, "c1")
    history = [Message("user", "Go."), Message("assistant", "Wait."), Message("assistant", [added])]
    messages = await written(server, model, *history, Message("tool", [ToolResult("c1", "done")]))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1] == {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [call("async_status", '{"resultId":"r"}', "c1")],
    }


async def test_content_of_users_is_written(server: VendorServer, model: OpenAIModel) -> None:
    """Images, sound and documents of users are sent as data, by address or as a file."""
    pdf = BlobPart(content="cGRm", modality="document", mime_type="application/pdf")
    parts: list[Part] = [
        TextPart("Look:"),
        IMAGE,
        UriPart(uri="https://example.com/a.png", modality="image"),
        BlobPart(content="d2F2", modality="audio", mime_type="audio/wav"),
        pdf,
        FilePart(file_id="file-1", modality="document"),
    ]
    [message] = await written(server, model, Message("user", parts))
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        IMAGE_URL,
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,cGRm"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


async def test_images_of_tools_follow_their_results(server: VendorServer, model: OpenAIModel) -> None:
    """Images of tools are sent in a user message after the results."""
    results = [ToolResult("c1", (TextPart("A map:"), IMAGE)), ToolResult("c2", (IMAGE,)), ToolResult("c3", "ok")]
    found = await written(server, model, Message("tool", results))
    assert [message["content"] for message in found[:3]] == ["A map:", "It follows.", "ok"]
    assert found[3:] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "From the result of tool call c1:"},
                IMAGE_URL,
                {"type": "text", "text": "From the result of tool call c2:"},
                IMAGE_URL,
            ],
        }
    ]


async def test_images_of_tools_follow_all_results(server: VendorServer, model: OpenAIModel) -> None:
    """Images of tools are sent after the results of all messages."""
    asked = Message("assistant", [ToolCall("map", {}, "c1"), ToolCall("look", {}, "c2")])
    first, second = Message("tool", [ToolResult("c1", (IMAGE,))]), Message("tool", [ToolResult("c2", "ok")])
    found = await written(server, model, Message("user", "go"), asked, first, second, Message("user", "Well?"))
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert found[4]["content"][1:] == [IMAGE_URL]
    assert found[5]["content"] == "Well?"


REFUSED = {
    "video": Message("user", [BlobPart(content="", modality="video", mime_type="video/mp4")]),
    "document by address": Message("user", [UriPart(uri="https://example.com/a.pdf", modality="document")]),
    "image as a file": Message("user", [FilePart(file_id="file-1", modality="image")]),
    "no type": Message("user", [BlobPart(content="", modality="image")]),
    "image of the system": Message("system", [IMAGE]),
    "video of a tool": Message("tool", [ToolResult("c1", (UriPart(uri="https://example.com", modality="video"),))]),
    "sound of the assistant": Message("assistant", [BlobPart(content="", modality="audio", mime_type="audio/wav")]),
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED)
async def test_a_part_without_a_place_is_refused(server: VendorServer, model: OpenAIModel, message: Message) -> None:
    """A part that the API does not accept is refused before anything is sent, with a remedy."""
    with pytest.raises(ModelError, match=r"not accept (Blob|Uri|File)Part.*(remove|move it to|mime_type)") as caught:
        await ask(model, ModelRequest(messages=[message]), stream=False)
    assert caught.value.error_kind == "invalid_request"
    assert server.requests == []


async def test_settings_are_sent_as_set(server: VendorServer, model: OpenAIModel) -> None:
    """Settings are sent under the API's names, and `extra` is merged into the body."""
    settings = Settings(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        stop_sequences=("END",),
        reasoning_level="low",
        extra={"top_k": 3, "stream_options": {"include_obfuscation": False}},
    )
    server.answers(answer_sse(sse(*chunks(ANSWERS["text"]))))
    await ask(model, ModelRequest(messages=ASKED.messages, settings=settings), stream=True)
    assert server.requests[-1].json == {
        "model": "gpt-x",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "stop": ["END"],
        "reasoning_effort": "low",
        "max_tokens": 9,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
        "messages": [{"role": "user", "content": "hi"}],
    }


async def test_settings_that_the_api_lacks_are_refused(server: VendorServer, model: OpenAIModel) -> None:
    """A setting that the API lacks is refused with a hint at `extra`."""
    with pytest.raises(ModelError, match=r"no parameter for top_k.*extra"):
        await ask(model, ModelRequest(settings=Settings(top_k=3)), stream=False)
    assert server.requests == []


async def test_tools_are_sent_as_they_are(server: VendorServer, model: OpenAIModel) -> None:
    """Tools are sent unchanged, those that the server runs too."""
    asked = OpenAIModel("m", base_url=server.url, server_tools=[{"type": "browser_search"}])
    loose = replace(LOOSE, output_schema={"type": "object"})  # which this API does not take
    body = await sent(server, asked, *ASKED.messages, tools=[ADD, loose])
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in (ADD, LOOSE)
    ]
    assert body["tools"] == [
        *({"type": "function", "function": each} for each in functions),
        {"type": "browser_search"},
    ]
    await asked.aclose()


async def test_the_output_schema_is_sent(server: VendorServer, model: OpenAIModel) -> None:
    """The output schema is sent, strict if it allows that, and not at all without `native_output`."""
    for schema, is_strict in ((ADD.parameters, True), (LOOSE.parameters, False)):
        output = OutputSchema(name="Sum", schema=schema, description="A sum.")
        body = await sent(server, model, *ASKED.messages, output=output)
        told = {"name": "Sum", "description": "A sum.", "schema": schema, "strict": is_strict}
        assert body["response_format"] == {"type": "json_schema", "json_schema": told}
    plain = OpenAIModel("m", base_url=server.url, native_output=False)
    assert "response_format" not in await sent(server, plain, *ASKED.messages, output=output)
    assert (model.native_output, plain.native_output) == (True, False)
    await plain.aclose()


async def test_bytes_before_what_is_new_stay_the_same(server: VendorServer, model: OpenAIModel) -> None:
    """A longer conversation only adds bytes to the request before."""
    history = [Message("user", [TextPart("Add."), IMAGE])]
    first = await sent(server, model, *history, instructions="You add.", tools=[ADD, LOOSE])
    history += [
        Message("assistant", [ToolCall("add", {"b": 2, "a": 1}, "c1")]),
        Message("tool", [ToolResult("c1", "3")]),
    ]
    await sent(server, model, *history, instructions="You add.", tools=[ADD, LOOSE])
    before, after = (request.body for request in server.requests)
    assert after.startswith(before.removesuffix(b"]}"))
    assert json.loads(before) == first
