"""Answers of `AnthropicModel`, whole and streamed."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anthropic
import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    Message,
    ProviderTool,
    ReasoningPart,
    RunCancelled,
    TextPart,
    Tool,
    ToolCall,
    Usage,
    semconv,
    tool,
)
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.models import AnthropicModel, ModelRequest
from support.anthropic_wire import (
    KEY,
    PING,
    USAGE,
    event,
    events,
    message,
    streamed,
    text,
    thinking,
    tool_use,
    whole_or_streamed,
)
from support.models import ADD, HELLO, asking, both, reached, read, until
from support.runs import attributes, ending, within
from support.vendor_server import Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid_exporters.testing import Captured
    from support.vendor_server import Answer, Received, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
async def model(server: VendorServer) -> AsyncIterator[AnthropicModel]:
    """Return a model at that server."""
    async with aclosing(AnthropicModel("claude-sonnet-5-5", api_key=KEY, base_url=server.url)) as model:
        yield model


def answering(server: VendorServer, whole: dict[str, Any]) -> None:
    """Have the server give this answer, whole or streamed as the request asks."""
    server.always(lambda asked: whole_or_streamed(whole, stream=bool(asked.json.get("stream"))))


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_text(server: VendorServer, model: AnthropicModel) -> None:
    """A whole and a streamed text give the same answer, with id, model, finish reason and usage."""
    answering(server, message(text("Grüße aus Bergen ☔"), text("!")))
    answer = await both(model)
    assert answer.message == Message("assistant", [TextPart("Grüße aus Bergen ☔"), TextPart("!")])
    assert (answer.id, answer.model, answer.finish_reason) == ("msg_1", "claude-sonnet-5-5-20260901", "stop")
    assert answer.usage == Usage(input_tokens=12, output_tokens=7)


async def test_tool_calls(server: VendorServer, model: AnthropicModel) -> None:
    """Two tool calls keep their order, ids and parsed arguments, also if a stream sends them in pieces."""
    calls = [tool_use("add", {"a": 1, "b": {"ü": [None, 2.5]}}, "toolu_1"), tool_use("add", {}, "toolu_2")]
    answering(server, message(text("Let me see."), *calls, stop="tool_use"))
    answer = await both(model, asking(Message("user", "1 + 2?"), tools=[ADD]))
    assert answer.finish_reason == "tool_call"
    assert answer.message.tool_calls == (
        ToolCall("add", {"a": 1, "b": {"ü": [None, 2.5]}}, "toolu_1"),
        ToolCall("add", {}, "toolu_2"),
    )


async def test_arguments_that_are_no_json_are_kept(server: VendorServer, model: AnthropicModel) -> None:
    """Arguments that are no JSON are kept as text."""
    begun = [
        event("message_start", message=message(stop=None)),
        event("content_block_start", index=0, content_block=tool_use("add", {}, "toolu_1")),
        event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"a": 1, "b'}),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 7}),
        event("message_stop"),
    ]
    server.answers(streamed(begun))
    _, answer = await read(model, HELLO)
    assert answer.message.tool_calls == (ToolCall("add", '{"a": 1, "b', "toolu_1"),)
    assert answer.finish_reason == "length"


async def test_reasoning(server: VendorServer, model: AnthropicModel) -> None:
    """Reasoning comes before the answer with its signature, and redacted thinking is kept for the vendor."""
    redacted = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    answering(server, message(thinking("Hm, let me think."), redacted, text("42"), stop="end_turn"))
    answer = await both(model)
    thought, hidden, said = answer.message.parts
    assert thought == ReasoningPart("Hm, let me think.", vendor={"anthropic": {"signature": "sig-1"}})
    assert hidden == ReasoningPart("", vendor={"anthropic": {"data": "c2VjcmV0"}})
    assert said == TextPart("42")
    deltas, _ = await read(model, HELLO)
    assert "".join(delta.content for delta in deltas if delta.type == "reasoning") == "Hm, let me think."


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
async def test_reasons_to_stop(server: VendorServer, model: AnthropicModel, stop: str, finish: str) -> None:
    """The vendor's stop reasons become the finish reasons of the conventions."""
    answering(server, message(text("So"), stop=stop))
    assert (await both(model)).finish_reason == finish


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        (
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10},
            Usage(input_tokens=100, output_tokens=5, cache_read_input_tokens=80, cache_write_input_tokens=10),
        ),
        (
            {"input_tokens": 10, "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}},
            Usage(input_tokens=10, output_tokens=5, reasoning_output_tokens=3),
        ),
        (
            {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0},
            Usage(input_tokens=0, output_tokens=0, cache_read_input_tokens=0),
        ),
    ],
)
async def test_usage(server: VendorServer, model: AnthropicModel, said: dict[str, Any], usage: Usage) -> None:
    """Cached tokens are part of the input tokens, and a number that is not given is unknown."""
    answering(server, message(text("Hi"), usage=said))
    assert (await both(model)).usage == usage


