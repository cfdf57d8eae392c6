"""Telemetry of MCP requests: their facts on our own spans, and the caller's context in each request."""

from __future__ import annotations

import gc
import json
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import MCPError
from mcp_types import ListToolsResult
from opentelemetry import context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, format_span_id

from pellucid import Agent, DiscoveryError, TelemetryOptions, ToolCall, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.mcp_servers import Desk, LegacyHttp, listing_server, modern_server, serving
from support.processes import python
from support.runs import attributes, span_id, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid import RunResult
    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_servers.py")
MODERN, LEGACY = "2026-07-28", "2025-11-25"
WAYS = ["memory", "stdio", "http"]
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {
    "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    "tracestate": "vendor=opaque,other=1",
    "baggage": "tenant=acme",
}
OF_REQUESTS = ("mcp.", "network.", "server.", "rpc.", "jsonrpc.")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


@asynccontextmanager
async def reaching(way: str, **options: Any) -> AsyncIterator[MCPProvider]:
    """Reach one and the same server in different ways."""
    with anyio.fail_after(60):
        if way == "memory":
            async with MCPProvider.connect(modern_server(), id="hub", **options) as provider:
                yield provider
        elif way == "stdio":
            async with MCPProvider.stdio(*python(SCRIPT, "modern"), id="hub", **options) as provider:
                yield provider
        else:
            with serving(modern_server().streamable_http_app) as port:
                async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub", **options) as provider:
                    yield provider


@contextmanager
def calling(carrier: dict[str, str]) -> Iterator[None]:
    """Be in the context of a request that came in."""
    attached = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(attached)


@pytest.fixture
def traced_mcp(telemetry: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the MCP SDK trace to where we do, as it does with a global tracer provider."""
    tracer = telemetry.tracer_provider.get_tracer("mcp-python-sdk")
    monkeypatch.setattr("mcp.shared._otel._tracer", tracer)


async def call(provider: MCPProvider, tool: str, telemetry: Any = None) -> RunResult:
    """Let an agent call one tool of the server."""
    model = ScriptedModel(ToolCall(tool, {}), "done")
    return await within(Agent("a", model=model, providers=[provider], telemetry=telemetry).run("go"), 20)


def answered(result: RunResult) -> Any:
    """Return what the server's tool answered, as data."""
    [part] = result.messages[2].parts
    response: Any = part.to_dict()["response"]
    return response


def of_request(span: ReadableSpan) -> dict[str, Any]:
    """Return what a span says of the request that was sent."""
    return {name: value for name, value in attributes(span).items() if name.startswith(OF_REQUESTS)}


def parent_id(span: ReadableSpan) -> str:
    """Return the id of the span above in hexadecimal."""
    assert span.parent is not None
    return format_span_id(span.parent.span_id)


def expected(way: str, method: str, provider: MCPProvider) -> dict[str, Any]:
    """Return what the conventions want to be known of a request, for each way to a server of this year's protocol."""
    common: dict[str, Any] = {"mcp.method.name": method, "mcp.protocol.version": MODERN}
    match way:
        case "memory":
            return common
        case "stdio":
            return {**common, "network.transport": "pipe"}
    return {
        **common,
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": provider.server_port,
    }


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_span_tells_of_its_request(telemetry: Captured, way: str) -> None:
    """`execute_tool` has method, versions, transport, address and id of its request, as the conventions type them."""
    async with reaching(way) as provider:
        await call(provider, "pid")
        found = of_request(telemetry.span("execute_tool pid"))
        request_id = found.pop(semconv.JSONRPC_REQUEST_ID, None)
        assert found == expected(way, "tools/call", provider)
        assert type(found.get(semconv.SERVER_PORT, 0)) is int
    if way == "memory":
        assert request_id is None
    else:
        assert int(request_id) > 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_discovery_tells_of_its_round_trip(telemetry: Captured, way: str) -> None:
    """`discover_tools` has the facts of its request if it asked the server, and not if the cache answered."""
    async with reaching(way, ttl=600) as provider:
        await call(provider, "pid")
        first, second = telemetry.find("discover_tools hub")
        assert attributes(first)[semconv.DISCOVERY_CACHE] == "miss"
        found = of_request(first)
        request_id = found.pop(semconv.JSONRPC_REQUEST_ID, None)
        assert found == expected(way, "tools/list", provider)
        assert (request_id is None) == (way == "memory")
        assert attributes(second)[semconv.DISCOVERY_CACHE] == "hit"
        assert {name for name in of_request(second) if not name.startswith("server.")} == set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("tool", "error_type", "code"), [("fail", "tool_error", None), ("refuse", "-32042", "-32042")])
async def test_an_error_has_the_type_that_the_conventions_give_it(
    telemetry: Captured, way: str, tool: str, error_type: str, code: str | None
) -> None:
    """A result with `isError` has the type `tool_error`, and an error of JSON-RPC its code, as the conventions say."""
    async with reaching(way) as provider:
        await call(provider, tool)
    span = telemetry.span(f"execute_tool {tool}")
    assert attributes(span)[semconv.ERROR_TYPE] == error_type
    assert span.status.status_code.name == "ERROR"
    assert attributes(span).get(semconv.RPC_RESPONSE_STATUS_CODE) == code
    assert telemetry.histogram(semconv.TOOL_DURATION, error_type=error_type).count == 1


