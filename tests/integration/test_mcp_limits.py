"""Limits of what MCP servers send over HTTP."""

from __future__ import annotations

import gc
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from starlette.responses import Response

from pellucid import Agent, ConfigError, DiscoveryContext, DiscoveryError, ToolCall, ToolResult, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.bombs import bomb, compressed, name_of
from support.mcp_servers import OBJECT, LegacyHttp, serving
from support.runs import attributes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

LIMIT = 50_000
TOOLS = {"tools": [{"name": "count", "description": "x" * 60_000, "inputSchema": OBJECT}]}
RESULT = {"content": [{"type": "text", "text": "y" * 60_000}]}
ENCODINGS = ["identity", "gzip", "deflate", "raw deflate"]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


@asynccontextmanager
async def connected(server: LegacyHttp, **options: Any) -> AsyncIterator[MCPProvider]:
    """Serve a server and connect to it."""
    with serving(lambda: server.app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub", **options) as provider:
            yield provider


def answering(result: dict[str, Any], encoding: str = "identity", *, events: bool = False) -> Callable[..., Response]:
    """Return what answers a request with this result, compressed, as JSON or as an event."""

    def answer(message: dict[str, Any]) -> Response:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        if events:
            body = b": a comment\r\n\r\nevent: message\r\ndata: " + body + b"\r\n\r\n"
        kind = "text/event-stream" if events else "application/json"
        headers = {} if encoding == "identity" else {"content-encoding": name_of(encoding)}
        return Response(compressed(body, encoding), media_type=kind, headers=headers)

    return answer


async def result_of(provider: MCPProvider, *tools: str) -> list[ToolResult]:
    """Return the results of these calls in one run."""
    model = ScriptedModel(*[ToolCall(tool, {}) for tool in tools], "done")
    result = await Agent("a", model=model, providers=[provider]).run("x")
    return [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]


@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_listing_that_is_too_large_fails(telemetry: Captured, encoding: str, events: bool) -> None:
    """A listing that is too large raises an error with the size, the limit and the remedy; the session goes on."""
    server = LegacyHttp()
    server.refusals["tools/list"] = answering(TOOLS, encoding, events=events)
    async with connected(server, max_listing_bytes=LIMIT) as provider:
        agent = Agent("a", model=ScriptedModel("done"), providers=[provider])
        with pytest.raises(DiscoveryError, match=r"tools/list has more than 50000 bytes \(\d+ so far\)") as failed:
            await agent.run("x")
        assert "raise max_listing_bytes" in str(failed.value)
        assert (failed.value.error_type, failed.value.error_kind) == ("response_too_large", "invalid_response")
        assert server.opened == 1
    [span] = [span for span in telemetry.spans if span.name.startswith("discover_tools")]
    assert attributes(span)[semconv.ERROR_TYPE] == "response_too_large"


@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_what_is_below_the_limits_arrives(encoding: str, events: bool) -> None:
    """Answers below the limits arrive, compressed or not, as JSON or as events."""
    server = LegacyHttp()
    server.refusals["tools/list"] = answering(TOOLS, encoding, events=events)
    server.refusals["tools/call"] = answering(RESULT, encoding, events=events)
    async with connected(server, max_listing_bytes=70_000, max_result_bytes=70_000) as provider:
        [result] = await result_of(provider, "count")
    assert not result.is_error
    assert "y" * 60_000 in str(result.response)


async def test_all_pages_of_a_listing_share_the_limit() -> None:
    """All pages of a listing share one limit, so that a server cannot send pages without end."""
    server = LegacyHttp()
    pages = iter(range(1000))

    def answer(message: dict[str, Any]) -> Response:
        tool = {"name": "t", "description": "x" * 20_000, "inputSchema": OBJECT}
        return answering({"tools": [tool], "nextCursor": str(next(pages))})(message)

    server.refusals["tools/list"] = answer
    async with connected(server, max_listing_bytes=LIMIT) as provider:
        with pytest.raises(DiscoveryError, match=r"more than 50000 bytes"):
            await provider.list_tools(DiscoveryContext())
    assert next(pages) == 3


@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_result_that_is_too_large_fails_its_call(telemetry: Captured, encoding: str, events: bool) -> None:
    """A result that is too large fails its call, the model is told, and the next call works."""
    server = LegacyHttp()
    large = answering(RESULT, encoding, events=events)

    def answer(message: dict[str, Any]) -> Response:
        del server.refusals["tools/call"]
        return large(message)

    server.refusals["tools/call"] = answer
    async with connected(server, max_result_bytes=LIMIT) as provider:
        first, second = await result_of(provider, "count", "count")
    assert first.is_error
    assert "tools/call has more than 50000 bytes" in str(first.response)
    assert not second.is_error
    assert server.opened == 1
    spans = [span for span in telemetry.spans if span.name == "execute_tool count"]
    assert [attributes(span).get(semconv.ERROR_TYPE) for span in spans] == ["response_too_large", None]


async def test_each_event_of_a_stream_has_the_limit() -> None:
    """The limit is for each event of a stream, not for the stream as a whole."""
    server = LegacyHttp()
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "z" * 1000}}

    def answer(message: dict[str, Any]) -> Response:
        result = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "ok"}]}}
        events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in [*[note] * 200, result])
        return Response(events, media_type="text/event-stream")

    server.refusals["tools/call"] = answer
    async with connected(server, max_result_bytes=LIMIT) as provider:
        [result] = await result_of(provider, "count")
    assert not result.is_error


