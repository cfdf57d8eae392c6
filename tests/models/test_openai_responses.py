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
    ProviderTool,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UriPart,
    Usage,
)
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.models import OutputSchema, Settings
from pellucid.models.openai import OpenAIModel
from support.models import joined, read
from support.openai_wire import RESPONSE_USAGE, ask, events, function_call, refusal, response, said, sse, thought
from support.vendor_server import answer_json, answer_sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ErrorKind
    from pellucid.messages import FinishReason, Part
    from support.vendor_server import VendorServer

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=[Message("user", "hi")])
ADD = ToolDefinition(
    name="add",
    description="Add numbers.",
    parameters={"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
)
IMAGE = BlobPart(content="aGk=", modality="image", mime_type="image/png")
IMAGE_ITEM = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}


@pytest.fixture
async def model(server: VendorServer, anyio_backend: str) -> AsyncIterator[OpenAIModel]:
    """Return a model of that server."""
    asked = OpenAIModel("gpt-x", api="responses", base_url=f"{server.url}/v1", api_key="sk-test-key")
    yield asked
    await asked.aclose()


async def sent(server: VendorServer, model: OpenAIModel, *messages: Message, **others: Any) -> dict[str, Any]:
    """Return the body of a request."""
    server.answers(answer_json(response(said("ok"))))
    await ask(model, ModelRequest(messages=messages, **others), stream=False)
    body: dict[str, Any] = server.requests[-1].json
    return body


async def written(server: VendorServer, model: OpenAIModel, *messages: Message) -> list[dict[str, Any]]:
    """Return the messages as they are sent."""
    found: list[dict[str, Any]] = (await sent(server, model, *messages))["input"]
    return found


# --- answers ----------------------------------------------------------------------------------------------------------

SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "weather", "sources": [{"type": "url", "url": "https://example.com"}]},
}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": "print(4)",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "4"}],
}
MCP = {
    "type": "mcp_call",
    "id": "mcp_1",
    "name": "roll",
    "server_label": "dice",
    "arguments": '{"n": 2}',
    "output": "7",
    "error": None,
}
LISTED = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "dice", "tools": [{"name": "roll"}]}
DRAWN = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "output_format": "webp",
    "result": "aGk=",
}
CUT = {"reason": "max_output_tokens"}