async def test_tools_that_the_vendor_runs(server: VendorServer, telemetry: Captured) -> None:
    """Calls of the vendor's tools are recorded, not dispatched, and sent back unchanged."""
    search = {"type": "web_search_20260318", "name": "web_search"}
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "bergen"}}
    found = [{"type": "web_search_result", "url": "https://example.com", "title": "Bergen", "encrypted_content": "x"}]
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found}
    cited = {**text("Rain."), "citations": [{"type": "web_search_result_location", "url": "https://example.com"}]}
    answering(server, message(call, result, cited))
    model = AnthropicModel("claude", api_key=KEY, base_url=server.url, server_tools=[search])
    answer = await both(model)
    assert answer.message.parts[:2] == (
        ServerToolCall(name="web_search", server_tool_call=call, id="srvtoolu_1"),
        ServerToolResult(server_tool_call_response=result, id="srvtoolu_1"),
    )
    ran = await within(Agent("a", model=model, telemetry=telemetry).run("Weather?"))
    assert ran.output == "Rain."
    assert not telemetry.find("execute_tool")
    assert "srvtoolu_1" in attributes(telemetry.span("chat claude"))["gen_ai.output.messages"]
    await within(model.generate(asking(*ran.messages, Message("user", "And tomorrow?"))))
    body = server.requests[-1].json
    assert body["tools"] == [search]
    assert body["messages"][1]["content"] == [call, result, cited]
    await model.aclose()


async def test_provider_tools_are_sent_in_the_vendor_s_form(server: VendorServer, telemetry: Captured) -> None:
    """A provider tool is sent with the newest version of its type unless its options name one."""
    answering(server, message(text("Rain.")))
    tools = [
        ProviderTool(vendor="anthropic", type="web_search", options={"max_uses": 2}),
        ProviderTool(vendor="anthropic", type="web_fetch", options={"type": "web_fetch_20250910"}),
    ]
    model = AnthropicModel("claude", api_key=KEY, base_url=server.url)
    agent = Agent("a", model=model, tools=[*tools, Tool(name="now", run=lambda arguments, ctx: "12:00")])
    await within(agent.run("Weather?"))
    assert server.requests[-1].json["tools"][:2] == [
        {"type": "web_search_20260318", "name": "web_search", "max_uses": 2},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
    ]
    assert attributes(telemetry.span("compose_request"))["pellucid.compose.tools"] == 3
    definitions = json.loads(attributes(telemetry.span("chat claude"))["gen_ai.tool.definitions"])
    assert definitions[0] == {
        "type": "web_search", "name": "web_search", "vendor": "anthropic", "options": {"max_uses": 2}
    }  # fmt: skip
    await model.aclose()


async def test_a_paused_turn_is_gone_on_with(server: VendorServer, model: AnthropicModel) -> None:
    """A paused turn is continued, and the answer has the parts and the usage of both requests."""
    first = message(text("I search. "), stop="pause_turn", usage={"input_tokens": 10, "output_tokens": 3})
    second = message(text("Found it."), usage={"input_tokens": 20, "output_tokens": 4})

    def reply(asked: Received) -> Answer:
        goes_on = asked.json["messages"][-1]["role"] == "assistant"
        return whole_or_streamed(second if goes_on else first, stream=bool(asked.json.get("stream")))

    server.always(reply)
    whole = await both(model)
    assert whole.message.text == "I search. Found it."
    assert whole.usage == Usage(input_tokens=30, output_tokens=7)
    assert [len(asked.json["messages"]) for asked in server.requests] == [1, 2, 1, 2]


async def test_a_turn_that_is_paused_for_ever_ends(server: VendorServer, model: AnthropicModel) -> None:
    """A turn that is paused again and again ends as an answer that was cut off."""
    answering(server, message(text("."), stop="pause_turn"))
    answer = await both(model)
    assert (answer.finish_reason, answer.message.text) == ("length", "......")


async def test_a_stream_with_pings_comments_and_splits_anywhere(server: VendorServer, model: AnthropicModel) -> None:
    """A stream may be split at any byte, and comments and pings are ignored."""
    sent = b"".join([b": hello\n\n", *events(message(text("Blåbærsyltetøy 🫐"))), PING])
    server.answers(streamed([sent[index : index + 1] for index in range(len(sent))]))
    deltas, answer = await read(model, HELLO)
    assert answer.message.text == "Blåbærsyltetøy 🫐"
    assert "".join(delta.content for delta in deltas) == "Blåbærsyltetøy 🫐"


