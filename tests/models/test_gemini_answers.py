"""Answers of Gemini, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid import BlobPart, ModelDelta, ModelError, ReasoningPart, TextPart, ToolCall, UriPart, Usage
from pellucid.messages import ServerToolCall, ServerToolResult
from support.gemini_wire import (
    ASKED,
    ID,
    NAME,
    PIXEL,
    SIGNATURE,
    USAGE,
    call,
    event,
    gemini,
    image,
    piece,
    read,
    same,
    streamed,
    text,
    thought,
    whole,
)
from support.vendor_server import answer_json, answer_sse

pytestmark = pytest.mark.anyio

SIGNED = {"gcp.gemini": {"thought_signature": SIGNATURE}}


async def test_a_streamed_answer_is_the_whole_one() -> None:
    """A streamed answer has the text, finish reason, usage, id and model of the whole one."""
    deltas, response = await same(
        piece(text("Grüße aus Bergen."), finish="STOP", usage=USAGE),
        piece(text("Grüße"), usage={"promptTokenCount": 120, "totalTokenCount": 120}),
        piece(text(" aus Bergen.")),
        piece(text(""), finish="STOP", usage=USAGE),
    )
    assert deltas == [ModelDelta("text", "Grüße"), ModelDelta("text", " aus Bergen.")]
    assert response.message.parts == (TextPart("Grüße aus Bergen."),)
    assert (response.finish_reason, response.message.finish_reason) == ("stop", "stop")
    assert (response.id, response.model) == (ID, f"{NAME}-2026-09")


async def test_a_stream_may_be_split_anywhere_and_kept_alive() -> None:
    """A stream may be split anywhere, with comments and any kind of line ends."""
    bodies = b"".join(
        [
            b": connected\n\n",
            event(piece(text("Grüße 🌧 \u2028 aus"))).replace(b"\r\n", b"\n"),
            b":\r\n\r\nevent: message\nid: 7\nretry: 10\n",
            event(piece(text(" Bergen"), finish="STOP", usage=USAGE)),
        ]
    )
    async with gemini() as (model, server):
        for size in (1, 2, 7, 64, len(bodies)):
            server.answers(answer_sse(*(bodies[at : at + size] for at in range(0, len(bodies), size))))
            deltas, response = await read(model)
            assert response.message.text == "Grüße 🌧 \u2028 aus Bergen"
            assert [delta.content for delta in deltas] == ["Grüße 🌧 \u2028 aus", " Bergen"]


async def test_the_end_of_a_stream_needs_no_empty_line() -> None:
    """The last event of a stream needs no empty line."""
    async with gemini() as (model, server):
        server.answers(streamed(event(piece(text("Hi."), finish="STOP")).rstrip()))
        assert (await read(model))[1].message.text == "Hi."


async def test_parallel_tool_calls() -> None:
    """Parallel tool calls are parts with their ids and signatures, and each is streamed once."""
    first = call("weather", {"city": "Bergen", "days": None}, id="fc_1", thoughtSignature=SIGNATURE)
    deltas, response = await same(
        piece(text("Let me see."), first, call("now"), finish="STOP"),
        piece(text("Let me ")),
        piece(text("see."), first),
        piece(call("now")),
        piece(finish="STOP"),
    )
    assert response.finish_reason == "tool_call"
    assert response.message.parts == (
        TextPart("Let me see."),
        ToolCall(
            "weather",
            {"city": "Bergen", "days": None},
            "fc_1",
            vendor={"gcp.gemini": {"thought_signature": SIGNATURE, "id": "fc_1"}},
        ),
        ToolCall("now", {}, None),
    )
    assert deltas[2:] == [ModelDelta("tool_call", "weather"), ModelDelta("tool_call", "now")]


async def test_arguments_in_pieces_are_refused() -> None:
    """Arguments that Vertex AI streams in pieces are refused."""
    part = {"functionCall": {"name": "weather", "willContinue": True}}
    async with gemini() as (model, server):
        server.answers(streamed(piece(part), piece(finish="STOP")))
        with pytest.raises(ModelError, match="streamFunctionCallArguments") as caught:
            await read(model)
    assert caught.value.error_kind == "invalid_request"


async def test_thoughts_are_reasoning() -> None:
    """Thoughts become reasoning, whole and streamed."""
    deltas, response = await same(
        piece(thought("Rain? Likely."), text("Yes."), finish="STOP"),
        piece(thought("Rain? ")),
        piece(thought("Likely.")),
        piece(text("Yes."), finish="STOP"),
    )
    assert response.message.parts == (ReasoningPart("Rain? Likely."), TextPart("Yes."))
    assert [delta.type for delta in deltas] == ["reasoning", "reasoning", "text"]


async def test_signatures_stay_on_their_parts() -> None:
    """A signature stays on its part, even if the stream sends it later in an empty piece."""
    _, response = await same(
        piece(thought("Hm."), text("One", thoughtSignature=SIGNATURE), text("Two"), finish="STOP"),
        piece(thought("Hm.")),
        piece(text("On")),
        piece(text("e")),
        piece(text("", thoughtSignature=SIGNATURE)),
        piece(text("Two"), finish="STOP"),
    )
    assert response.message.parts == (ReasoningPart("Hm."), TextPart("One", vendor=SIGNED), TextPart("Two"))


async def test_a_signature_without_text_is_a_part() -> None:
    """A signature without text is a part of its own."""
    _, response = await same(
        piece(call("now"), text("", thoughtSignature=SIGNATURE), finish="STOP"),
        piece(call("now")),
        piece(text("", thoughtSignature=SIGNATURE), finish="STOP"),
    )
    assert response.message.parts == (ToolCall("now", {}), TextPart("", vendor=SIGNED))


async def test_pictures_come_out() -> None:
    """Pictures are parts with their signature, and pictures in thoughts are left out."""
    draft, picture = image(thought=True), image(thoughtSignature=SIGNATURE)
    _, response = await same(
        piece(thought("A hill."), draft, text("Here:"), picture, finish="STOP"),
        piece(thought("A hill.")),
        piece(draft),
        piece(text("Here:")),
        piece(picture, finish="STOP"),
    )
    assert response.message.parts == (
        ReasoningPart("A hill."),
        TextPart("Here:"),
        BlobPart(content=PIXEL, modality="image", mime_type="image/png", vendor=SIGNED),
    )


@pytest.mark.parametrize(
    ("mime_type", "modality"),
    [("image/webp", "image"), ("audio/wav", "audio"), ("video/mp4", "video"), ("application/pdf", "document")],
)
async def test_files_come_out(mime_type: str, modality: str) -> None:
    """Files are parts with their address."""
    part = {"fileData": {"mimeType": mime_type, "fileUri": "gs://shop/out"}}
    _, response = await same(piece(part, finish="STOP"), piece(part), piece(finish="STOP"))
    assert response.message.parts == (UriPart(uri="gs://shop/out", modality=modality, mime_type=mime_type),)  # type: ignore[arg-type]


async def test_code_that_the_api_runs_is_recorded() -> None:
    """Code that the API runs is recorded as a call and its result, and is not dispatched."""
    code = {"executableCode": {"id": "x1", "language": "PYTHON", "code": "print(6*7)"}, "thoughtSignature": SIGNATURE}
    result = {"codeExecutionResult": {"id": "x1", "outcome": "OUTCOME_OK", "output": "42\n"}}
    deltas, response = await same(
        piece(code, result, text("42."), finish="STOP"),
        piece(code),
        piece(result, text("42.")),
        piece(finish="STOP"),
    )
    asked, told, answer = response.message.parts
    assert isinstance(asked, ServerToolCall)
    assert isinstance(told, ServerToolResult)
    assert (asked.name, asked.id, told.id) == ("code_execution", "x1", "x1")
    assert asked.server_tool_call == {"type": "code_execution", **code["executableCode"]}  # type: ignore[dict-item]
    assert told.server_tool_call_response == {"type": "code_execution", **result["codeExecutionResult"]}
    assert answer == TextPart("42.")
    assert response.message.tool_calls == ()
    assert response.finish_reason == "stop"
    assert [delta.type for delta in deltas] == ["text"]
    assert SIGNATURE not in str(asked.to_dict())


GROUNDING: dict[str, Any] = {
    "webSearchQueries": ["rain in bergen"],
    "groundingChunks": [{"web": {"uri": "https://yr.no/bergen", "title": "yr.no"}}],
    "groundingSupports": [{"segment": {"startIndex": 0, "endIndex": 4, "text": "Yes."}, "groundingChunkIndices": [0]}],
}


async def test_searches_are_recorded() -> None:
    """Grounding data becomes the call and the result of a search."""
    _, response = await same(
        piece(text("Yes."), finish="STOP", groundingMetadata=GROUNDING),
        piece(text("Yes."), groundingMetadata={}),
        piece(finish="STOP", groundingMetadata=GROUNDING),
    )
    assert response.message.parts == (
        ServerToolCall(name="google_search", server_tool_call={"type": "google_search", "queries": ["rain in bergen"]}),
        ServerToolResult(server_tool_call_response={"type": "google_search", **GROUNDING}),
        TextPart("Yes."),
    )


async def test_shown_searches_are_recorded_once() -> None:
    """A search that is shown as a part is recorded once."""
    asked = {"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["rain"]}}}
    told = {"toolResponse": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"hits": 3}}}
    _, response = await same(
        piece(asked, told, text("Yes."), finish="STOP", groundingMetadata=GROUNDING),
        piece(asked),
        piece(told),
        piece(text("Yes."), finish="STOP", groundingMetadata=GROUNDING),
    )
    calls = [part for part in response.message.parts if isinstance(part, ServerToolCall)]
    assert [(part.name, part.id, part.server_tool_call["args"]) for part in calls] == [
        ("google_search_web", "s1", {"queries": ["rain"]})
    ]
    results = [part for part in response.message.parts if isinstance(part, ServerToolResult)]
    assert [part.server_tool_call_response["type"] for part in results] == ["google_search", "google_search_web"]


async def test_pages_that_were_read_are_recorded() -> None:
    """Pages that the API has read are recorded with their status."""
    pages = {"urlMetadata": [{"retrievedUrl": "https://yr.no", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}]}
    _, response = await same(
        piece(text("Yes."), finish="STOP", urlContextMetadata=pages),
        piece(text("Yes.")),
        piece(finish="STOP", urlContextMetadata=pages),
    )
    assert response.message.parts[0] == ServerToolResult(server_tool_call_response={"type": "url_context", **pages})


# --- why it ended -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("LANGUAGE", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
        ("IMAGE_RECITATION", "content_filter"),
        ("ESCALATION", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("OTHER", "error"),
        ("NO_IMAGE", "error"),
    ],
)
async def test_finish_reasons(finish: str, reason: str) -> None:
    """The API's finish reasons become ours, and the text is kept."""
    _, response = await same(
        piece(text("Half an"), finish=finish), piece(text("Half")), piece(text(" an")), piece(finish=finish)
    )
    assert response.finish_reason == reason
    assert response.message.text == "Half an"


