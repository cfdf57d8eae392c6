"""Requests of `GeminiModel`, as the server receives them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from pellucid import (
    BlobPart,
    FilePart,
    Message,
    ModelError,
    ProviderTool,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
)
from pellucid.messages import Part, ServerToolCall, ServerToolResult, ToolDefinition
from pellucid.models import ModelRequest, OutputSchema, Settings
from pellucid.models.gemini import GeminiModel
from support.gemini_wire import (
    ASKED,
    KEY,
    PIXEL,
    SIGNATURE,
    call,
    gemini,
    image,
    piece,
    sent,
    text,
    thought,
    whole,
)
from support.vendor_server import answer_json

pytestmark = pytest.mark.anyio

WEATHER = ToolDefinition(
    name="weather",
    description="Tell the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOW = ToolDefinition(name="now", description="", parameters={"type": "object", "properties": {}})
UNSIGNED = base64.urlsafe_b64encode(b"skip_thought_signature_validator").decode()


def on_the_wire(signature: str) -> str:
    """Return base64 in the alphabet that the SDK writes."""
    return signature.replace("+", "-").replace("/", "_")


async def contents(*messages: Message, name: str = "gemini-2.5-flash") -> list[dict[str, Any]]:
    """Return the contents that are sent for a history."""
    found: list[dict[str, Any]] = (await sent(ModelRequest(messages=messages), name))["contents"]
    return found


async def refusal(request: ModelRequest) -> ModelError:
    """Return the error of a request that is not sent."""
    model = GeminiModel("gemini-3-flash", api_key=KEY)
    with pytest.raises(ModelError) as caught:
        await model.generate(request)
    with pytest.raises(ModelError) as again:
        await anext(aiter(model.stream(request)))
    assert str(again.value) == str(caught.value)
    assert caught.value.error_kind == "invalid_request"
    return caught.value


async def test_only_what_is_set_is_sent() -> None:
    """A request without settings has only the text of the question."""
    body = await sent(ASKED)
    assert body == {"contents": [{"parts": [{"text": "Hello?"}], "role": "user"}], "generationConfig": {}}


async def test_where_it_is_sent() -> None:
    """The model is in the path and the key in a header."""
    async with gemini() as (model, server):
        server.answers(whole(text("Hi.")))
        await model.generate(ASKED)
        [received] = server.requests
    assert received.path == "/v1/models/gemini-3.8-flash:generateContent"
    assert received.headers["x-goog-api-key"] == KEY
    assert KEY not in received.path
    assert KEY.encode() not in received.body
    assert "x-server-timeout" not in received.headers


async def test_instructions_and_system_messages_come_first() -> None:
    """Instructions and system messages are sent as the system instruction."""
    body = await sent(
        ModelRequest(
            instructions="Be brief.",
            messages=[Message("system", "Be kind."), Message("user", "Hi"), Message("system", "It is May.")],
        )
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "Be kind."}, {"text": "It is May."}]}
    assert body["contents"] == [{"parts": [{"text": "Hi"}], "role": "user"}]


async def test_a_system_message_is_text() -> None:
    """A picture in a system message is refused."""
    picture = BlobPart(content=PIXEL, modality="image", mime_type="image/png")
    error = await refusal(ModelRequest(messages=[Message("system", [picture])]))
    assert "BlobPart in a system message" in str(error)


async def test_pictures_and_documents() -> None:
    """Pictures and documents are sent as data, address or uploaded file."""
    [content] = await contents(
        Message(
            "user",
            [
                TextPart("Look."),
                BlobPart(content=PIXEL, modality="image", mime_type="image/png"),
                BlobPart(content="JVBERi0=", modality="document", mime_type="application/pdf"),
                UriPart(uri="gs://shop/a.mp4", modality="video", mime_type="video/mp4"),
                UriPart(uri="https://youtu.be/x", modality="video"),
                FilePart(file_id="https://generativelanguage.googleapis.com/v1beta/files/f1", modality="audio"),
            ],
        )
    )
    assert content["parts"] == [
        {"text": "Look."},
        {"inlineData": {"data": on_the_wire(PIXEL), "mime_type": "image/png"}},
        {"inlineData": {"data": "JVBERi0=", "mime_type": "application/pdf"}},
        {"fileData": {"file_uri": "gs://shop/a.mp4", "mime_type": "video/mp4"}},
        {"fileData": {"file_uri": "https://youtu.be/x"}},
        {"fileData": {"file_uri": "https://generativelanguage.googleapis.com/v1beta/files/f1"}},
    ]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (BlobPart(content=PIXEL, modality="image"), "BlobPart of modality 'image' without a mime_type; set it"),
        (
            BlobPart(content="not base64!", modality="image", mime_type="image/png"),
            "BlobPart whose content is not base64",
        ),
        (ToolResult("nobody", "3"), "ToolResult for call 'nobody', which is not in the history; set its name"),
        (ToolResult("c", (ToolCall("x"),), name="y"), "ToolCall in the result of a tool"),
    ],
)
async def test_what_cannot_be_sent_is_refused(part: Part, problem: str) -> None:
    """A part that cannot be sent is refused with a remedy."""
    assert problem in str(await refusal(ModelRequest(messages=[Message("user", [part])])))


async def test_an_empty_history_is_refused() -> None:
    """An empty history is refused as an invalid request."""
    async with gemini() as (model, _):
        with pytest.raises(ModelError, match="contents are required") as caught:
            await model.generate(ModelRequest(instructions="Hi."))
    assert caught.value.error_kind == "invalid_request"


# --- tools ------------------------------------------------------------------------------------------------------------


async def test_tools_are_sent_with_their_schemas() -> None:
    """Tools are sent in one list with their JSON Schemas unchanged."""
    body = await sent(ModelRequest(messages=ASKED.messages, tools=[WEATHER, NOW]))
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "weather",
                    "description": "Tell the weather.",
                    "parameters_json_schema": WEATHER.parameters,
                },
                {"name": "now", "parameters_json_schema": NOW.parameters},
            ]
        }
    ]


async def test_calls_and_results_go_back() -> None:
    """Calls and results are sent by name, with the ids that the API gave."""
    history = [
        Message("user", "Weather?"),
        Message(
            "assistant",
            [
                TextPart("Let me see."),
                ToolCall("weather", {"city": "Bergen", "day": None}, "fc_1", vendor={"gcp.gemini": {"id": "fc_1"}}),
                ToolCall("now", {}, "call_ours"),
            ],
        ),
        Message("tool", [ToolResult("fc_1", {"rain": True}), ToolResult("call_ours", "no clock", is_error=True)]),
    ]
    found = await contents(*history)
    assert found[1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "Let me see."},
                {"functionCall": {"id": "fc_1", "name": "weather", "args": {"city": "Bergen", "day": None}}},
                {"functionCall": {"name": "now", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "fc_1", "name": "weather", "response": {"result": {"rain": True}}}},
                {"functionResponse": {"name": "now", "response": {"error": "no clock"}}},
            ],
        },
    ]


async def test_results_in_several_messages_are_one_content() -> None:
    """Results of one answer's calls are one content, and a question after them is another."""
    calls = [ToolCall("a", {}, "1"), ToolCall("b", {}, "2")]
    found = await contents(
        Message("assistant", calls),
        Message("tool", [ToolResult("1", [1, None])]),
        Message("tool", [ToolResult("2", None)]),
        Message("user", "And?"),
    )
    assert [[part.get("functionResponse", {}).get("response") for part in each["parts"]] for each in found] == [
        [None, None],
        [{"result": [1, None]}, {"result": None}],
        [None],
    ]


