"""Details of `AnthropicModel`'s answers: unknown blocks, broken streams and missing usage."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anthropic
import anyio
import httpx2
import pytest

from pellucid import Agent, Message, ModelError, ReasoningPart, TextPart, ToolCall, ToolResult, Usage
from pellucid.errors import ModelTimeout
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.models import AnthropicModel
from pellucid.models.anthropic.responses import ReportedError
from support.anthropic_rules import strict
from support.anthropic_wire import KEY, event, events, message, streamed, text, thinking, tool_use, whole_or_streamed
from support.clock import SOON, pass_time
from support.models import ADD, HELLO, asking, both, joined, read
from support.ports import free_port
from support.runs import within
from support.vendor_server import Cut, Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from support.vendor_server import Answer, Chunk, Received, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
async def model(server: VendorServer) -> AsyncIterator[AnthropicModel]:
    """Return a model at that server."""
    timeout = httpx2.Timeout(60.0, read=SOON)
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=server.url, timeout=timeout)) as model:
        yield model


def answering(server: VendorServer, *wholes: dict[str, Any]) -> None:
    """Have the server give these answers in turn, whole or streamed, if the API accepts the request."""
    turns = iter(wholes * 2)

    def reply(asked: Received) -> Answer:
        return whole_or_streamed(next(turns, wholes[-1]), stream=bool(asked.json.get("stream")))

    server.always(strict(reply))


# --- what goes back ---------------------------------------------------------------------------------------------------


async def test_who_called_a_tool_goes_back(server: VendorServer, model: AnthropicModel) -> None:
    """The call of a tool by the vendor's code is answered with its caller, in the container of the code."""
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "await add()"}}
    caller = {"type": "code_execution_20260521", "tool_id": "srvtoolu_1"}
    call = {**tool_use("add", {"a": 1}, "toolu_1"), "caller": caller}
    container = {"id": "container_1", "expires_at": "2026-11-21T12:00:00Z"}
    answering(server, message(code, call, stop="tool_use", container=container))
    answer = await both(model, asking(*HELLO.messages, tools=[ADD]))
    assert answer.message.tool_calls == (
        ToolCall("add", {"a": 1}, "toolu_1", vendor={"anthropic": {"caller": caller, "container": "container_1"}}),
    )
    history = [*HELLO.messages, answer.message, Message("tool", [ToolResult("toolu_1", "3")])]
    await within(model.generate(asking(*history, tools=[ADD])))
    body = server.requests[-1].json
    assert body["messages"][1]["content"] == [code, call]
    assert body["container"] == "container_1"
    # Containers do not live long: one that nobody waits in is not asked for again.
    await within(model.generate(asking(*history, Message("assistant", "3"), Message("user", "Sure?"), tools=[ADD])))
    assert "container" not in server.requests[-1].json


async def test_blocks_of_next_year(server: VendorServer, model: AnthropicModel) -> None:
    """An unknown block is kept whole in its place, and reasoning without a signature is not sent back."""
    new = {"type": "dream", "about": {"sheep": [1, 2.50, None]}}
    listing = {"type": "mcp_tool_listing", "mcp_server_name": "hub", "tools": []}
    call = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "hub", "input": {"q": "ü"}}
    found = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []}
    answering(server, message(new, listing, call, found, thinking("Hm.", ""), text("So.")))
    whole = await within(model.generate(HELLO))
    assert whole.message.parts == (
        ServerToolResult(server_tool_call_response=new),
        ServerToolResult(server_tool_call_response=listing),
        ServerToolCall(name="find", server_tool_call=call, id="mcptoolu_1"),
        ServerToolResult(server_tool_call_response=found, id="mcptoolu_1"),
        ReasoningPart("Hm."),
        TextPart("So."),
    )
    await within(model.generate(asking(*HELLO.messages, whole.message, Message("user", "And?"))))
    assert server.requests[-1].json["messages"][1]["content"] == [listing, call, found, text("So.")]