async def test_leaving_a_stream_closes_the_connection(server: VendorServer, model: AnthropicModel) -> None:
    """Closing a stream closes its connection."""
    server.answers(streamed([*events(message(text("Once upon a time")))[:5], Hang()]))
    stream: Any = model.stream(HELLO)
    assert (await within(anext(stream))).content == "Onc"
    await within(stream.aclose())
    await until(server, left=1)


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_cancelling_a_run_closes_the_connection(
    server: VendorServer, model: AnthropicModel, telemetry: Captured, how: str
) -> None:
    """Cancelling a run in the middle of an answer closes the connection, and the span has finish reason `error`."""
    server.answers(streamed([*events(message(text("Once upon")))[:5], Hang()]))
    token = CancelToken()
    agent = Agent("a", model=model, telemetry=telemetry)

    async def cancel() -> None:
        await reached(server)
        token.cancel("enough")

    async def go() -> None:
        if how == "run":
            await agent.run("Tell me a story.", signal=token)
            return
        async with agent.stream("Tell me a story.", signal=token) as stream:
            async for _ in stream:
                pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with pytest.raises(RunCancelled):
            await within(go())
    await until(server, left=1)
    span = telemetry.span("chat")
    assert ending(span) == ("cancelled", "UNSET", None)
    assert attributes(span)["gen_ai.response.finish_reasons"] == ("error",)
    if how == "stream":
        assert "Onc" in attributes(span)["gen_ai.output.messages"]


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_the_span_of_a_call(server: VendorServer, model: AnthropicModel, telemetry: Captured, how: str) -> None:
    """A call has one span with the attributes of the conventions, and the vendor's SDK makes none."""
    calls = tool_use("add", {"a": 1, "b": 2}, "toolu_1")
    replies = [message(calls, stop="tool_use"), message(text("3"))]
    server.answers(*(whole_or_streamed(reply, stream=how == "stream") for reply in replies))
    agent = Agent("a", model=model, tools=[add], settings={"max_tokens": 100, "temperature": 0.5}, telemetry=telemetry)
    if how == "run":
        await within(agent.run("1 + 2?"))
    else:
        async with agent.stream("1 + 2?") as stream:
            async for _ in stream:
                pass
    found = attributes(telemetry.find("chat")[0])
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-5-5",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.model": "claude-sonnet-5-5-20260901",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.usage.input_tokens": USAGE["input_tokens"],
        "gen_ai.usage.output_tokens": USAGE["output_tokens"],
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    assert expected.items() <= found.items()
    assert found[semconv.COST_USD] > 0
    assert ("gen_ai.response.time_to_first_chunk" in found) == (how == "stream")
    assert len(telemetry.find("chat")) == 2
    scopes = {span.instrumentation_scope.name for span in telemetry.spans if span.instrumentation_scope is not None}
    assert scopes == {"pellucid"}


async def test_one_model_in_two_event_loops(server: VendorServer, model: AnthropicModel) -> None:
    """One model works in two event loops."""
    answering(server, message(text("Hi")))

    async def ask() -> str:
        async with aclosing(model):
            return str((await model.generate(HELLO)).message.text)

    def elsewhere() -> str:
        said: str = anyio.run(ask)
        return said

    assert (await within(model.generate(HELLO))).message.text == "Hi"
    assert await within(anyio.to_thread.run_sync(elsewhere)) == "Hi"
    assert (await within(model.generate(HELLO))).message.text == "Hi"
    await model.aclose()
    assert (await within(model.generate(HELLO))).message.text == "Hi"
    await model.aclose()


async def test_a_client_of_one_s_own(server: VendorServer) -> None:
    """A given client is used with its own headers and address, and is not closed."""
    answering(server, message(text("Hi")))
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, default_headers={"x-team": "a"}) as client:
        model = AnthropicModel("claude", client=client)
        assert (model.server_address, model.server_port) == ("127.0.0.1", server.port)
        await within(model.generate(HELLO))
        await model.aclose()
        await within(model.generate(HELLO))
    assert server.requests[-1].headers["x-team"] == "a"


async def test_where_the_key_and_the_address_come_from(monkeypatch: pytest.MonkeyPatch, server: VendorServer) -> None:
    """The key and the address come from the environment, a missing key is an error, and no `repr` shows the key."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicModel("claude")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert (AnthropicModel("claude").server_address, AnthropicModel("claude").server_port) == ("api.anthropic.com", 443)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    model = AnthropicModel("claude")
    assert model.server_port == server.port
    answering(server, message(text("Hi")))
    await within(model.generate(ModelRequest(messages=[Message("user", "Hello?")])))
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(model)
    await model.aclose()