async def test_consecutive_answers_are_one_content() -> None:
    """Consecutive answers are one content."""
    sent_contents = await contents(
        Message("user", "start it"),
        Message("assistant", "It is running."),
        Message("assistant", [ToolCall("async_status", {"resultId": "r1"}, "s1")]),
        Message("tool", [ToolResult("s1", "sunny")]),
    )
    assert [content["role"] for content in sent_contents] == ["user", "model", "user"]
    assert [next(iter(part)) for part in sent_contents[1]["parts"]] == ["text", "functionCall"]


async def test_an_id_that_is_used_again_is_the_latest_call_s() -> None:
    """A result is named after the latest call with its id."""
    found = await contents(
        Message("assistant", [ToolCall("a", {}, "1")]),
        Message("tool", [ToolResult("1", "x")]),
        Message("assistant", [ToolCall("b", {}, "1")]),
        Message("tool", [ToolResult("1", "y")]),
    )
    assert [each["parts"][0]["functionResponse"]["name"] for each in found[1::2]] == ["a", "b"]


async def test_results_with_pictures() -> None:
    """The text of a result is its response, and pictures are sent beside it."""
    picture = BlobPart(content=PIXEL, modality="image", mime_type="image/png")
    page = UriPart(uri="gs://shop/p.pdf", modality="document", mime_type="application/pdf")
    file = FilePart(file_id="https://x/files/1", modality="image", mime_type="image/png")
    shown = (TextPart("Two"), picture, TextPart("things"), page, file)
    [_, content] = await contents(
        Message("assistant", [ToolCall("look", {}, "1")]), Message("tool", [ToolResult("1", shown)])
    )
    assert content["parts"] == [
        {
            "functionResponse": {
                "name": "look",
                "response": {"result": "Two\nthings"},
                "parts": [
                    {"inline_data": {"mime_type": "image/png", "data": on_the_wire(PIXEL)}},
                    {"file_data": {"file_uri": "gs://shop/p.pdf", "mime_type": "application/pdf"}},
                    {"file_data": {"file_uri": "https://x/files/1", "mime_type": "image/png"}},
                ],
            }
        }
    ]