LABELS_OF_SESSIONS = ("mcp.protocol.version", "network.", "server.")


@pytest.mark.parametrize("way", WAYS)
async def test_requests_and_sessions_are_measured(telemetry: Captured, way: str) -> None:
    """Requests and sessions are in the histograms of the conventions, with their attributes and `error.type`."""
    async with reaching(way, ttl=600) as provider:
        for name in ("pid", "refuse", "fail"):
            await call(provider, name)
        labels = expected(way, "tools/list", provider)
    assert telemetry.histogram(semconv.MCP_OPERATION_DURATION, mcp_method_name="tools/list").attributes == labels
    labels |= {semconv.MCP_METHOD_NAME: "tools/call", semconv.OPERATION_NAME: semconv.EXECUTE_TOOL}
    for name, error in {
        "pid": {},
        "fail": {semconv.ERROR_TYPE: "tool_error"},
        "refuse": {semconv.ERROR_TYPE: "-32042", semconv.RPC_RESPONSE_STATUS_CODE: "-32042"},
    }.items():
        point = telemetry.histogram(semconv.MCP_OPERATION_DURATION, gen_ai_tool_name=name)
        assert (point.count, point.attributes) == (1, {**labels, semconv.TOOL_NAME: name, **error})
        assert point.exemplars[0].span_id == span_id(telemetry.span(f"execute_tool {name}"))
    session = telemetry.histogram(semconv.MCP_SESSION_DURATION)
    of_session = {name: value for name, value in labels.items() if name.startswith(LABELS_OF_SESSIONS)}
    assert (session.count, session.attributes) == (1, of_session)


async def test_lost_sessions_and_cancelled_requests_are_measured_as_such(telemetry: Captured) -> None:
    """A session that ends by itself has an `error.type`, as has a request that nobody waits for any longer."""
    server, desk = LegacyHttp(), Desk()
    with serving(lambda: server.app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="old") as provider:
            await call(provider, "count")
            server.sessions.clear()
            await call(provider, "count")
        async with MCPProvider.connect(modern_server(desk), id="hub") as provider, anyio.create_task_group() as tasks:
            tasks.start_soon(call, provider, "slow")
            await desk.started.wait()
            tasks.cancel_scope.cancel()
    for metric in (semconv.MCP_SESSION_DURATION, semconv.MCP_OPERATION_DURATION):
        assert telemetry.histogram(metric, error_type="session_unknown").count == 1
    assert telemetry.histogram(semconv.MCP_OPERATION_DURATION, error_type="cancelled").count == 1


async def test_a_server_that_refuses_to_list_gives_the_discovery_its_code(telemetry: Captured) -> None:
    """An error of JSON-RPC is `error.type` and status code of the `discover_tools` span."""

    def refuse(cursor: str | None) -> ListToolsResult:
        raise MCPError(code=-32050, message="come back tomorrow")

    with anyio.fail_after(60):
        async with MCPProvider.connect(listing_server(refuse), id="hub") as provider:
            with pytest.raises(DiscoveryError, match="come back tomorrow"):
                await call(provider, "pid")
    found = attributes(telemetry.span("discover_tools hub"))
    assert (found[semconv.ERROR_TYPE], found[semconv.RPC_RESPONSE_STATUS_CODE]) == ("-32050", "-32050")
    assert found[semconv.MCP_METHOD_NAME] == "tools/list"


async def test_a_session_has_its_id_on_the_spans(telemetry: Captured) -> None:
    """Spans have the session's id over HTTP with protocols before 2026-07-28; a new session has a new one."""
    server = LegacyHttp()
    with serving(lambda: server.app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="old") as provider:
            await call(provider, "count")
            server.sessions.clear()
            await call(provider, "count")
    ids = [attributes(span)[semconv.MCP_SESSION_ID] for span in telemetry.find("execute_tool count")]
    assert ids == ["1", "2"]
    assert {attributes(span)[semconv.MCP_PROTOCOL_VERSION] for span in telemetry.find("execute_tool")} == {LEGACY}
    assert attributes(telemetry.find("discover_tools old")[0])[semconv.MCP_SESSION_ID] == "1"


async def test_where_there_are_no_sessions_no_id_is_shown(telemetry: Captured) -> None:
    """Spans have no session id since protocol 2026-07-28, even if a server sends the header."""

    def make_app() -> Any:
        app = modern_server().streamable_http_app()

        async def with_header(scope: Any, receive: Any, send: Any) -> None:
            async def send_more(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], (b"mcp-session-id", b"left-over")]}
                await send(message)

            await app(scope, receive, send_more)

        return with_header

    with serving(make_app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="hub") as provider:
            await call(provider, "pid")
    for span in (telemetry.span("execute_tool pid"), telemetry.find("discover_tools hub")[0]):
        assert attributes(span)[semconv.MCP_PROTOCOL_VERSION] == MODERN
        assert semconv.MCP_SESSION_ID not in attributes(span)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("traced_mcp")
