from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
import openai
import pytest

from pellucid import (
    Agent,
    ConfigError,
    Message,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    ToolDefinition,
    semconv,
    tool,
)
from pellucid.errors import ModelTimeout
from pellucid.models import Model
from pellucid.models.names import resolve
from pellucid.models.openai import OpenAIModel
from pellucid.models.openai.schema import is_strict
from support.models import read
from support.openai_wire import ask, call, chunks, completion, events, function_call, response, said, sse, thought
from support.runs import attributes
from support.vendor_server import Answer, Cut, Hang, answer_json, answer_sse, vendor_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pellucid import ErrorKind
    from pellucid_exporters.testing import Captured
    from support.vendor_server import Chunk, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

KEY = "sk-test-0123456789"
ASKED = ModelRequest(messages=[Message("user", "hi")])
TEXT = {"chat": completion({"content": "Hello."}), "responses": response(said("Hello."))}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the machine has set."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["chat", "responses"])
async def model(request: pytest.FixtureRequest, server: VendorServer, anyio_backend: str) -> AsyncIterator[OpenAIModel]:
    """Return a model of that server, by each of the two protocols."""
    asked = OpenAIModel("gpt-x", api=request.param, api_key=KEY, base_url=f"{server.url}/v1")
    yield asked
    await asked.aclose()


def is_chat(model: OpenAIModel) -> bool:
    """Return which protocol a model speaks."""
    return "chat" in repr(model)


def streamed(model: OpenAIModel) -> list[Any]:
    """Return a streamed answer's events."""
    return chunks(TEXT["chat"]) if is_chat(model) else events(TEXT["responses"])


def begun(model: OpenAIModel) -> bytes:
    """Return the events of an answer that has begun."""
    return sse(*streamed(model)[: 3 if is_chat(model) else 5])


async def fail(model: OpenAIModel, *, stream: bool = False, match: str | None = None) -> ModelError:
    """Return the error with which a call fails."""
    with pytest.raises(ModelError, match=match) as caught:
        await ask(model, ASKED, stream=stream)
    seen: BaseException | None = caught.value
    assert KEY not in str(seen)
    assert seen is not None
    assert seen.__cause__ is not None
    return caught.value


# --- construction -----------------------------------------------------------------------------------------------------


def test_openai_itself_needs_a_key() -> None:
    """The error names the variable; a key of blanks is none."""
    for key in (None, "", "  \n"):
        with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
            OpenAIModel("gpt-x", api_key=key)