async def test_pieces_of_next_year(server: VendorServer, model: AnthropicModel) -> None:
    """Unknown events and deltas do not break a stream, and content of such deltas is kept."""
    begun, *rest = events(message({"type": "compaction", "content": None}, text("Hi")))
    delta = {"type": "compaction_delta", "content": "before", "encrypted_content": "x"}
    server.always(
        streamed(
            [
                begun,
                event("weather", wind=3),
                *rest[:2],
                event("content_block_delta", index=0, delta=delta),
                event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {"n": 1}}),
                *rest[2:],
            ]
        )
    )
    _, answer = await read(model, HELLO)
    kept = {"type": "compaction", "content": "before", "encrypted_content": "x", "citations": [{"n": 1}]}
    assert answer.message.parts == (ServerToolResult(server_tool_call_response=kept), TextPart("Hi"))


async def test_thoughts_that_are_not_shown(server: VendorServer, model: AnthropicModel) -> None:
    """Reasoning without text is a part whose signature is sent back."""
    answering(server, message(thinking("", "sig-9"), text("42")))
    answer = await both(model)
    assert answer.message.parts[0] == ReasoningPart("", vendor={"anthropic": {"signature": "sig-9"}})
    await within(model.generate(asking(*HELLO.messages, answer.message, Message("user", "Why?"))))
    assert server.requests[-1].json["messages"][1]["content"] == [thinking("", "sig-9"), text("42")]


async def test_citations_come_in_pieces(server: VendorServer, model: AnthropicModel) -> None:
    """Citations of a stream are those of a whole answer."""
    cited = {**text("Rain."), "citations": [{"type": "char_location", "file_id": None, "cited_text": "wet"}]}
    answering(server, message(text(""), cited, {**text("?"), "citations": None}))
    answer = await both(model)
    assert answer.message.parts == (
        TextPart("Rain.", vendor={"anthropic": {"citations": cited["citations"]}}),
        TextPart("?"),
    )


# --- the end of an answer ---------------------------------------------------------------------------------------------


async def test_why_it_refuses(server: VendorServer, model: AnthropicModel) -> None:
    """The vendor's explanation is the text of a refusal without text, also in a stream."""
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}
    whole = message(stop="refusal", stop_details=details)
    answering(server, whole)
    answer = await within(model.generate(HELLO))
    assert (answer.message.text, answer.finish_reason) == ("This could do harm.", "content_filter")
    sent = events(whole)
    end = event("message_delta", delta={"stop_reason": "refusal", "stop_details": details}, usage=whole["usage"])
    server.answers(streamed([*sent[:-2], end, sent[-1]]))
    deltas, told = await read(model, HELLO)
    assert told == answer
    assert joined(deltas, "text") == "This could do harm."


@pytest.mark.parametrize("content", [[], [text("I")]])
async def test_a_refusal_without_explanation(server: VendorServer, model: AnthropicModel, content: Any) -> None:
    """The text of a refusal without an explanation is what the model had said."""
    answering(server, message(*content, stop="refusal"))
    answer = await both(model)
    assert (answer.message.text, answer.finish_reason) == ("I" if content else "", "content_filter")


async def test_nothing_to_say(server: VendorServer, model: AnthropicModel) -> None:
    """An answer without content is accepted."""
    answering(server, message())
    answer = await both(model)
    assert (answer.message.parts, answer.finish_reason) == ((), "stop")
    await within(model.generate(asking(*HELLO.messages, answer.message, Message("user", "Well?"))))


async def test_a_reason_of_next_year(server: VendorServer, model: AnthropicModel) -> None:
    """An unknown stop reason becomes the finish reason `error`."""
    answering(server, message(text("So"), stop="tired"))
    assert (await both(model)).finish_reason == "error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_not_there(server: VendorServer, model: AnthropicModel, stream: bool) -> None:
    """An answer that ends with a tool call but has none is an error."""
    server.always(whole_or_streamed(message(text("So"), stop="tool_use"), stream=stream))
    with pytest.raises(ModelError, match="ends with a tool call but has none") as caught:
        await (read(model, HELLO) if stream else within(model.generate(HELLO)))
    assert (caught.value.error_kind, caught.value.request_id) == ("invalid_response", "req_1")


