"""Errors of MCP servers over HTTP: lost sessions, connections that keep failing, and HTTP statuses."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from pellucid import Agent, DiscoveryContext, DiscoveryError, Reliability, ToolCall, ToolContext, ToolError, semconv
from pellucid.errors import DiscoveryBackoff
from pellucid.mcp import MCPProvider
from pellucid.reliability import Rule, retry
from pellucid.testing import ScriptedModel
from support.mcp_servers import LegacyHttp, serving
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

CTX = ToolContext()
STATUSES = {401: "auth", 403: "auth", 429: "rate_limited", 500: "unavailable", 503: "unavailable"}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


def error_body(code: int, message: str) -> dict[str, Any]:
    """Return a JSON-RPC error without an id, which the protocol does not allow."""
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}}


UNKNOWN: dict[str, Callable[[], Response]] = {
    "404": lambda: Response(status_code=404),
    "404-with-body": lambda: JSONResponse({**error_body(-32001, "Session not found"), "id": None}, 404),
    "server-everything": lambda: JSONResponse(error_body(-32000, "Bad Request: No valid session ID provided"), 400),
    "typescript-sdk": lambda: JSONResponse({**error_body(-32000, "Bad Request: No session ID"), "id": None}, 400),
    "text": lambda: PlainTextResponse("Invalid session ID", 400),
    "uninitialized": lambda: JSONResponse(error_body(-32000, "Bad Request: Server not initialized"), 400),
    "gone": lambda: Response(status_code=410),
}


@asynccontextmanager
async def legacy(server: LegacyHttp) -> AsyncIterator[MCPProvider]:
    """Serve a server and connect to it."""
    with serving(lambda: server.app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="old") as provider:
            yield provider


@contextmanager
def refusing(server: LegacyHttp, answer: Callable[[dict[str, Any]], Response], *methods: str) -> Iterator[None]:
    """Let a server refuse requests while the context lasts."""
    server.refusals = dict.fromkeys(methods, answer)
    yield
    server.refusals = {}


async def list_when_awake(provider: MCPProvider) -> Any:
    """List the tools, waiting as long as the provider leaves its server alone."""
    while True:
        try:
            return await provider.list_tools(DiscoveryContext())
        except DiscoveryBackoff as backoff:
            await anyio.sleep(backoff.retry_after)


@pytest.mark.parametrize("answer", UNKNOWN.values(), ids=list(UNKNOWN))
async def test_a_forgotten_session_is_opened_again_and_the_request_repeated(answer: Callable[[], Response]) -> None:
    """Any refusal that says that the session is unknown leads to a new one, for calls and for listings."""
    server = LegacyHttp()
    server.unknown = answer
    async with legacy(server) as provider:
        [count] = await provider.list_tools(DiscoveryContext())
        assert await count.run({}, CTX) == "1"
        server.sessions.clear()
        assert await count.run({}, CTX) == "2"
        server.sessions.clear()
        assert len(await provider.list_tools(DiscoveryContext())) == 1
        assert server.opened == 3


async def test_a_session_that_an_error_calls_unknown_is_opened_again_for_the_next_request() -> None:
    """A request that was answered with status 200 is not repeated, because the server may have processed it."""
    server = LegacyHttp()
    async with legacy(server) as provider:
        [count] = await provider.list_tools(DiscoveryContext())
        error = error_body(-32001, "Session not found")
        with (
            refusing(server, lambda message: JSONResponse({**error, "id": message["id"]}), "tools/call"),
            pytest.raises(ToolError, match="-32001"),
        ):
            await count.run({}, CTX)
        assert await count.run({}, CTX) == "1"
        assert server.opened == 2


async def test_a_connection_whose_requests_keep_failing_is_replaced() -> None:
    """Whatever the server answers, listings lead to a new session after three failures."""
    server = LegacyHttp()
    async with legacy(server) as provider:
        with refusing(server, lambda _message: PlainTextResponse("no", 400), "tools/list"):
            for _ in range(3):
                with pytest.raises(DiscoveryError, match="HTTP status 400"):
                    await list_when_awake(provider)
            assert server.opened == 1
        assert await list_when_awake(provider)
        assert server.opened == 2


async def test_invalid_requests_do_not_cost_the_session() -> None:
    """Errors that JSON-RPC defines for unknown methods and wrong parameters keep the session, whatever they mention."""
    server = LegacyHttp()
    async with legacy(server) as provider:
        [count] = await provider.list_tools(DiscoveryContext())
        answer = {**error_body(-32602, "Unknown session"), "id": None}
        with refusing(server, lambda _message: JSONResponse(answer, 400), "tools/call"):
            for _ in range(2):
                with pytest.raises(ToolError, match="-32602"):
                    await count.run({}, CTX)
        assert await count.run({}, CTX) == "1"
        assert server.opened == 1


@pytest.mark.parametrize("status", STATUSES)
async def test_an_http_status_of_a_listing_arrives_everywhere(telemetry: Captured, status: int) -> None:
    """Error, span, metric and rule have the status, what it means, and when to ask again."""
    server = LegacyHttp()
    seen: list[Any] = []
    rules = Reliability([Rule(when=seen.append, then=retry(), kind="look")])
    async with legacy(server) as provider:
        agent = Agent("a", model=ScriptedModel("hi"), providers=[provider], reliability=rules)
        with (
            refusing(server, lambda _message: Response(status_code=status, headers={"Retry-After": "7"}), "tools/list"),
            pytest.raises(DiscoveryError, match=f"HTTP status {status}") as failed,
        ):
            await within(agent.run("hi"), 30)
    error, [situation] = failed.value, seen
    assert (error.error_type, error.status, error.retry_after) == (str(status), status, 7)
    assert (situation.error_kind, situation.error.retry_after) == (STATUSES[status], 7)
    found = attributes(telemetry.span("discover_tools old"))
    assert (found[semconv.ERROR_TYPE], found[semconv.HTTP_RESPONSE_STATUS_CODE]) == (str(status), status)
    assert found[semconv.HTTP_RETRY_AFTER] == ("7",)
    assert semconv.RPC_RESPONSE_STATUS_CODE not in found
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, error_type=str(status)).count == 1


@pytest.mark.parametrize("body", [None, error_body(-32603, "busy")], ids=["plain", "json-rpc"])
async def test_an_http_status_of_a_call_arrives_everywhere(telemetry: Captured, body: Any) -> None:
    """A status that says more than that the request is wrong is `error.type`, whatever the JSON-RPC code beside it."""
    server = LegacyHttp()
    seen: list[Any] = []
    rules = Reliability([Rule(when=seen.append, then=retry(), kind="look")])
    async with legacy(server) as provider:
        model = ScriptedModel(ToolCall("count", {}), "hi")
        agent = Agent("a", model=model, providers=[provider], reliability=rules)
        headers = {"Retry-After": "7"}
        with refusing(server, lambda _message: JSONResponse(body, 429, headers), "tools/call"):
            await within(agent.run("hi"), 30)
    [situation] = [each for each in seen if each.operation == "tool"]
    error = situation.error
    assert (error.error_type, error.status, error.retry_after) == ("429", 429, 7)
    assert situation.error_kind == "rate_limited"
    found = attributes(telemetry.span("execute_tool count"))
    assert (found[semconv.ERROR_TYPE], found[semconv.HTTP_RESPONSE_STATUS_CODE]) == ("429", 429)
    assert found.get(semconv.RPC_RESPONSE_STATUS_CODE) == (None if body is None else "-32603")
    assert telemetry.histogram(semconv.TOOL_DURATION, error_type="429").count == 1


async def test_a_refused_connection_says_what_it_means() -> None:
    """A status at the first request is known to rules as that of a later one is; so is a server that is away."""
    server = LegacyHttp()
    with serving(lambda: server.app) as port, anyio.fail_after(60):
        provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="old")
        answer = Response(status_code=503, headers={"Retry-After": "0.01"})
        with (
            refusing(server, lambda _message: answer, "initialize", "server/discover"),
            pytest.raises(DiscoveryError, match="HTTP status 503") as refused,
        ):
            await provider.list_tools(DiscoveryContext())
        assert await list_when_awake(provider)
        await provider.aclose()
    away = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="old")
    with anyio.fail_after(60), pytest.raises(DiscoveryError, match="ConnectError") as absent:
        await away.list_tools(DiscoveryContext())
    error = refused.value
    assert (error.error_type, error.error_kind, error.status, error.retry_after) == ("503", "unavailable", 503, 0.01)
    assert (absent.value.error_kind, absent.value.status) == ("unavailable", None)


async def test_a_rule_waits_as_long_as_the_server_says() -> None:
    """The documented rule for rate limits works for MCP: the second attempt is made after `Retry-After`."""
    server = LegacyHttp()
    rule = Rule(when=lambda s: s.error_kind == "rate_limited" and s.attempt < 5, then=retry(), kind="rate-limit")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        server.refusals = {}
        await anyio.sleep(seconds)

    async with legacy(server) as provider:
        agent = Agent(
            "a", model=ScriptedModel("hi"), providers=[provider], reliability=Reliability([rule], sleep=sleep)
        )
        server.refusals["tools/list"] = lambda _message: Response(status_code=429, headers={"Retry-After": "0.1"})
        assert (await within(agent.run("hi"), 30)).output == "hi"
    assert waits == [0.1]