@pytest.mark.parametrize("key", ["sk-ab\ncd", "sk-äö"])
def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    """Without telling it."""
    with pytest.raises(ConfigError, match="characters") as caught:
        OpenAIModel("gpt-x", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://localhost", "http://", "http://localhost:many"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="base URL"):
        OpenAIModel("gpt-x", base_url=url)


@pytest.mark.parametrize(
    ("url", "path", "address", "port"),
    [
        (None, "/responses", "api.openai.com", 443),
        ("https://eu.api.openai.com/v1", "/responses", "eu.api.openai.com", 443),
        ("https://api.openai.com.example.com/v1", "/chat/completions", "api.openai.com.example.com", 443),
        ("http://localhost:11434/v1", "/chat/completions", "localhost", 11434),
        ("https://openrouter.ai/api/v1", "/chat/completions", "openrouter.ai", 443),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_the_address_chooses_the_protocol(
    monkeypatch: pytest.MonkeyPatch, url: str | None, path: str, address: str, port: int, by_variable: bool
) -> None:
    """OpenAI's own speaks Responses, all others Chat Completions, unless the caller says otherwise."""
    if by_variable and url is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
    model = OpenAIModel("gpt-x", api_key=KEY, base_url=None if by_variable else url)
    assert repr(model) == f"OpenAIModel('gpt-x', server={address!r}, path={path!r})"
    assert (model.server_address, model.server_port) == (address, port)
    assert "chat" in repr(OpenAIModel("gpt-x", api_key=KEY, api="chat"))


def test_it_is_a_model() -> None:
    """With what telemetry wants to know; its name leads to it."""
    model = OpenAIModel("gpt-x", api_key=KEY)
    assert isinstance(model, Model)
    assert (model.name, model.provider_name, model.native_output) == ("gpt-x", "openai", True)
    found = resolve("ollama:qwen3")
    assert (found.name, found.provider_name) == ("qwen3", "ollama")


async def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch, server: VendorServer, model: OpenAIModel) -> None:
    """From the variable too; without one, what the SDK insists on is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    given = OpenAIModel("m", base_url=server.url)
    monkeypatch.delenv("OPENAI_API_KEY")
    none = OpenAIModel("m", base_url=server.url)
    server.always(answer_json(TEXT["chat"]))
    for asked in (given, none):
        await ask(asked, ASKED, stream=False)
        await asked.aclose()
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {KEY}", "Bearer none"]


@pytest.mark.parametrize(("host", "name"), [("api.openai.com", "max_completion_tokens"), ("x.dev", "max_tokens")])
async def test_names_of_parameters_follow_the_host(host: str, name: str) -> None:
    """OpenAI has renamed one and checks schemas of tools; others know the old name, and may refuse what they don't."""
    sent: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        return httpx2.Response(200, json=TEXT["chat"])

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = openai.AsyncOpenAI(api_key=KEY, base_url=f"https://{host}/v1", http_client=http)
    model = OpenAIModel("m", api="chat", client=client)
    add = ToolDefinition(name="add", description="", parameters={"type": "object"})
    await model.generate(ModelRequest(messages=ASKED.messages, tools=[add], settings={"max_tokens": 9}))
    assert sent[0][name] == 9
    assert sent[0]["tools"][0]["function"].get("strict") == (False if host == "api.openai.com" else None)
    await client.close()


# --- clients ----------------------------------------------------------------------------------------------------------


async def test_a_given_client_is_used_as_it_is(server: VendorServer) -> None:
    """Its address is told, its key kept out of errors; it stays open."""
    async with openai.AsyncAzureOpenAI(
        api_key=KEY, azure_endpoint=server.url, api_version="2026-01-01", max_retries=0
    ) as client:
        model = OpenAIModel("gpt-x", client=client, provider_name="azure.ai.openai")
        assert (model.server_address, model.server_port) == ("127.0.0.1", server.port)
        server.answers(answer_json(TEXT["chat"]), answer_json({"error": {"message": f"bad key {KEY}"}}, status=401))
        assert (await ask(model, ASKED, stream=False)).message.text == "Hello."
        assert server.requests[0].path == "/openai/deployments/gpt-x/chat/completions?api-version=2026-01-01"
        error = await fail(model)
        assert "bad key [masked]" in str(error)
        await model.aclose()
        assert not client.is_closed()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("bad key sk-proj-abcdefghijklmnop1234", "bad key [redacted]"),
        ("Incorrect API key provided: gsk_abcdefghijklmnopqrstuvwxyz0123456789.", "provided: [redacted]."),
        ("no header Authorization: Bearer abcdefgh12345678", "no header Authorization: [redacted]"),
        ('{"headers": {"x-api-key": ["abcdefgh1"]}}', '{"headers": {"x-api-key": ["[redacted]"]}}'),
    ],
)
async def test_an_error_shows_no_key_of_others(server: VendorServer, message: str, shown: str) -> None:
    """A vendor or proxy may quote another key than the model's; the error is masked like telemetry."""
    server.answers(answer_json({"error": {"message": message}}, status=401))
    model = OpenAIModel("gpt-x", base_url=server.url, api_key=KEY)
    assert shown in str(await fail(model))
    await model.aclose()


def test_event_loops_one_after_the_other_use_one_model(server: VendorServer) -> None:
    """Connections of one do not work in another."""
    model = OpenAIModel("m", base_url=server.url)
    server.always(answer_json(TEXT["chat"]))

    async def once() -> str:
        answer = await ask(model, ASKED, stream=False)
        await model.aclose()
        return answer.message.text

    assert [anyio.run(once, backend=name) for name in ("asyncio", "trio", "asyncio")] == ["Hello."] * 3