@pytest.mark.parametrize("given", ["[1, 2]", "null", '"text"', '{"a": 1', "nonsense"])
async def test_arguments_that_are_no_object(server: VendorServer, model: AnthropicModel, given: str) -> None:
    """Arguments that are no JSON object are kept as text, also if their block is never ended."""
    sent = events(message(tool_use("add", {}, "toolu_1"), stop="max_tokens"))
    piece = event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": given})
    server.answers(streamed([*sent[:3], piece, *sent[4:]]))
    _, answer = await read(model, HELLO)
    assert answer.message.tool_calls == (ToolCall("add", given, "toolu_1"),)


async def test_two_calls_whose_pieces_take_turns(server: VendorServer, model: AnthropicModel) -> None:
    """Pieces of two calls that alternate belong to the block of their index."""
    one, two = tool_use("add", {}, "t1"), tool_use("sub", {}, "t2")
    pieces = [(0, '{"a"'), (1, '{"b": '), (0, ": 1"), (1, "2}"), (0, "}")]
    sent = [
        event("message_start", message=message(stop=None)),
        event("content_block_start", index=0, content_block=one),
        event("content_block_start", index=1, content_block=two),
        *(
            event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
            for index, piece in pieces
        ),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 3}),
        event("message_stop"),
    ]
    server.answers(streamed(sent))
    deltas, answer = await read(model, HELLO)
    assert answer.message.tool_calls == (ToolCall("add", {"a": 1}, "t1"), ToolCall("sub", {"b": 2}, "t2"))
    assert [delta.content for delta in deltas] == ["add", "sub"]


# --- usage ------------------------------------------------------------------------------------------------------------


async def test_usage_that_is_not_told(server: VendorServer, model: AnthropicModel) -> None:
    """Usage that the vendor does not give is unknown, and output tokens at the start of a stream do not count."""
    whole = message(text("Hi"))
    server.answers(whole_or_streamed({**whole, "usage": None}, stream=False))
    assert (await within(model.generate(HELLO))).usage == Usage()
    sent = events(whole)
    end = event("message_delta", delta={"stop_reason": "end_turn"})
    server.answers(streamed([*sent[:-2], end, sent[-1]]))
    _, answer = await read(model, HELLO)
    assert answer.usage == Usage(input_tokens=12)


async def test_usage_of_a_paused_turn(server: VendorServer, model: AnthropicModel) -> None:
    """The usage of a paused turn is the sum of its messages, and its container is used again."""
    usage = {
        "input_tokens": 1,
        "output_tokens": 5,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    paused = message(thinking("Hm."), text(""), call, stop="pause_turn", usage=usage, container={"id": "c_1"})
    answering(server, paused, message(result, text("Found."), usage=usage, id="msg_2"))
    answer = await both(model)
    assert answer.usage == Usage(
        input_tokens=222,
        output_tokens=10,
        cache_read_input_tokens=20,
        cache_write_input_tokens=200,
        reasoning_output_tokens=4,
    )
    assert (answer.id, len(answer.message.parts)) == ("msg_2", 4)
    first, again, *_ = (request.json for request in server.requests)
    assert again["messages"][:-1] == first["messages"]
    assert again["messages"][-1] == {"role": "assistant", "content": [thinking("Hm."), call]}
    assert again["container"] == "c_1"


async def test_a_turn_that_fails_after_a_pause(server: VendorServer, model: AnthropicModel) -> None:
    """A turn that fails after a pause is an error."""
    server.answers(whole_or_streamed(message(text("I search."), stop="pause_turn"), stream=True))
    server.answers(streamed([*events(message(text("Found.")))[:4], Cut()]))
    with pytest.raises(ModelError) as caught:
        await read(model, HELLO)
    assert caught.value.error_kind == "unavailable"


# --- errors -----------------------------------------------------------------------------------------------------------

BEGUN = events(message(text("Once upon a time")))[:6]


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        ([*BEGUN, event("error", error={"type": "overloaded_error", "message": "No."})], ReportedError),
        ([*BEGUN, event("error")], ReportedError),
        ([*BEGUN, event("error", error="No.")], ReportedError),
        (BEGUN, ConnectionError),
        ([*BEGUN, Cut()], httpx2.RemoteProtocolError),
        ([*BEGUN, event("content_block_delta")], ValueError),
    ],
)
async def test_a_broken_stream_has_its_request_id(
    server: VendorServer, model: AnthropicModel, sent: Sequence[Chunk], cause: type[Exception]
) -> None:
    """The error of a broken stream has the request id and a cause, and no status."""
    server.always(streamed(sent))
    with pytest.raises(ModelError, match="request req_1") as caught:
        await read(model, HELLO)
    assert (caught.value.request_id, caught.value.status) == ("req_1", None)
    assert isinstance(caught.value.__cause__, cause)