ANSWERS = {
    "text": response(said("Grüße, it is ☀️.")),
    "calls": response(function_call("add", '{"a": 1, "b": 2}', "c1"), function_call("find", '{"q": "ö"}', "c2")),
    "reasoning": response(thought("First.", "Then."), said("4")),
    "reasoning without a summary": response(thought(), function_call("add", "{}", "c1")),
    "refusal": response(refusal("I will not.")),
    "commentary": response(said("Let me see.", phase="commentary"), function_call("add", "{}", "c1", namespace="math")),
    "search": response(thought("Look."), SEARCH, said("Sunny.")),
    "code": response(CODE, said("4")),
    "mcp": response(LISTED, MCP, said("7")),
    "drawing": response(DRAWN, said("Here.")),
    "cut": response(said("Once upon"), status="incomplete", incomplete_details=CUT),
    "cut in thought": response(thought("hm"), status="incomplete", incomplete_details=CUT),
    "cut at once": response(status="incomplete", incomplete_details=CUT),
    "no usage": response(said("hi"), usage=None),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_streamed_and_whole_answers_are_equal(
    server: VendorServer, model: OpenAIModel, answer: dict[str, Any]
) -> None:
    """A streamed answer equals the whole one, and its pieces have the same content."""
    server.answers(answer_json(answer), answer_sse(sse(*events(answer))))
    whole = await ask(model, ASKED, stream=False)
    deltas, streamed = await read(model, ASKED)
    assert streamed == whole
    assert joined(deltas, "text") == whole.message.text
    thoughts = [part.content for part in whole.message.parts if isinstance(part, ReasoningPart)]
    assert joined(deltas, "reasoning") == "".join(thoughts)
    assert [delta.content for delta in deltas if delta.type == "tool_call"] == [
        made.name for made in whole.message.tool_calls
    ]
    assert (whole.id, whole.model) == ("resp_1", "gpt-x-2026")


async def test_parallel_calls_keep_their_ids_and_arguments(server: VendorServer, model: OpenAIModel) -> None:
    """Parallel calls keep their ids and arguments."""
    server.answers(answer_sse(sse(*events(ANSWERS["calls"]))))
    answer = await ask(model, ASKED, stream=True)
    assert answer.message.parts == (
        ToolCall("add", {"a": 1, "b": 2}, "c1"),
        ToolCall("find", {"q": "ö"}, "c2"),
    )
    assert answer.finish_reason == "tool_call"


async def test_a_refusal_is_text_of_a_filtered_answer(server: VendorServer, model: OpenAIModel) -> None:
    """A refusal is the text of an answer with finish reason `content_filter`."""
    server.answers(answer_json(ANSWERS["refusal"]))
    answer = await ask(model, ASKED, stream=False)
    assert (answer.message.text, answer.finish_reason) == ("I will not.", "content_filter")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (response(said("hi")), "stop"),
        (response(function_call("add", "{}", "c1")), "tool_call"),
        (response(said("hi"), status="incomplete", incomplete_details=CUT), "length"),
        (response(said("hi"), status="incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (response(said("hi"), status="incomplete", incomplete_details=None), "error"),
        (response(function_call("add", "{", "c1"), status="incomplete", incomplete_details=CUT), "length"),
    ],
)
async def test_finish_reasons_are_mapped(
    server: VendorServer, model: OpenAIModel, answer: dict[str, Any], reason: FinishReason
) -> None:
    """The finish reason comes from the status of the answer, its details and its items."""
    server.answers(answer_json(answer))
    assert (await ask(model, ASKED, stream=False)).finish_reason == reason


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            RESPONSE_USAGE,
            Usage(
                input_tokens=30,
                output_tokens=12,
                cache_read_input_tokens=20,
                cache_write_input_tokens=4,
                reasoning_output_tokens=5,
            ),
        ),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(input_tokens=3, output_tokens=4)),
        (
            {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"image_tokens": 2, "text_tokens": 1}},
            Usage(input_tokens=3, output_tokens=4, by_modality={"image.input_tokens": 2, "text.input_tokens": 1}),
        ),
        (None, Usage()),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_what_the_server_counted(
    server: VendorServer, model: OpenAIModel, usage: dict[str, Any] | None, expected: Usage, stream: bool
) -> None:
    """Usage is what the server counted, and a missing number is unknown."""
    answer = response(said("hi"), usage=usage)
    server.answers(answer_sse(sse(*events(answer))) if stream else answer_json(answer))
    assert (await ask(model, ASKED, stream=stream)).usage == expected


async def test_items_are_taken_as_they_come_if_the_end_has_none(server: VendorServer, model: OpenAIModel) -> None:
    """The items of a stream are the answer if the last event has none."""
    told = events(response(said("hi")))
    server.answers(answer_sse(sse(*told[:-1], {"type": "response.completed", "response": response()}, "[DONE]")))
    assert (await ask(model, ASKED, stream=True)).message.text == "hi"


async def test_pieces_of_all_kinds_are_told(server: VendorServer, model: OpenAIModel) -> None:
    """Pieces of reasoning, summaries, calls and text are streamed, with parts of a summary set apart."""
    told: list[Any] = [{"type": "response.reasoning_text.delta", "delta": "hm"}, {"type": "keepalive"}]
    answer = response(thought("a", "b"), function_call("add", "{}", "c1"), said("x"))
    server.answers(answer_sse(sse(*told, *events(answer))))
    deltas, _ = await read(model, ASKED)
    assert deltas == [
        ModelDelta("reasoning", "hm"),
        ModelDelta("reasoning", "a"),
        ModelDelta("reasoning", "\n\n"),
        ModelDelta("reasoning", "b"),
        ModelDelta("tool_call", "add"),
        ModelDelta("text", "x"),
    ]