async def test_a_closed_model_can_be_used_again(server: VendorServer, model: OpenAIModel) -> None:
    """It opens other connections."""
    answer = answer_json(TEXT["chat" if is_chat(model) else "responses"])
    server.always(answer)
    for _ in range(2):
        await ask(model, ASKED, stream=False)
        await model.aclose()


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_streams_are_read_wherever_they_are_split(server: VendorServer, model: OpenAIModel, size: int) -> None:
    """With comments among the events."""
    text = "Grüße ☀️"
    told: list[Any] = chunks(completion({"content": text})) if is_chat(model) else events(response(said(text)))
    body = b": OPENROUTER PROCESSING\n\n" + sse(*told).replace(b"\n\n", b"\n\n: ping\n\n")
    server.answers(answer_sse(*(body[start : start + size] for start in range(0, len(body), size))))
    _, answer = await read(model, ASKED)
    assert answer.message.text == text


async def test_pieces_are_told_as_they_come(server: VendorServer, model: OpenAIModel) -> None:
    """Not when the answer is over."""
    server.answers(answer_sse(begun(model), Hang(), sse(*streamed(model)[3 if is_chat(model) else 5 :])))
    told: list[ModelDelta] = []
    with anyio.fail_after(60):
        async with aclosing(cast("Any", model.stream(ASKED))) as items:
            async for item in items:
                if isinstance(item, ModelResponse):
                    break
                told.append(item)
                if len(told) == 1:
                    server.released.set()
    assert item == await again(server, model)
    assert "".join(delta.content for delta in told) == "Hello."


async def again(server: VendorServer, model: OpenAIModel) -> ModelResponse:
    """Return the same answer in one piece."""
    server.answers(answer_json(TEXT["chat" if is_chat(model) else "responses"]))
    return await ask(model, ASKED, stream=False)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_a_stream_that_is_left_closes_its_connection(server: VendorServer, model: OpenAIModel) -> None:
    """At once, and whoever leaves hears of nothing."""
    server.answers(answer_sse(begun(model), Hang()))
    with anyio.fail_after(60):
        async with aclosing(cast("Any", model.stream(ASKED))) as items:
            async for _ in items:
                break
        await until(lambda: server.left == 1)


async def test_a_cancelled_stream_closes_its_connection(server: VendorServer, model: OpenAIModel) -> None:
    """The cancellation passes through as it is."""
    server.answers(answer_sse(begun(model), Hang()))

    async def consume() -> None:
        async with aclosing(cast("Any", model.stream(ASKED))) as items:
            async for _ in items:
                pass

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await until(server.reached.is_set)
            tasks.cancel_scope.cancel()
        await until(lambda: server.left == 1)
    assert tasks.cancel_scope.cancelled_caught


async def test_a_cancelled_call_closes_its_connection(server: VendorServer, model: OpenAIModel) -> None:
    """A whole answer that has not come yet is given up."""
    server.answers(Answer(body=[b"{", Hang()]))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model.generate, ASKED)
            await until(server.reached.is_set)
            tasks.cancel_scope.cancel()
        await until(lambda: server.left == 1)


# --- failures ---------------------------------------------------------------------------------------------------------

STATUSES: list[tuple[int, str | None, ErrorKind]] = [
    (400, "invalid_value", "invalid_request"),
    (400, "context_length_exceeded", "invalid_request"),
    (400, "content_filter", "invalid_request"),
    (401, "invalid_api_key", "auth"),
    (402, None, "auth"),
    (403, None, "auth"),
    (404, "model_not_found", "invalid_request"),
    (408, None, "timeout"),
    (413, None, "invalid_request"),
    (422, None, "invalid_request"),
    (429, "rate_limit_exceeded", "rate_limited"),
    (429, "insufficient_quota", "auth"),
    (500, "server_error", "unavailable"),
    (503, None, "unavailable"),
    (504, None, "timeout"),
    (529, "overloaded_error", "unavailable"),
]