async def test_arguments_that_are_no_object_are_kept_in_one() -> None:
    """Arguments that are no JSON object are sent as the member `arguments`."""
    calls = [ToolCall("a", "{not json", "1"), ToolCall("b", "", "2")]
    [content] = await contents(Message("assistant", calls))
    assert [part["functionCall"]["args"] for part in content["parts"]] == [{"arguments": "{not json"}, {}]


async def test_calls_of_other_models_are_marked_for_models_that_want_signatures() -> None:
    """The first call of another model's message gets the mark that Gemini 3 needs in the place of a signature."""
    foreign = Message("assistant", [ToolCall("a", {}, "1", vendor={"anthropic": {"id": "x"}}), ToolCall("b", {}, "2")])
    own = Message(
        "assistant", [ToolCall("a", {}, "3", vendor={"gcp.gemini": {"thought_signature": SIGNATURE}}), ToolCall("b")]
    )
    found = await contents(foreign, own, name="gemini-3-flash")
    signatures = [[part.get("thoughtSignature") for part in each["parts"]] for each in found]
    assert signatures == [[UNSIGNED, None], [on_the_wire(SIGNATURE), None]]
    assert "thoughtSignature" not in str(await contents(foreign, name="models/gemini-2.5-pro"))


async def test_server_tools_are_sent_as_they_are() -> None:
    """Server tools are sent unchanged, and their calls are asked for if there are other tools."""
    tools: list[dict[str, Any]] = [{"google_search": {}}, {"codeExecution": {}}]
    request = ModelRequest(messages=ASKED.messages, tools=[NOW])
    body = await sent(request, server_tools=tools)
    assert body["tools"][:2] == [{"googleSearch": {}}, {"codeExecution": {}}]
    assert [each["name"] for each in body["tools"][2]["functionDeclarations"]] == ["now"]
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in await sent(request, "gemini-2.5-flash", server_tools=tools)
    assert "toolConfig" not in await sent(ASKED, server_tools=tools)