async def test_an_unknown_finish_reason_is_an_error_reason() -> None:
    """An unknown finish reason becomes `error`, and the text is kept."""
    with pytest.warns(UserWarning, match="NEVER_HEARD_OF is not a valid FinishReason"):
        _, response = await same(
            piece(text("Hi."), finish="NEVER_HEARD_OF"), piece(text("Hi.")), piece(finish="NEVER_HEARD_OF")
        )
    assert (response.finish_reason, response.message.text) == ("error", "Hi.")


@pytest.mark.parametrize(
    "finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]
)
async def test_an_answer_that_failed_is_no_answer(finish: str) -> None:
    """A failed answer is an error that may be retried, whatever came before."""
    async with gemini() as (model, server):
        server.answers(
            whole(text("I'll call"), finish=finish), streamed(piece(text("I'll call")), piece(finish=finish))
        )
        for asked in (model.generate(ASKED), read(model)):
            with pytest.raises(ModelError, match=finish) as caught:
                await asked
            assert caught.value.error_kind == "invalid_response"


async def test_a_blocked_prompt_is_a_refusal() -> None:
    """A blocked prompt is a refusal whose text has the reason."""
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7},
        "responseId": ID,
    }
    deltas, response = await same(blocked, blocked)
    assert response.finish_reason == "content_filter"
    assert response.message.text == "The prompt was blocked: PROHIBITED_CONTENT."
    assert deltas == [ModelDelta("text", response.message.text)]
    assert response.usage == Usage(input_tokens=7)