async def test_a_greeting_that_is_too_large_fails_the_connection() -> None:
    """A greeting above the limit of a result fails the connection."""
    server = LegacyHttp()
    server.refusals["initialize"] = answering({"protocolVersion": "x" * 60_000})
    with pytest.raises(DiscoveryError, match=r"cannot connect.* more than 50000 bytes") as failed:
        async with connected(server, max_result_bytes=LIMIT):
            pass
    assert failed.value.error_type == "response_too_large"


async def test_an_error_page_that_is_too_large_is_the_status() -> None:
    """An error page above the limit fails with its status."""
    server = LegacyHttp()
    body = b'"' + b"x" * 60_000 + b'"'
    server.refusals["tools/list"] = lambda _: Response(body, status_code=503, media_type="application/json")
    async with connected(server, max_listing_bytes=LIMIT) as provider:
        with pytest.raises(DiscoveryError) as failed:
            await provider.list_tools(DiscoveryContext())
    assert failed.value.status == 503
    assert failed.value.error_type == "503"


async def test_another_encoding_is_refused() -> None:
    """An answer with an encoding that was not asked for is refused."""
    server = LegacyHttp()
    headers = {"content-encoding": "br"}
    server.refusals["tools/list"] = lambda _: Response(b"x", media_type="application/json", headers=headers)
    async with connected(server) as provider:
        with pytest.raises(DiscoveryError, match=r"content-encoding 'br'") as failed:
            await provider.list_tools(DiscoveryContext())
    assert failed.value.error_type == "unknown_encoding"


async def test_a_compressed_answer_that_is_cut_is_no_answer() -> None:
    """A compressed answer that is cut is an error, and not taken for the whole."""
    server = LegacyHttp()
    headers = {"content-encoding": "gzip"}
    half = compressed(json.dumps({"jsonrpc": "2.0"}).encode())[:-12]
    server.refusals["tools/list"] = lambda _: Response(half, media_type="application/json", headers=headers)
    async with connected(server) as provider:
        with pytest.raises(DiscoveryError):
            await provider.list_tools(DiscoveryContext())


@pytest.mark.parametrize("option", ["max_listing_bytes", "max_result_bytes"])
def test_a_limit_must_be_positive(option: str) -> None:
    """A limit that is not positive is refused."""
    options: Any = {option: 0}
    with pytest.raises(ConfigError, match=rf"{option}=0 must be a positive number of bytes"):
        MCPProvider.http("http://127.0.0.1:1/mcp", id="hub", **options)


async def test_other_tasks_run_while_a_bomb_is_decompressed() -> None:
    """Other tasks run while a large answer is decompressed, which stops at the limit."""
    server = LegacyHttp()
    headers = {"content-encoding": "gzip"}
    packed = bomb(64)
    server.refusals["tools/list"] = lambda _: Response(packed, media_type="application/json", headers=headers)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with connected(server, max_listing_bytes=2**24) as provider, anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        with pytest.raises(DiscoveryError, match=r"more than 16777216 bytes"):
            await provider.list_tools(DiscoveryContext())
        tasks.cancel_scope.cancel()
    assert turns > 100