async def test_citations_stay_with_the_text(server: VendorServer, model: OpenAIModel) -> None:
    """Citations stay with the text and are not sent back."""
    cited = [{"type": "url_citation", "url": "https://example.com", "title": "x", "start_index": 0, "end_index": 2}]
    item = {**said("hi"), "content": [{"type": "output_text", "text": "hi", "annotations": cited}]}
    server.answers(answer_json(response(item)))
    answer = await ask(model, ASKED, stream=False)
    [part] = answer.message.parts
    assert isinstance(part, TextPart)
    assert part.vendor == {"openai": {"annotations": cited}}
    assert await written(server, model, answer.message) == [{"role": "assistant", "content": "hi"}]


# --- what the vendor runs ---------------------------------------------------------------------------------------------


async def test_tools_of_the_vendor_are_recorded(server: VendorServer, model: OpenAIModel) -> None:
    """Calls of the vendor's tools are recorded with their results and not dispatched."""
    server.answers(answer_json(response(SEARCH, CODE, LISTED, MCP, said("ok"))))
    answer = await ask(model, ASKED, stream=False)
    assert answer.message.tool_calls == ()
    assert answer.finish_reason == "stop"
    assert answer.message.parts[:-1] == (
        ServerToolCall(name="web_search", server_tool_call=SEARCH, id="ws_1"),
        ServerToolCall(
            name="code_interpreter",
            server_tool_call={name: value for name, value in CODE.items() if name != "outputs"},
            id="ci_1",
        ),
        ServerToolResult(
            server_tool_call_response={"type": "code_interpreter_call", "outputs": CODE["outputs"]}, id="ci_1"
        ),
        ServerToolCall(
            name="mcp_list_tools",
            server_tool_call={"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "dice"},
            id="mcpl_1",
        ),
        ServerToolResult(server_tool_call_response={"type": "mcp_list_tools", "tools": LISTED["tools"]}, id="mcpl_1"),
        ServerToolCall(
            name="roll",
            server_tool_call={
                "type": "mcp_call",
                "id": "mcp_1",
                "name": "roll",
                "server_label": "dice",
                "arguments": '{"n": 2}',
            },
            id="mcp_1",
        ),
        ServerToolResult(server_tool_call_response={"type": "mcp_call", "output": "7"}, id="mcp_1"),
    )


async def test_drawings_come_as_parts(server: VendorServer, model: OpenAIModel) -> None:
    """A drawn image is a part with the vendor's MIME type."""
    server.answers(answer_json(response(DRAWN)))
    answer = await ask(model, ASKED, stream=False)
    assert answer.message.parts[1:] == (BlobPart(content="aGk=", modality="image", mime_type="image/webp"),)


@pytest.mark.parametrize("item", [SEARCH, CODE, MCP, LISTED, DRAWN], ids=lambda item: item["type"])
async def test_what_the_vendor_ran_goes_back_as_it_came(
    server: VendorServer, model: OpenAIModel, item: dict[str, Any]
) -> None:
    """Calls of the vendor's tools are sent back unchanged after their reasoning."""
    server.answers(answer_json(response(thought("Look."), item, said("ok"))))
    answer = await ask(model, ASKED, stream=False)
    back = await written(server, model, answer.message)
    assert back[1] == {name: value for name, value in item.items() if value is not None}
    assert [each.get("type") for each in back] == ["reasoning", item["type"], None]


# --- reasoning --------------------------------------------------------------------------------------------------------


async def test_reasoning_goes_back_encrypted(server: VendorServer, model: OpenAIModel) -> None:
    """Encrypted reasoning is sent back in its place with all its members."""
    server.answers(answer_json(response(thought("Hm."), function_call("add", '{"a":1}', "c1", namespace="math"))))
    answer = await ask(model, ASKED, stream=False)
    assert await written(server, model, answer.message, Message("tool", [ToolResult("c1", "3")])) == [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "id": "rs_1",
            "encrypted_content": "c2VjcmV0",
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}', "namespace": "math"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]


async def test_reasoning_that_cannot_go_back_stays(server: VendorServer, model: OpenAIModel) -> None:
    """Reasoning without encrypted content, and that of other vendors, is not sent back."""
    server.answers(answer_json(response(thought("Hm.", encrypted=None), said("4"))))
    answer = await ask(model, ASKED, stream=False)
    foreign: list[Part] = [
        ReasoningPart("x", vendor={"anthropic": {"signature": "s"}}),
        ServerToolCall(name="web_search", server_tool_call={"type": "server_tool_use"}, id="srv_1"),
        ServerToolResult(server_tool_call_response={"type": "web_search_tool_result"}, id="srv_1"),
    ]
    back = await written(server, model, answer.message, Message("assistant", foreign))
    assert back == [{"role": "assistant", "content": "4"}]


async def test_phases_go_back(server: VendorServer, model: OpenAIModel) -> None:
    """The phase of a message is sent back."""
    server.answers(answer_json(ANSWERS["commentary"]))
    answer = await ask(model, ASKED, stream=False)
    back = await written(server, model, answer.message)
    assert back[0] == {"role": "assistant", "content": "Let me see.", "phase": "commentary"}


async def test_reasoning_in_the_open_goes_back(server: VendorServer, model: OpenAIModel) -> None:
    """Reasoning with open content is sent back."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    server.answers(answer_json(response(item, said("4"))))
    answer = await ask(model, ASKED, stream=False)
    assert isinstance(answer.message.parts[0], ReasoningPart)
    assert answer.message.parts[0].content == "hm"
    assert (await written(server, model, answer.message))[0] == item


@pytest.mark.parametrize(
    ("name", "is_asked"),
    [("gpt-5", True), ("o4-mini", True), ("gpt-6-astra", True), ("ft:gpt-5:me", True)]
    + [(name, False) for name in ("gpt-4o", "gpt-4.1-mini", "ft:gpt-4o-mini:me", "gpt-3.5-turbo", "gpt-5-chat-latest")],
)
async def test_encrypted_reasoning_is_asked_of_models_that_reason(
    server: VendorServer, name: str, is_asked: bool
) -> None:
    """Encrypted reasoning is requested of models that reason, and nothing is stored."""
    model = OpenAIModel(name, api="responses", base_url=server.url, api_key="sk-test-key")
    body = await sent(server, model, *ASKED.messages)
    assert body.get("include") == (["reasoning.encrypted_content"] if is_asked else None)
    assert body["store"] is False
    await model.aclose()


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_conversation_is_written(server: VendorServer, model: OpenAIModel) -> None:
    """A conversation is sent with every role, and calls with their results."""
    history = [
        Message("system", "Be brief."),
        Message("user", "Add."),
        Message(
            "assistant", [TextPart("Well."), ToolCall("add", {"b": 2, "a": "ö"}, "c1"), ToolCall("add", "{x", "c2")]
        ),
        Message("tool", [ToolResult("c1", {"sum": 3}), ToolResult("c2", "No object.", is_error=True)]),
        Message("assistant", "Three."),
    ]
    body = await sent(server, model, *history, instructions="You add.", tools=[ADD])
    assert body == {
        "model": "gpt-x",
        "store": False,
        "instructions": "You add.",
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add numbers.",
                "parameters": ADD.parameters,
                "strict": False,
            }
        ],
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
            {"role": "assistant", "content": "Well."},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"b":2,"a":"ö"}'},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"arguments":"{x"}'},
            {"type": "function_call_output", "call_id": "c1", "output": '{"sum":3}'},
            {"type": "function_call_output", "call_id": "c2", "output": "No object."},
            {"role": "assistant", "content": "Three."},
        ],
    }


async def test_content_is_written(server: VendorServer, model: OpenAIModel) -> None:
    """Images and documents of users and tools are sent as data, by address or as a file."""
    parts = (
        TextPart("Look:"),
        IMAGE,
        UriPart(uri="https://example.com/a.png", modality="image"),
        FilePart(file_id="file-1", modality="image"),
        BlobPart(content="cGRm", modality="document", mime_type="application/pdf"),
        UriPart(uri="https://example.com/a.pdf", modality="document"),
        FilePart(file_id="file-2", modality="document"),
    )
    expected = [
        {"type": "input_text", "text": "Look:"},
        IMAGE_ITEM,
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,cGRm"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_file", "file_id": "file-2"},
    ]
    result, message = await written(server, model, Message("tool", [ToolResult("c1", parts)]), Message("user", parts))
    assert result == {"type": "function_call_output", "call_id": "c1", "output": expected}
    assert message == {"role": "user", "content": expected}


@pytest.mark.parametrize(
    "message",
    [
        Message("user", [BlobPart(content="", modality="video", mime_type="video/mp4")]),
        Message("user", [BlobPart(content="", modality="audio", mime_type="audio/wav")]),
        Message("user", [BlobPart(content="", modality="document")]),
        Message("assistant", [IMAGE]),
    ],
)
async def test_a_part_without_a_place_is_refused(server: VendorServer, model: OpenAIModel, message: Message) -> None:
    """A part that the API does not accept is refused before anything is sent, with a remedy."""
    with pytest.raises(ModelError, match=r"not accept BlobPart.*(remove|move it to|mime_type)") as caught:
        await ask(model, ModelRequest(messages=[message]), stream=True)
    assert caught.value.error_kind == "invalid_request"
    assert server.requests == []


async def test_settings_are_sent_as_set(server: VendorServer, model: OpenAIModel) -> None:
    """Settings are sent under the API's names, and `extra` is merged into the body."""
    settings = Settings(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning_level="high",
        extra={"reasoning": {"summary": "auto"}, "include": [], "store": True},
    )
    server.answers(answer_sse(sse(*events(ANSWERS["text"]))))
    await ask(model, ModelRequest(messages=ASKED.messages, settings=settings), stream=True)
    assert server.requests[-1].json == {
        "model": "gpt-x",
        "store": True,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": [],
        "stream": True,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    }


@pytest.mark.parametrize("name", ["top_k", "seed", "frequency_penalty", "presence_penalty", "stop_sequences"])
async def test_settings_that_the_api_lacks_are_refused(server: VendorServer, model: OpenAIModel, name: str) -> None:
    """A setting that the API lacks is refused."""
    settings: Any = {name: 1}
    with pytest.raises(ModelError, match=f"no parameter for {name}"):
        await ask(model, ModelRequest(settings=settings), stream=False)
    assert server.requests == []


async def test_the_output_schema_is_sent(server: VendorServer, model: OpenAIModel) -> None:
    """The output schema is sent, strict if it allows that."""
    strict = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for schema, is_strict in ((strict, True), ({"type": "object"}, False)):
        output = OutputSchema(name="Sum", schema=schema, description="A sum.")
        body = await sent(server, model, *ASKED.messages, output=output)
        told = {"name": "Sum", "description": "A sum.", "schema": schema, "strict": is_strict}
        assert body["text"] == {"format": {"type": "json_schema", **told}}
        assert (await sent(server, model, *ASKED.messages, settings={"extra": {"text": {"verbosity": "low"}}}))["text"]


async def test_server_tools_are_sent_as_they_are(server: VendorServer) -> None:
    """Server tools are sent unchanged after the agent's own."""
    search = {"type": "web_search", "search_context_size": "low"}
    model = OpenAIModel("m", api="responses", base_url=server.url, api_key="sk-test-key", server_tools=[search])
    body = await sent(server, model, *ASKED.messages, tools=[ADD])
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["tools"][1] == search
    await model.aclose()


async def test_the_schema_of_a_tool_s_results_is_sent(server: VendorServer, model: OpenAIModel) -> None:
    """The output schema of a tool is sent."""
    schema = {"type": "object", "properties": {"sum": {"type": "number"}}}
    body = await sent(server, model, *ASKED.messages, tools=[ADD, replace(ADD, name="sum", output_schema=schema)])
    assert [tool.get("output_schema") for tool in body["tools"]] == [None, schema]


async def test_provider_tools_are_sent_in_the_vendor_s_form(server: VendorServer) -> None:
    """A provider tool is sent as a type with its options and required members."""
    search = ProviderTool(vendor="openai", type="web_search", options={"search_context_size": "low"})
    code = ProviderTool(vendor="openai", type="code_interpreter", name="python")
    model = OpenAIModel("m", api="responses", base_url=server.url, api_key="sk-test-key")
    body = await sent(server, model, *ASKED.messages, tools=[ADD, search.definition, code.definition])
    assert body["tools"][1:] == [
        {"type": "web_search", "search_context_size": "low"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    assert ("openai", "web_search") in model.provider_tools
    assert not OpenAIModel("m", api="chat", base_url=server.url, api_key="sk-test-key").provider_tools
    await model.aclose()


async def test_bytes_before_what_is_new_stay_the_same(server: VendorServer, model: OpenAIModel) -> None:
    """A longer conversation only adds bytes to the request before."""
    history = [Message("user", [TextPart("Add."), IMAGE])]
    first = await sent(server, model, *history, instructions="You add.", tools=[ADD])
    history += [
        Message("assistant", [ToolCall("add", {"b": 2, "a": 1}, "c1")]),
        Message("tool", [ToolResult("c1", "3")]),
    ]
    await sent(server, model, *history, instructions="You add.", tools=[ADD])
    before, after = (request.body for request in server.requests)
    assert after.startswith(before.removesuffix(b"]}"))
    assert json.loads(before) == first


# --- failures in an answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", "unavailable"),
        ("rate_limit_exceeded", "rate_limited"),
        ("vector_store_timeout", "timeout"),
        ("invalid_prompt", "invalid_request"),
        ("bio_policy", "invalid_request"),
        ("image_too_large", "invalid_request"),
        ("something_new", "unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_response_is_an_error(
    server: VendorServer, model: OpenAIModel, code: str, kind: ErrorKind, stream: bool
) -> None:
    """A failed response is an error whose kind comes from its code."""
    answer = response(said("Once"), status="failed", error={"code": code, "message": "It went wrong."})
    reply = (
        answer_sse(sse(*events(answer)), x_request_id="req_1") if stream else answer_json(answer, x_request_id="req_1")
    )
    server.answers(reply)
    with pytest.raises(ModelError, match="It went wrong") as caught:
        await ask(model, ASKED, stream=stream)
    assert (caught.value.error_kind, caught.value.request_id) == (kind, "req_1")


@pytest.mark.parametrize("nested", [False, True])
async def test_an_error_event_is_an_error(server: VendorServer, model: OpenAIModel, nested: bool) -> None:
    """An error event after pieces of an answer is an error."""
    error = {"code": "rate_limit_exceeded", "message": "Slow down.", "param": None}
    event = {"type": "error", "error": error} if nested else {"type": "error", **error}
    server.answers(answer_sse(sse(*events(ANSWERS["text"])[:5], event)))
    with pytest.raises(ModelError, match=r"Slow down\.") as caught:
        await ask(model, ASKED, stream=True)
    assert caught.value.error_kind == "rate_limited"


@pytest.mark.parametrize("status", ["queued", "in_progress", None])
async def test_an_answer_that_is_not_whole_is_an_error(
    server: VendorServer, model: OpenAIModel, status: str | None
) -> None:
    """An answer that is incomplete, cancelled or empty is an error."""
    server.answers(
        answer_json(response(said("Once"), status=status or "")),
        answer_json(response(said("Once"), status="cancelled")),
        answer_json(response()),
    )
    for kind in ("invalid_response", "unavailable", "invalid_response"):
        with pytest.raises(ModelError) as caught:
            await ask(model, ASKED, stream=False)
        assert caught.value.error_kind == kind
