"""Limits of what models send, and redirects to other servers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Message, ModelError, ModelRequest, semconv
from pellucid.models.anthropic import AnthropicModel
from pellucid.models.gemini import GeminiModel
from pellucid.models.openai import OpenAIModel
from support.bombs import MIB, bomb, compressed
from support.openai_wire import ask, chunks, completion, sse
from support.runs import attributes
from support.vendor_server import Answer, vendor_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid.models import Model
    from pellucid_exporters.testing import Captured
    from support.vendor_server import Chunk, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

KEY = "key-of-a-test-0123456789"
ASKED = ModelRequest(messages=[Message("user", "hi")])
VENDORS = ["openai", "openai-chat", "anthropic", "gemini"]
PADDING = b": " + b"x" * MIB + b"\n\n"


@asynccontextmanager
async def asked(vendor: str) -> AsyncIterator[tuple[Any, VendorServer]]:
    """Run a server, and a model of this vendor that asks it."""
    with anyio.fail_after(120), vendor_server() as server:
        model: Any
        match vendor:
            case "anthropic":
                model = AnthropicModel("m", api_key=KEY, base_url=server.url)
            case "gemini":
                model = GeminiModel("m", api_key=KEY, base_url=server.url)
            case _:
                api: Any = "chat" if vendor == "openai-chat" else "responses"
                model = OpenAIModel("m", api=api, api_key=KEY, base_url=server.url)
        try:
            yield model, server
        finally:
            await model.aclose()


async def failed(model: Model, *, stream: bool = False) -> ModelError:
    """Return the error of a call."""
    with pytest.raises(ModelError) as caught:
        await ask(model, ASKED, stream=stream)
    return caught.value


async def stream_to_end(agent: Agent) -> None:
    """Read all events of a run."""
    async with agent.stream("hi") as events:
        async for _ in events:
            pass


def packed(kind: str, *body: Chunk) -> Answer:
    """Return a compressed answer."""
    return Answer(headers={"content-type": kind, "content-encoding": "gzip"}, body=body)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_that_is_too_large_fails(vendor: str) -> None:
    """The error has a type of its own, the limit and the remedy; it is counted while it is decompressed."""
    async with asked(vendor) as (model, server):
        server.answers(packed("application/json", bomb(40)))
        error = await failed(model)
    assert (error.error_type, error.error_kind) == ("response_too_large", "invalid_response")
    assert "the answer has more than 33554432 bytes" in str(error)
    assert "max_tokens" in str(error)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_event_that_is_too_large_fails(vendor: str) -> None:
    """No event of a stream may be larger than a whole answer."""
    async with asked(vendor) as (model, server):
        server.answers(packed("text/event-stream", bomb(40, start=b'data: {"a": "')))
        error = await failed(model, stream=True)
    assert error.error_type == "response_too_large"
    assert "an event of the streamed answer has more than 33554432 bytes" in str(error)


async def test_a_stream_that_never_ends_fails(telemetry: Captured) -> None:
    """However small its events are; the span of the request has the type of the error."""
    async with asked("openai-chat") as (model, server):
        server.answers(packed("text/event-stream", compressed(PADDING * 130)))
        with pytest.raises(ModelError, match=r"the streamed answer has more than 134217728 bytes"):
            await stream_to_end(Agent("a", model=model))
    [span] = [span for span in telemetry.spans if span.name.startswith("chat")]
    assert attributes(span)[semconv.ERROR_TYPE] == "response_too_large"


async def test_a_compressed_answer_arrives() -> None:
    """Complete, or as a stream of events that are larger than an answer together."""
    said = completion({"content": "Hello."})
    async with asked("openai-chat") as (model, server):
        server.answers(packed("text/event-stream", compressed(PADDING * 40 + sse(*chunks(said)))))
        items = [item async for item in model.stream(ASKED)]
    assert items[-1].message.text == "Hello."
    assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("vendor", VENDORS)
async def test_another_encoding_is_refused(vendor: str) -> None:
    """It could not be counted while it is decompressed."""
    async with asked(vendor) as (model, server):
        server.answers(Answer(headers={"content-type": "application/json", "content-encoding": "zstd"}, body=[b"x"]))
        error = await failed(model)
    assert error.error_type == "unknown_encoding"
    assert "content-encoding 'zstd'" in str(error)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_redirect_to_another_host_is_refused(vendor: str, stream: bool) -> None:
    """The other server would get the conversation. The error names both, without what may be secret."""
    async with asked(vendor) as (model, server):
        with vendor_server() as other:
            location = f"http://user:word@localhost:{other.port}/v1?token=secret"
            server.answers(Answer(status=307, headers={"location": location}))
            error = await failed(model, stream=stream)
            assert other.requests == []
    assert (error.error_type, error.error_kind, error.status) == ("redirect_refused", "invalid_response", 307)
    assert f"http://127.0.0.1:{server.port} redirects to http://localhost:{other.port}," in str(error)
    assert "secret" not in str(error)
    assert "word" not in str(error)


async def test_a_redirect_within_the_server_is_followed() -> None:
    """Such as one that adds a slash."""
    async with asked("openai-chat") as (model, server):
        answer = Answer(headers={"content-type": "application/json"}, body=[b"{}"])
        server.answers(Answer(status=308, headers={"location": "/v2/chat/completions?a=b"}), answer)
        await failed(model)
    assert [request.path for request in server.requests] == ["/chat/completions", "/v2/chat/completions?a=b"]