@pytest.mark.parametrize(
    ("schema", "member", "definitions"),
    [
        ({"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "integer"}}, None),
        (
            {"$defs": {"A": {"type": "object"}}, "type": "array", "items": {"$ref": "#/$defs/A"}},
            {"type": "array", "items": {"$ref": "#/$defs/A"}},
            {"A": {"type": "object"}},
        ),
    ],
)
async def test_the_schema_of_a_tool_s_results_is_sent(schema: Any, member: Any, definitions: Any) -> None:
    """The output schema of a tool is sent as that of the member `result`."""
    body = await sent(ModelRequest(messages=ASKED.messages, tools=[NOW, replace(NOW, name="x", output_schema=schema)]))
    without, with_schema = body["tools"][0]["functionDeclarations"]
    assert "response_json_schema" not in without
    found = {"type": "object", "properties": {"result": member}}
    assert with_schema["response_json_schema"] == ({**found, "$defs": definitions} if definitions else found)


async def test_a_schema_of_results_that_cannot_be_moved_is_not_sent() -> None:
    """An output schema with references to its root is not sent."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}}
    body = await sent(ModelRequest(messages=ASKED.messages, tools=[replace(NOW, output_schema=schema)]))
    assert "response_json_schema" not in body["tools"][0]["functionDeclarations"][0]


async def test_provider_tools_are_sent_in_the_vendor_s_form() -> None:
    """Provider tools are sent in the API's form, and an unknown option is refused."""
    search = ProviderTool(vendor="gemini", type="google_search", options={"search_types": {"web_search": {}}})
    body = await sent(ModelRequest(messages=ASKED.messages, tools=[NOW, search.definition]))
    assert body["tools"][0] == {"googleSearch": {"searchTypes": {"web_search": {}}}}
    assert [each["name"] for each in body["tools"][1]["functionDeclarations"]] == ["now"]
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    wrong = ProviderTool(vendor="gemini", type="google_search", options={"domains": 1})
    with pytest.raises(ModelError, match="not a tool of the API"):
        await sent(ModelRequest(messages=ASKED.messages, tools=[wrong.definition]))


# --- an answer goes back ----------------------------------------------------------------------------------------------


async def test_an_answer_goes_back_as_it_came() -> None:
    """The parts of an answer are sent back with their signatures and ids, and reasoning only if it is signed."""
    parts = [
        thought("Signed.", thoughtSignature=SIGNATURE),
        thought("Unsigned."),
        {"executableCode": {"id": "x", "language": "PYTHON", "code": "1"}, "thoughtSignature": SIGNATURE},
        {"codeExecutionResult": {"id": "x", "outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"id": "s", "toolType": "URL_CONTEXT", "args": {"url": None}}},
        {"toolResponse": {"id": "s", "toolType": "URL_CONTEXT", "response": {"ok": True}}},
        image(thoughtSignature=SIGNATURE),
        text("See?", thoughtSignature=SIGNATURE),
        call("now", id="fc", thoughtSignature=SIGNATURE),
        text("", thoughtSignature=SIGNATURE),
    ]
    async with gemini() as (model, server):
        server.always(answer_json(piece(*parts, finish="STOP")))
        first = (await model.generate(ASKED)).message
        await model.generate(ModelRequest(messages=[*ASKED.messages, first]))
        back = server.requests[1].json["contents"][1]["parts"]
    signature = on_the_wire(SIGNATURE)
    assert back == [
        {"text": "Signed.", "thought": True, "thoughtSignature": signature},
        {"executableCode": {"id": "x", "language": "PYTHON", "code": "1"}, "thoughtSignature": signature},
        {"codeExecutionResult": {"id": "x", "outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"id": "s", "tool_type": "URL_CONTEXT", "args": {"url": None}}},
        {"toolResponse": {"id": "s", "tool_type": "URL_CONTEXT", "response": {"ok": True}}},
        {"inlineData": {"data": on_the_wire(PIXEL), "mime_type": "image/png"}, "thoughtSignature": signature},
        {"text": "See?", "thoughtSignature": signature},
        {"functionCall": {"id": "fc", "name": "now", "args": {}}, "thoughtSignature": signature},
        {"text": "", "thoughtSignature": signature},
    ]


async def test_what_another_vendor_thought_stays_there() -> None:
    """Reasoning, signatures and server tools of another vendor are left out, and its text is sent."""
    vendor = {"anthropic": {"signature": "opaque"}}
    found = await contents(
        Message("assistant", [ReasoningPart("Hm.", vendor=vendor)]),
        Message(
            "assistant",
            [
                ReasoningPart("Hm.", vendor=vendor),
                ServerToolCall(name="web_search", server_tool_call={"type": "web_search"}, id="srv"),
                ServerToolResult(server_tool_call_response={"type": "web_search"}, id="srv"),
                TextPart("Yes.", vendor=vendor),
            ],
        ),
    )
    assert found == [{"role": "model", "parts": [{"text": "Yes."}]}]


async def test_the_bytes_of_a_prefix_never_change() -> None:
    """A longer history only adds bytes to the requests before."""
    signed = call("weather", {"city": "Bergen"}, id="fc", thoughtSignature=SIGNATURE)
    instructions, tools = "Be brief.", [WEATHER, NOW]
    async with gemini(server_tools=[{"google_search": {}}]) as (model, server):
        server.always(answer_json(piece(text("Let me see."), signed, finish="STOP")))
        messages = list(ASKED.messages)
        for turn in range(3):
            request = ModelRequest(instructions=instructions, messages=messages, tools=tools)
            messages = [*messages, (await model.generate(request)).message, Message("tool", [ToolResult("fc", turn)])]
        bodies = [received.body for received in server.requests]
    heads, tails = zip(*(body.split(b'], "systemInstruction"') for body in bodies), strict=True)
    assert len(set(tails)) == 1
    assert heads[1].startswith(heads[0])
    assert heads[2].startswith(heads[1])


# --- settings and output ----------------------------------------------------------------------------------------------


async def test_settings_are_sent_under_the_api_s_names() -> None:
    """Settings are sent under the API's names."""
    settings = Settings(
        max_tokens=100,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        seed=0,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        stop_sequences=("END",),
        reasoning_level="high",
    )
    body = await sent(ModelRequest(messages=ASKED.messages, settings=settings))
    assert body["generationConfig"] == {
        "maxOutputTokens": 100,
        "temperature": 0.0,
        "topP": 0.5,
        "topK": 3,
        "seed": 0,
        "frequencyPenalty": 0.1,
        "presencePenalty": 0.2,
        "stopSequences": ["END"],
        "thinkingConfig": {"include_thoughts": True, "thinking_level": "HIGH"},
    }


@pytest.mark.parametrize(
    ("level", "thinking"),
    [
        ("minimal", {"include_thoughts": True, "thinking_level": "MINIMAL"}),
        ("xhigh", {"include_thoughts": True, "thinking_level": "XHIGH"}),
        ("1024", {"include_thoughts": True, "thinking_budget": 1024}),
        ("-1", {"include_thoughts": True, "thinking_budget": -1}),
        ("0", {"include_thoughts": False, "thinking_budget": 0}),
    ],
)
async def test_levels_of_reasoning(level: str, thinking: dict[str, Any]) -> None:
    """Reasoning levels become the API's words or a number of tokens."""
    body = await sent(ModelRequest(messages=ASKED.messages, settings={"reasoning_level": level}))
    assert body["generationConfig"]["thinkingConfig"] == thinking


async def test_other_levels_are_refused() -> None:
    """An unknown reasoning level is refused with the known ones."""
    error = await refusal(ModelRequest(messages=ASKED.messages, settings={"reasoning_level": "utter"}))
    assert '"utter"; the API supports minimal, low, medium, high, xhigh' in str(error)


async def test_a_setting_of_a_wrong_type_is_refused() -> None:
    """A setting of a wrong type is refused without repeating the value."""
    error = await refusal(ModelRequest(messages=ASKED.messages, settings={"temperature": "hot"}))  # type: ignore[typeddict-item]
    assert "temperature: Input should be a valid number" in str(error)
    assert "hot" not in str(error)


async def test_unknown_settings_are_refused() -> None:
    """An unknown setting is refused."""
    error = await refusal(ModelRequest(messages=ASKED.messages, settings={"top_a": 1}))  # type: ignore[typeddict-unknown-key]
    assert "no parameter for top_a" in str(error)


async def test_extra_members_of_the_body() -> None:
    """`extra` is merged into the body."""
    extra = {"safetySettings": [{"category": "X"}], "generationConfig": {"responseModalities": ["IMAGE"]}}
    body = await sent(ModelRequest(messages=ASKED.messages, settings={"top_k": 2, "extra": extra}))
    assert body["safetySettings"] == [{"category": "X"}]
    assert body["generationConfig"] == {"topK": 2, "responseModalities": ["IMAGE"]}


OUTPUT = OutputSchema(
    name="Forecast",
    schema={"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]},
)


async def test_the_output_s_schema_is_sent() -> None:
    """The output schema is sent in the API's JSON mode, beside tools."""
    body = await sent(ModelRequest(messages=ASKED.messages, tools=[NOW], output=OUTPUT))
    assert body["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": OUTPUT.schema,
    }


@pytest.mark.parametrize(
    ("name", "option", "native"),
    [
        ("gemini-3.8-flash", None, True),
        ("gemini-flash-latest", None, True),
        ("publishers/google/models/gemini-3-pro", None, True),
        ("gemini-2.5-flash", None, False),
        ("models/gemini-1.5-pro", None, False),
        ("gemma-4-27b-it", None, False),
        ("gemini-2.5-flash", True, True),
        ("gemini-3.8-flash", False, False),
    ],
)
async def test_which_models_have_a_json_mode(name: str, option: bool | None, native: bool) -> None:
    """Models get the output schema in JSON mode only if they accept it beside tools, or `native_output` is set."""
    async with gemini(name, native_output=option) as (model, server):
        server.answers(whole(text("{}")))
        await model.generate(ModelRequest(messages=ASKED.messages, output=OUTPUT))
        assert model.native_output is native
        assert ("responseJsonSchema" in server.requests[0].json["generationConfig"]) is native