async def test_a_blocked_answer_is_a_refusal() -> None:
    """A blocked answer without text is a refusal whose text has the reason."""
    deltas, response = await same(piece(finish="SAFETY"), piece(), piece(finish="SAFETY"))
    assert response.finish_reason == "content_filter"
    assert response.message.text == "The answer was blocked: SAFETY."
    assert deltas == [ModelDelta("text", response.message.text)]


async def test_an_answer_cut_short_in_its_thoughts_is_empty() -> None:
    """An answer whose tokens were used up in thoughts is empty."""
    usage = {"promptTokenCount": 9, "thoughtsTokenCount": 64, "totalTokenCount": 73}
    ended = piece(finish="MAX_TOKENS", usage=usage)
    _, response = await same(ended, ended)
    assert (response.finish_reason, response.message.parts) == ("length", ())
    assert response.usage == Usage(input_tokens=9, output_tokens=64, reasoning_output_tokens=64)


async def test_only_the_first_candidate_counts() -> None:
    """Only the first candidate is the answer."""
    other = piece(text("No."), finish="STOP", index=1)["candidates"][0]
    both = piece(text("Yes."), finish="STOP")
    both["candidates"].append(other)
    _, response = await same(
        both, piece(text("Yes.")), piece(text("No."), finish="STOP", index=1), piece(finish="STOP")
    )
    assert response.message.text == "Yes."