async def test_one_span_counts_as_the_call(telemetry: Captured, way: str) -> None:
    """The MCP SDK's client span is a child without `gen_ai.*`; a traced server's own is below it, of kind SERVER."""
    async with reaching(way) as provider:
        await call(provider, "pid")
    ours = telemetry.span("execute_tool pid")
    counted = [span for span in telemetry.spans if attributes(span).get("gen_ai.operation.name") == "execute_tool"]
    assert [span for span in counted if span.kind is not SpanKind.SERVER] == [ours]
    assert telemetry.histogram(semconv.TOOL_DURATION).count == 1
    above = ours
    if way != "memory":
        above = telemetry.span("MCP send tools/call pid")
        assert above.kind is SpanKind.CLIENT
        assert not any(name.startswith("gen_ai.") for name in attributes(above))
        assert parent_id(above) == span_id(ours)
        request_id = attributes(ours)[semconv.JSONRPC_REQUEST_ID]
        assert attributes(above)[semconv.JSONRPC_REQUEST_ID] == request_id
    for served in telemetry.find("tools/call pid"):
        assert served.kind is SpanKind.SERVER
        assert parent_id(served) == span_id(above)
    assert len(telemetry.find("tools/call pid")) == (0 if way == "stdio" else 1)


@pytest.mark.parametrize("way", WAYS)
async def test_the_server_is_told_the_caller_s_context(telemetry: Captured, way: str) -> None:
    """`params._meta` has the `execute_tool` span as `traceparent`, and the caller's `tracestate` and baggage."""
    with calling(CALLER):
        async with reaching(way) as provider:
            result = await call(provider, "carried")
    ours = telemetry.span("execute_tool carried")
    assert answered(result) == {**CALLER, "traceparent": f"00-{TRACE}-{span_id(ours)}-01"}


async def test_a_process_of_the_protocol_before_is_told_the_same(telemetry: Captured, tmp_path: Path) -> None:
    """A process of the protocol before gets the caller's context in listings and calls."""
    log = tmp_path / "log"
    with calling(CALLER), anyio.fail_after(60):
        provider = MCPProvider.stdio(*python(SCRIPT, "legacy"), id="old", env={"PELLUCID_TEST_LOG": str(log)}, ttl=600)
        async with provider:
            await call(provider, "echo")
    messages = [json.loads(line) for line in log.read_text().splitlines()]
    for method, name in (("tools/list", "discover_tools old"), ("tools/call", "execute_tool echo")):
        [params] = [message["params"] for message in messages if message["method"] == method]
        found = {key: params["_meta"][key] for key in CALLER}
        assert found == {**CALLER, "traceparent": f"00-{TRACE}-{span_id(telemetry.find(name)[0])}-01"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("traced_mcp")
async def test_callers_on_one_connection_each_have_their_own_context(telemetry: Captured, way: str) -> None:
    """Each of eight concurrent callers on one connection has its own trace and baggage at the server."""
    seen: dict[int, Any] = {}

    async def caller(number: int) -> None:
        carrier = {"traceparent": f"00-{number:032x}-{number:016x}-01", "baggage": f"caller={number}"}
        with calling(carrier):
            seen[number] = answered(await call(provider, "carried"))

    async with reaching(way, ttl=600) as provider, anyio.create_task_group() as tasks:
        for number in range(101, 109):
            tasks.start_soon(caller, number)
    below = {span_id(span): span for span in telemetry.spans}
    for number, carried in seen.items():
        _, trace_id, parent, _ = carried["traceparent"].split("-")
        assert (int(trace_id, 16), carried["baggage"]) == (number, f"caller={number}")
        assert below[parent].name in ("execute_tool carried", "MCP send tools/call carried")
    assert len(seen) == 8
    assert {span.context.trace_id for span in telemetry.find("execute_tool carried")} == set(seen)


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_not_traced_here_is_passed_on_unchanged(way: str) -> None:
    """The server gets the caller's context unchanged if nothing is traced here."""
    silent = TelemetryOptions(tracer_provider=NoOpTracerProvider())
    with calling(CALLER):
        async with reaching(way) as provider:
            assert answered(await call(provider, "carried", silent)) == CALLER


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_sampled_out_stays_so_at_the_server(way: str) -> None:
    """The server gets a trace that is not sampled as such, with `tracestate` and baggage."""
    sampled_out = TelemetryOptions(tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    with calling(CALLER):
        async with reaching(way) as provider:
            carried = answered(await call(provider, "carried", sampled_out))
    _, trace_id, _, flags = carried["traceparent"].split("-")
    assert (trace_id, flags) == (TRACE, "00")
    assert (carried["tracestate"], carried["baggage"]) == (CALLER["tracestate"], CALLER["baggage"])