@pytest.mark.parametrize(("status", "code", "kind"), STATUSES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_says_what_it_means(
    server: VendorServer, model: OpenAIModel, status: int, code: str | None, kind: ErrorKind, stream: bool
) -> None:
    """Its kind, status, request id and what the vendor says; it is asked once."""
    body = {"error": {"message": f"No, with {KEY}.", "type": "some_error", "code": code}}
    server.always(answer_json(body, status=status, x_request_id="req_1"))
    error = await fail(model, stream=stream, match=r"No, with \[masked\]\.")
    assert (error.error_kind, error.request_id) == (kind, "req_1")
    assert error.status == status
    assert isinstance(error.__cause__, openai.APIStatusError)
    assert len(server.requests) == 1


async def test_a_refusal_may_say_when_to_come_back(server: VendorServer, model: OpenAIModel) -> None:
    """In seconds, milliseconds or by a date."""
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for headers, least, most in (
        ({"retry_after": "7"}, 7, 7),
        ({"retry_after_ms": "1500"}, 1.5, 1.5),
        ({"retry_after": later}, 3000, 3600),
    ):
        server.answers(answer_json({"error": {"message": "Slow down."}}, status=429, **headers))
        wait = (await fail(model)).retry_after
        assert wait is not None
        assert least <= wait <= most


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b'"no"', b'{"detail": "no"}', b'{"error": "no"}'])
async def test_a_refusal_may_be_of_any_shape(server: VendorServer, model: OpenAIModel, body: bytes) -> None:
    """Proxies answer as they like."""
    server.answers(Answer(status=502, headers={"content-type": "application/json"}, body=[body] if body else []))
    error = await fail(model)
    assert (error.error_kind, error.status) == ("unavailable", 502)


NO_ANSWERS = [
    b"",
    b"null",
    b"[]",
    b'"hi"',
    b"{}",
    b'{"id": ',
    b"<html></html>",
    b"\xff",
    b'{"choices": []}',
    b'{"choices": [1]}',
    b'{"choices": {"a": 1}}',
    b'{"choices": [{"message": null}]}',
    b'{"choices": [{"message": {"content": null}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}',
    b'{"choices": [{"message": {"content": {"text": "hi"}}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"id": [1], "function": {"name": "add"}}]}}]}',
    b'{"status": "completed"}',
    b'{"status": "completed", "output": [1]}',
    b'{"status": "completed", "output": [{"type": "function_call"}]}',
    b'{"status": "completed", "output": [{"type": "function_call", "call_id": "c1", "name": null}]}',
    b'{"status": "completed", "output": [{"type": "message", "content": [{"text": ["hi"]}]}]}',
]