# --- going on ---------------------------------------------------------------------------------------------------------


async def test_an_answer_in_several_requests() -> None:
    """An interrupted answer is continued in another request, and the tokens are added up."""
    token = SIGNATURE
    begun = piece(text("Once "), finish="CONTINUATION", usage=USAGE, continuationToken=token)
    ended = piece(text("upon a time."), finish="STOP", usage={"promptTokenCount": 1, "candidatesTokenCount": 2})
    async with gemini() as (model, server):
        server.answers(answer_json(begun), answer_json(ended), streamed(begun), streamed(ended))
        response = await model.generate(ASKED)
        deltas, again = await read(model)
        sent = [received.json.get("continuationToken") for received in server.requests]
    assert again == response
    assert (response.message.text, response.finish_reason) == ("Once upon a time.", "stop")
    assert [delta.content for delta in deltas] == ["Once ", "upon a time."]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (121, 52)
    assert sent[0] is sent[2] is None
    assert sent[1] == sent[3] == token.replace("/", "_").replace("+", "-")


async def test_an_answer_that_cannot_go_on_is_cut_short() -> None:
    """An interrupted answer without a continuation token ends with `length`."""
    cut = piece(text("Once"), finish="CONTINUATION")
    _, response = await same(cut, cut)
    assert (response.message.text, response.finish_reason) == ("Once", "length")


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (
            USAGE,
            Usage(input_tokens=120, output_tokens=50, cache_read_input_tokens=100, reasoning_output_tokens=30),
        ),
        ({"promptTokenCount": 9, "candidatesTokenCount": 4}, Usage(input_tokens=9, output_tokens=4)),
        (
            {"promptTokenCount": 9, "candidatesTokenCount": 4, "toolUsePromptTokenCount": 500},
            Usage(input_tokens=509, output_tokens=4),
        ),
        ({"promptTokenCount": 9}, Usage(input_tokens=9)),
        (
            {
                "promptTokenCount": 9,
                "promptTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 2},
                    {"modality": "IMAGE", "tokenCount": 3},
                    {"modality": "VIDEO", "tokenCount": 4},
                ],
                "candidatesTokenCount": 5,
                "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 5}],
                "cachedContentTokenCount": 3,
                "cacheTokensDetails": [{"modality": "IMAGE", "tokenCount": 3}],
            },
            Usage(
                input_tokens=9,
                output_tokens=5,
                cache_read_input_tokens=3,
                by_modality={
                    "text.input_tokens": 2,
                    "image.input_tokens": 3,
                    "audio.output_tokens": 5,
                    "image.cache_read.input_tokens": 3,
                },
            ),
        ),
        ({}, Usage()),
        (None, Usage()),
    ],
)
async def test_usage(told: dict[str, Any] | None, usage: Usage) -> None:
    """Output tokens include thoughts, input tokens the cached ones and those of server tools; others are unknown."""
    _, response = await same(
        piece(text("Hi."), finish="STOP", usage=told),
        piece(text("Hi."), usage={"promptTokenCount": 9} if told else None),
        piece(finish="STOP", usage=told),
    )
    assert response.usage == usage


async def test_what_the_sdk_does_not_know_is_ignored() -> None:
    """Unknown members of an answer are ignored."""
    strange = piece(text("Hi.", newMember=1), finish="STOP", newThing={"a": 1})
    strange["alsoNew"] = [1]
    _, response = await same(strange, strange)
    assert response.message.text == "Hi."