async def test_a_refused_connection_says_whose() -> None:
    """The error of a refused connection has the base URL and the vendor's error as its cause."""
    port = free_port()
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=f"http://127.0.0.1:{port}")) as model:
        with pytest.raises(ModelError, match=rf"ConnectError: .+ \(base URL http://127\.0\.0\.1:{port}\)") as caught:
            await within(model.generate(HELLO))
    assert isinstance(caught.value.__cause__, anthropic.APIConnectionError)


async def test_silence_has_its_name(server: VendorServer) -> None:
    """The error of a server that does not answer is a `ModelTimeout` that names `ReadTimeout`."""
    server.always(streamed([Hang()]))
    timeout = httpx2.Timeout(60.0, read=0.2)
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=server.url, timeout=timeout)) as model:
        with pytest.raises(
            ModelTimeout, match=rf"ReadTimeout \(base URL http://127\.0\.0\.1:{server.port}\)$"
        ) as caught:
            await within(model.generate(HELLO))
    assert caught.value.error_kind == "timeout"


async def test_silence_in_a_stream_has_its_request_id(server: VendorServer, model: AnthropicModel) -> None:
    """The error of a stream that stops has the request id."""
    server.always(streamed([*BEGUN, Hang()]))

    async def fall_silent() -> None:
        await anyio.wait_all_tasks_blocked()
        pass_time()

    async def listen() -> None:
        async for _ in model.stream(HELLO):
            tasks.start_soon(fall_silent)

    name = rf"request req_1: ReadTimeout \(base URL http://127\.0\.0\.1:{server.port}\)$"
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ModelTimeout, match=name) as caught:
            await listen()
    assert (caught.value.request_id, caught.value.status) == ("req_1", None)
    assert caught.value.error_kind == "timeout"
    assert isinstance(caught.value.__cause__, httpx2.ReadTimeout)


async def test_a_stream_is_over_when_its_message_is(server: VendorServer, model: AnthropicModel) -> None:
    """Events after the end of the message are ignored."""
    server.answers(streamed([*events(message(text("Hi"))), event("error", error={"type": "api_error"}), Hang()]))
    _, answer = await read(model, HELLO)
    assert answer.message.text == "Hi"


async def test_what_is_answered_twice_is_equal_in_a_run(server: VendorServer, model: AnthropicModel) -> None:
    """A run with reasoning, searches and tool calls gives the same messages with `run` and `stream`."""
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "a"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    calls = message(thinking("Hm."), search, found, text("So:"), tool_use("nope", {}, "toolu_1"), stop="tool_use")
    answering(server, calls, message(thinking("Ah."), text("Done.")))
    agent = Agent("a", model=model, instructions="Be brief.")
    ran = await within(agent.run("go"))
    async with agent.stream("go") as stream:
        async for _ in stream:
            pass
    assert (ran.output, stream.result.output) == ("Done.", "Done.")
    assert [message.parts for message in ran.messages] == [message.parts for message in stream.result.messages]
