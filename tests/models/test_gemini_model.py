"""`GeminiModel`: options, addresses, connections, and runs with it."""

from __future__ import annotations

import gc
import gzip
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from google import genai
from google.genai import types

from pellucid import Agent, ConfigError, ModelError, ModelResponse, ToolCall, semconv, tool
from pellucid.events import InferenceDelta
from pellucid.models import Model, ModelDelta
from pellucid.models.gemini import GeminiModel
from pellucid.models.names import resolve
from pellucid_exporters.testing import capture
from support.gemini_wire import (
    ASKED,
    ID,
    KEY,
    NAME,
    SIGNATURE,
    USAGE,
    call,
    event,
    fault,
    gemini,
    piece,
    read,
    streamed,
    text,
    thought,
    whole,
)
from support.runs import COMPLETED, attributes, ending, iteration, within
from support.vendor_server import Hang, answer_json, answer_sse, vendor_server

if TYPE_CHECKING:
    from support.vendor_server import VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

BEGUN = answer_sse(event(piece(text("Once upon"))), Hang())


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)


# --- made -------------------------------------------------------------------------------------------------------------


def test_a_model_says_what_it_is() -> None:
    """A model has a name, a vendor and an address, and no `repr` shows its key."""
    model = GeminiModel(NAME, api_key=KEY)
    assert isinstance(model, Model)
    assert (model.name, model.provider_name) == (NAME, "gcp.gemini")
    assert (model.server_address, model.server_port) == ("generativelanguage.googleapis.com", 443)
    assert repr(model) == f"GeminiModel('{NAME}')"
    assert KEY not in str(vars(model)["_dialect"])


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
async def test_the_key_is_found(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes from either of the SDK's variables, and the address from the environment."""
    with vendor_server() as server:
        monkeypatch.setenv(variable, " from-outside ")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"{server.url}/proxy")
        monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
        server.answers(whole(text("Hi.")))
        model = GeminiModel(NAME)
        await within(model.generate(ASKED))
        await model.aclose()
        assert (model.server_address, model.server_port) == ("127.0.0.1", server.port)
        assert server.requests[0].headers["x-goog-api-key"] == "from-outside"
        assert server.requests[0].path == f"/proxy/v1/models/{NAME}:generateContent"


def test_without_a_key_there_is_no_model() -> None:
    """The error about a missing key names the variable."""
    with pytest.raises(ConfigError, match="set the environment variable GEMINI_API_KEY, or pass api_key="):
        GeminiModel(NAME)


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("url", ["localhost:8080", "ftp://example.com", "http://[::1", "http://", "http://host:many"])
def test_an_address_that_is_none(url: str, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool) -> None:
    """An invalid base URL is refused when the model is made."""
    if by_variable:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
    with pytest.raises(ConfigError, match="not a base URL"):
        GeminiModel(NAME, api_key=KEY, base_url=None if by_variable else url)