@pytest.mark.parametrize("body", NO_ANSWERS)
async def test_an_answer_that_is_none_is_invalid(server: VendorServer, model: OpenAIModel, body: bytes) -> None:
    """Whatever is wrong with it."""
    headers = {"content-type": "application/json", "x-request-id": "req_1"}
    server.answers(Answer(headers=headers, body=[body] if body else []))
    error = await fail(model)
    assert (error.error_kind, error.request_id) == ("invalid_response", "req_1")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": f"Upstream, {KEY}.", "code": 502}, "unavailable", 502),
        ({"message": "Slow down.", "code": "429"}, "rate_limited", 429),
        ({"message": "Slow down.", "type": "rate_limit_error"}, "rate_limited", None),
        ({"message": "Pay.", "code": "insufficient_quota"}, "auth", None),
        ({"message": "Too long.", "type": "BadRequest", "code": "context_length_exceeded"}, "invalid_request", None),
        ({"message": "No.", "type": "invalid_request_error", "code": None}, "invalid_request", None),
        ({"code": None}, "unavailable", None),
        ({"code": "\N{SUPERSCRIPT TWO}", "type": "4" * 5_000}, "unavailable", None),
        ("it broke", "unavailable", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_in_an_answer_is_an_error(
    server: VendorServer, model: OpenAIModel, error: Any, kind: ErrorKind, status: int | None, stream: bool
) -> None:
    """With status 200, and in the middle of a stream."""
    begin = begun(model)
    server.answers(answer_sse(begin, sse({"error": error})) if stream else answer_json({"error": error}))
    failed = await fail(model, stream=stream)
    assert (failed.error_kind, failed.status) == (kind, status)


@pytest.mark.parametrize("choice", [{"finish_reason": "error"}, {"finish_reason": None, "error": {"message": "no"}}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_broke_off_is_an_error(server: VendorServer, choice: dict[str, Any], stream: bool) -> None:
    """As OpenRouter and DeepSeek tell of it."""
    model = OpenAIModel("m", base_url=server.url)
    part = {"content": "Once"}
    told = {"choices": [{"index": 0, "delta" if stream else "message": part, **choice}]}
    server.answers(answer_sse(sse(told, "[DONE]")) if stream else answer_json(told))
    assert (await fail(model, stream=stream)).error_kind == "unavailable"
    await model.aclose()


ENDS: dict[str, tuple[list[Chunk], ErrorKind]] = {
    "truncated": ([], "unavailable"),
    "dropped": ([Cut()], "unavailable"),
    "inside an event": ([b'data: {"cho'], "unavailable"),
    "garbage": ([b"data: {oops\n\n", Hang()], "invalid_response"),
    "no object": ([b"data: 1\n\n", Hang()], "invalid_response"),
    "no text": ([b"data: \xff\n\n", Hang()], "invalid_response"),
}


@pytest.mark.parametrize(("end", "kind"), ENDS.values(), ids=ENDS)
async def test_a_stream_that_breaks_is_an_error(
    server: VendorServer, model: OpenAIModel, end: list[Chunk], kind: ErrorKind
) -> None:
    """Never a short answer that looks whole."""
    server.answers(answer_sse(begun(model), *end, x_request_id="req_1"))
    error = await fail(model, stream=True)
    assert (error.error_kind, error.request_id) == (kind, "req_1")


async def test_an_empty_stream_is_an_error(server: VendorServer, model: OpenAIModel) -> None:
    """So is an answer that is no stream."""
    server.answers(answer_sse(), answer_json({"id": "x"}), answer_sse(sse("[DONE]")))
    kinds = [(await fail(model, stream=True)).error_kind for _ in range(3)]
    assert kinds == ["unavailable", "unavailable", "invalid_response" if is_chat(model) else "unavailable"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [[Hang()], [b": ping\n\n", Hang()]])
async def test_silence_is_a_timeout(server: VendorServer, model: OpenAIModel, stream: bool, body: list[Chunk]) -> None:
    """The time is that between two pieces of an answer."""
    hasty = OpenAIModel("m", api="chat" if is_chat(model) else "responses", base_url=server.url, timeout=0.2)
    server.answers(answer_sse(*body))
    error = await fail(hasty, stream=stream)
    assert isinstance(error, ModelTimeout)
    await hasty.aclose()


async def test_nobody_there_is_an_error(server: VendorServer) -> None:
    """The error says where nobody is."""
    with vendor_server() as gone:
        url = gone.url
    model = OpenAIModel("m", base_url=url)
    error = await fail(model, match=f"127.0.0.1:{gone.port}")
    assert (error.error_kind, error.status) == ("unavailable", None)
    await model.aclose()


@pytest.mark.parametrize(
    "request_",
    [
        ModelRequest(messages=[Message("user", "half a character: \ud83d")]),
        ModelRequest(messages=[Message("user", "x")], settings={"temperature": float("nan")}),
        ModelRequest(messages=[Message("user", "x")], settings={"extra": {"a": object()}}),
    ],
    ids=["text", "number", "object"],
)
async def test_what_cannot_be_sent_is_an_error_of_the_request(
    server: VendorServer, model: OpenAIModel, request_: ModelRequest
) -> None:
    """Nothing is sent."""
    with pytest.raises(ModelError) as caught:
        await ask(model, request_, stream=False)
    assert caught.value.error_kind == "invalid_request"
    assert server.requests == []


# --- in a run ---------------------------------------------------------------------------------------------------------


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def steps(model: OpenAIModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two answers: a call of `add`, and text."""
    arguments = '{"a": 1, "b": 2}'
    if is_chat(model):
        asked = completion({"reasoning": "hm", "tool_calls": [call("add", arguments, "c1")]}, "tool_calls")
        return asked, completion({"content": "Three."})
    return response(thought("hm"), function_call("add", arguments, "c1")), response(said("Three."))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_openai_s_own_is_described(server: VendorServer, model: OpenAIModel, stream: bool) -> None:
    """The protocol, and the service tier that was asked for and that answered; of OpenAI only."""
    answer = {**steps(model)[-1], "service_tier": "default"}
    told: list[Any] = chunks(answer) if is_chat(model) else events(answer)
    told = [{**each, "service_tier": "default"} if isinstance(each, dict) else each for each in told]
    server.answers(answer_sse(sse(*told)) if stream else answer_json(answer))
    request = ModelRequest(messages=[Message("user", "hi")], settings={"extra": {"service_tier": "flex"}})
    response = await ask(model, request, stream=stream)
    assert response.attributes == {
        "openai.api.type": "chat_completions" if is_chat(model) else "responses",
        "openai.request.service_tier": "flex",
        "openai.response.service_tier": "default",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_is_described(telemetry: Captured, server: VendorServer, model: OpenAIModel, stream: bool) -> None:
    """The `chat` spans say who was asked, where, what it answered and what that took."""
    sent = 0
    for answer in steps(model):
        told: list[Any] = chunks(answer) if is_chat(model) else events(answer)
        sent += len(told) - is_chat(model)  # "[DONE]" is no chunk
        server.answers(answer_sse(sse(*told)) if stream else answer_json(answer))
    agent = Agent("a", model=model, tools=[add])
    with anyio.fail_after(60):
        if stream:
            async with agent.stream("Add.") as told_of:
                async for _ in told_of:
                    pass
            result = told_of.result
        else:
            result = await agent.run("Add.")
    assert result.output == "Three."
    assert (result.usage.input_tokens, result.usage.output_tokens) == (60, 24)
    first, second = (span for span in telemetry.spans if span.name == "chat gpt-x")
    for span, reason in ((first, "tool_call"), (second, "stop")):
        found = attributes(span)
        assert found[semconv.PROVIDER_NAME] == "openai"
        assert (found[semconv.REQUEST_MODEL], found[semconv.RESPONSE_MODEL]) == ("gpt-x", "gpt-x-2026")
        assert found[semconv.RESPONSE_ID] in {"chatcmpl-1", "resp_1"}
        assert found[semconv.RESPONSE_FINISH_REASONS] == (reason,)
        assert (found[semconv.SERVER_ADDRESS], found[semconv.SERVER_PORT]) == ("127.0.0.1", server.port)
        assert (found[semconv.USAGE_INPUT_TOKENS], found[semconv.USAGE_OUTPUT_TOKENS]) == (30, 12)
        assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in found) == stream
    if stream:  # each event of the vendor is a chunk, whether there is text in it or not
        measured = (semconv.TIME_TO_FIRST_CHUNK, semconv.TIME_PER_OUTPUT_CHUNK)
        points = [telemetry.histogram(metric, gen_ai_response_model="gpt-x-2026") for metric in measured]
        assert [point.count for point in points] == [2, sent - 2]


async def test_reasoning_goes_back_within_a_run(server: VendorServer, model: OpenAIModel) -> None:
    """And the bytes before what is new stay the same."""
    server.answers(*map(answer_json, steps(model)))
    await Agent("a", instructions="Add.", model=model, tools=[add]).run("1 and 2")
    before, after = (request.body for request in server.requests)
    assert after.startswith(before.removesuffix(b"]}"))
    assert (b'"reasoning":"hm"' if is_chat(model) else b'"encrypted_content":"c2VjcmV0"') in after


# --- strict schemas ---------------------------------------------------------------------------------------------------

TEXT_SCHEMA = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    """Return a schema of a closed object."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (closed(a=TEXT_SCHEMA), True),
        (closed(), True),
        (
            closed(a={"anyOf": [TEXT_SCHEMA, {"type": "null"}]}, b={"type": "array", "items": closed(c=TEXT_SCHEMA)}),
            True,
        ),
        ({**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": closed(b={"enum": [1, 2]})}}, True),
        (closed(a={"type": "string", "format": "date-time", "description": "When."}), True),
        (closed(a={"type": "string", "format": "uri"}), False),
        (closed(a={"type": "string", "minLength": 1}), False),
        (closed(a={"type": "string", "default": "x"}), False),
        (closed(a={}), False),
        (closed(a={"type": "array"}), False),
        (closed(a={"type": "object", "additionalProperties": TEXT_SCHEMA}), False),
        (closed(a={"oneOf": [TEXT_SCHEMA]}), False),
        (closed(a={"$ref": "#/$defs/A", "description": "x"}), False),
        (closed(a={**closed(b=TEXT_SCHEMA), "required": []}), False),
        ({**closed(a=TEXT_SCHEMA), "$defs": {"A": {"type": "object"}}}, False),
        ({**closed(a=TEXT_SCHEMA), "additionalProperties": True}, False),
        ({"anyOf": [closed(a=TEXT_SCHEMA)]}, False),
        ({"type": "object"}, False),
        (closed(a=True), False),
    ],
)
def test_strict_mode_takes_some_schemas(schema: Any, expected: bool) -> None:
    """Every object is closed and requires all it has, and no keyword is beyond what strict mode knows."""
    assert is_strict(schema) is expected