def test_it_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resolve` knows the model as `gemini:` and `google:`."""
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    for host in ("gemini", "google"):
        model = resolve(f"{host}:{NAME}")
        assert isinstance(model, GeminiModel)
        assert model.name == NAME


def test_unknown_server_tools_are_refused() -> None:
    """An unknown server tool is refused when the model is made."""
    with pytest.raises(ConfigError, match=r"\{'gogle_search': \{\}\} is not a tool of the API: gogle_search"):
        GeminiModel(NAME, api_key=KEY, server_tools=[{"gogle_search": {}}])


async def test_a_server_tool_of_the_other_api_is_refused() -> None:
    """A server tool of Vertex AI is refused before a request to the Gemini API."""
    async with gemini(server_tools=[{"enterprise_web_search": {}}]) as (model, server):
        with pytest.raises(ModelError, match="enterprise_web_search parameter is only supported in") as caught:
            await model.generate(ASKED)
        assert server.requests == []
    assert caught.value.error_kind == "invalid_request"


# --- given clients ----------------------------------------------------------------------------------------------------


def _vertex(server: VendorServer, http: httpx2.AsyncClient, **options: Any) -> genai.Client:
    return genai.Client(
        vertexai=True,
        api_key=KEY,
        http_options=types.HttpOptions(base_url=server.url, httpx_async_client=http, **options),
    )


async def test_vertex_ai_is_another_provider() -> None:
    """A client of Vertex AI makes another vendor, with its own signatures."""
    part = call("now", id="fc", thoughtSignature=SIGNATURE)
    with vendor_server() as server:
        server.answers(whole(part), streamed(piece(part), piece(finish="STOP", usage=USAGE)))
        async with httpx2.AsyncClient() as http:
            model = GeminiModel(NAME, client=_vertex(server, http), server_tools=[{"google_search": {}}])
            response = await within(model.generate(ASKED))
            assert (await within(read(model)))[1] == response
            await model.aclose()
            assert not http.is_closed
        assert (model.provider_name, model.server_address, model.server_port) == (
            "gcp.vertex_ai",
            "127.0.0.1",
            server.port,
        )
        [received, _] = server.requests
    vendor = {"gcp.vertex_ai": {"thought_signature": SIGNATURE, "id": "fc"}}
    assert response.message.parts == (ToolCall("now", {}, "fc", vendor=vendor),)
    assert received.path == f"/v1beta1/publishers/google/models/{NAME}:generateContent"
    assert "toolConfig" not in received.json


async def test_the_sdk_tries_once() -> None:
    """The SDK makes one request for each call, even if its client has retries."""
    with vendor_server() as server:
        server.always(answer_json(fault(503, "UNAVAILABLE", "Overloaded."), status=503))
        async with httpx2.AsyncClient() as http:
            retries = types.HttpRetryOptions(attempts=4, initial_delay=0.0)
            model = GeminiModel(NAME, client=_vertex(server, http, retry_options=retries))
            for count, asked in enumerate((model.generate(ASKED), read(model)), 1):
                with pytest.raises(ModelError, match=r"Overloaded\.") as caught:
                    await within(asked)
                assert caught.value.error_kind == "unavailable"
                assert len(server.requests) == count


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_client_with_its_own_connections(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given client works on asyncio without aiohttp, and leaving a stream closes its connection."""
    monkeypatch.setattr("google.genai._api_client.has_aiohttp", False)  # other packages of the tests need aiohttp
    with vendor_server() as server:
        client = genai.Client(api_key=KEY, vertexai=False, http_options=types.HttpOptions(base_url=server.url))
        model = GeminiModel(NAME, client=client)
        server.answers(whole(text("Hi.")), BEGUN)
        assert (await within(model.generate(ASKED))).message.text == "Hi."
        items = model.stream(ASKED)
        assert await within(anext(items)) == ModelDelta("text", "Once upon")
        await items.aclose()
        await gone(server)
        await client.aio.aclose()
        client.close()


async def test_the_connections_of_a_given_client_are_closed_at_once() -> None:
    """Leaving a stream of a given HTTP client closes its connection, and the client gets its hooks once."""
    with vendor_server() as server:
        server.answers(BEGUN, streamed(piece(text("Hi."), finish="STOP")))
        async with httpx2.AsyncClient() as http:
            model = GeminiModel(NAME, client=_vertex(server, http))
            items = model.stream(ASKED)
            assert await within(anext(items)) == ModelDelta("text", "Once upon")
            await items.aclose()
            await gone(server)
            assert (await within(read(model)))[1].message.text == "Hi."
            assert {kind: len(hooks) for kind, hooks in http.event_hooks.items()} == {"request": 1, "response": 1}


async def test_a_compressed_stream_is_left_to_the_sdk() -> None:
    """A compressed stream is read although it was not asked for."""
    body = gzip.compress(event(piece(text("Hi."), finish="STOP")))
    async with gemini() as (model, server):
        server.answers(answer_sse(body[:20], body[20:], content_encoding="gzip"))
        assert (await read(model))[1].message.text == "Hi."
        assert server.requests[0].headers["accept-encoding"] == "identity"


# --- left early -------------------------------------------------------------------------------------------------------


async def gone(server: VendorServer) -> None:
    """Wait until the server sees that the client has gone."""
    with anyio.fail_after(60):
        while not server.left:
            await anyio.to_thread.run_sync(server.reached.wait, 0.01)
            await anyio.lowlevel.checkpoint()


async def test_a_stream_that_is_closed_closes_the_connection() -> None:
    """Closing a stream closes its connection at once."""
    async with gemini() as (model, server):
        server.answers(BEGUN)
        items = model.stream(ASKED)
        assert await anext(items) == ModelDelta("text", "Once upon")
        await items.aclose()
        await gone(server)
        gc.collect()


async def test_a_stream_can_be_closed_in_another_task() -> None:
    """A stream may be closed in another task than the one that reads it."""
    async with gemini() as (model, server):
        server.answers(BEGUN)
        items = model.stream(ASKED)

        async def begin() -> None:
            assert await anext(items) == ModelDelta("text", "Once upon")

        for job in (begin, items.aclose):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(job)
        await gone(server)


async def test_a_cancelled_stream_closes_the_connection() -> None:
    """Cancelling a reader that waits for the next piece closes the connection."""
    async with gemini() as (model, server):
        server.answers(BEGUN)
        async with anyio.create_task_group() as tasks:

            async def consume() -> None:
                await read(model)

            tasks.start_soon(consume)
            await anyio.to_thread.run_sync(server.reached.wait)
            tasks.cancel_scope.cancel()
        await gone(server)
        gc.collect()


async def test_a_cancelled_answer_closes_the_connection() -> None:
    """Cancelling a call before its answer has arrived closes the connection."""
    async with gemini() as (model, server):
        server.answers(answer_sse(Hang()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model.generate, ASKED)
            await anyio.to_thread.run_sync(server.reached.wait)
            tasks.cancel_scope.cancel()
        await gone(server)


async def test_many_streams_at_a_time() -> None:
    """Each of several streams closes its own connection."""
    async with gemini() as (model, server):
        server.always(BEGUN)
        streams = [model.stream(ASKED) for _ in range(5)]
        for items in streams:
            assert await anext(items) == ModelDelta("text", "Once upon")
        for count, items in enumerate(streams, 1):
            await items.aclose()
            with anyio.fail_after(60):
                while server.left < count:
                    await anyio.lowlevel.checkpoint()
            assert server.left == count


async def test_connections_are_used_again() -> None:
    """Connections are used again after streams that were read to their ends."""
    ports: set[str] = set()
    async with gemini() as (model, server):
        server.always(streamed(piece(text("Hi."), finish="STOP")))
        for _ in range(3):
            await read(model)
        server.always(whole(text("Hi.")))
        await model.generate(ASKED)
        pool = vars(model)["_connections"].get()._http._transport._pool
        ports.update(str(connection) for connection in pool.connections)
    assert len(ports) == 1


def test_a_model_lives_through_several_event_loops() -> None:
    """A model works in several event loops, one after the other."""
    with vendor_server() as server:
        server.always(whole(text("Hi.")))
        model = GeminiModel(NAME, api_key=KEY, base_url=server.url)

        async def ask() -> str:
            with anyio.fail_after(60):
                response: ModelResponse = await model.generate(ASKED)
                await model.aclose()
                return response.message.text

        for backend in ("asyncio", "trio", "asyncio"):
            assert anyio.run(ask, backend=backend) == "Hi."


# --- in an agent ------------------------------------------------------------------------------------------------------


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def _script(server: VendorServer, *, stream: bool) -> None:
    asked = call("weather", {"city": "Bergen"}, thoughtSignature=SIGNATURE)
    if stream:
        server.answers(
            streamed(piece(thought("Hm.")), piece(asked, finish="STOP", usage=USAGE)),
            streamed(piece(text("It ")), piece(text("rains."), finish="STOP", usage=USAGE)),
        )
    else:
        server.answers(whole(thought("Hm."), asked), whole(text("It rains.")))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run(stream: bool) -> None:
    """The `chat` spans of a run follow the conventions, and a call is sent back with its signature."""
    async with gemini() as (model, server):
        _script(server, stream=stream)
        with capture() as telemetry:
            agent = Agent("support", model=model, tools=[weather], settings={"temperature": 0.5, "max_tokens": 99})
            if stream:
                async with agent.stream("Rain?") as events:
                    told = [each.content async for each in events if isinstance(each, InferenceDelta)]
                assert told == ["Hm.", "weather", "It ", "rains."]
                result = events.result
            else:
                result = await agent.run("Rain?")
        back = server.requests[1].json["contents"]
    assert result.output == "It rains."
    assert telemetry.tree() == [("invoke_agent support", [*iteration("weather", model=NAME), *iteration(model=NAME)])]
    first, second = (attributes(span) for span in telemetry.find("chat"))
    expected = {
        semconv.PROVIDER_NAME: "gcp.gemini",
        semconv.REQUEST_MODEL: NAME,
        semconv.RESPONSE_MODEL: f"{NAME}-2026-09",
        semconv.RESPONSE_ID: ID,
        semconv.RESPONSE_FINISH_REASONS: ("tool_call",),
        semconv.USAGE_INPUT_TOKENS: 120,
        semconv.USAGE_OUTPUT_TOKENS: 50,
        semconv.USAGE_CACHE_READ_INPUT_TOKENS: 100,
        semconv.USAGE_REASONING_OUTPUT_TOKENS: 30,
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: server.port,
    }
    assert {name: first.get(name) for name in expected} == expected
    assert second[semconv.RESPONSE_FINISH_REASONS] == ("stop",)
    assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in first) is stream
    assert {ending(span) for span in telemetry.find("chat")} == {COMPLETED}
    assert [part.keys() for part in back[1]["parts"]] == [{"functionCall", "thoughtSignature"}]
    assert back[1]["parts"][0]["functionCall"] == {"name": "weather", "args": {"city": "Bergen"}}
    assert back[2]["parts"][0]["functionResponse"] == {"name": "weather", "response": {"result": "rain in Bergen"}}


async def test_a_run_that_is_left_closes_the_connection() -> None:
    """Leaving a run closes the connection, and its `chat` span has the text until then."""
    async with gemini() as (model, server):
        server.answers(BEGUN)
        with capture() as telemetry:
            async with Agent("a", model=model).stream("x") as events:
                async for each in events:
                    if isinstance(each, InferenceDelta):
                        break
            await gone(server)
        span = telemetry.span("chat")
        assert attributes(span)[semconv.RESPONSE_FINISH_REASONS] == ("error",)
        assert "Once upon" in attributes(span)[semconv.OUTPUT_MESSAGES]


async def test_server_tools_are_recorded_and_never_dispatched() -> None:
    """Calls of server tools are recorded in the span and not dispatched."""
    code = {"executableCode": {"language": "PYTHON", "code": "print(42)"}}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42"}}
    async with gemini(server_tools=[{"code_execution": {}}]) as (model, server):
        server.answers(whole(code, result, text("42.")))
        with capture() as telemetry:
            answer = await Agent("a", model=model).run("6*7?")
    assert (answer.output, answer.iterations) == ("42.", 1)
    assert telemetry.find("execute_tool") == []
    assert "print(42)" in attributes(telemetry.span("chat"))[semconv.OUTPUT_MESSAGES]


async def test_output_of_a_type() -> None:
    """The schema of an output type is sent to the API, and the answer becomes its value."""
    async with gemini() as (model, server):
        server.answers(whole(text('{"result": [1, 2]}')))
        answer = await Agent("a", model=model, output=list[int]).run("Count.")
        schema = server.requests[0].json["generationConfig"]["responseJsonSchema"]
    assert answer.output == [1, 2]
    assert schema["required"] == ["result"]
