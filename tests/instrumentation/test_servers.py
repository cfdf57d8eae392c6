"""An instrumented MCP server shows its requests, sessions and what is in flight, in the traces of its callers."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx
import pytest
from mcp import Client, ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types import CallToolResult, ListToolsResult, TextContent
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from pellucid import Agent, ToolCall, semconv
from pellucid.errors import ConfigError
from pellucid.mcp import MCPProvider
from pellucid.semconv import servers
from pellucid.telemetry import CapturePolicy
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from pellucid_instrumentation import instrument_server, uninstrument_server
from pellucid_instrumentation.servers import modern
from support.mcp_servers import Desk, listing_server, modern_server, serving, tool_of
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pellucid_exporters.testing import Captured, Point

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    pytest.mark.usefixtures("quiet_opentelemetry"),
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

CALLER: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
META: Final[Any] = {"traceparent": CALLER}
DURATION: Final = servers.SERVER_OPERATION_DURATION


@pytest.fixture(autouse=True)
def _collected() -> None:
    """Collect the servers of other tests, which are part of cycles."""
    gc.collect()


def calls_of(telemetry: Captured, tool: str, **labels: Any) -> Point:
    """Return the measurements of calls of a tool."""
    return telemetry.histogram(DURATION, mcp_method_name="tools/call", gen_ai_tool_name=tool, **labels)


def inflight(telemetry: Captured) -> float:
    """Return the number of requests in flight."""
    return telemetry.value(servers.SERVER_INFLIGHT)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, which another thread or process changes."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110  (another thread changes it)
            await anyio.sleep(0.01)


async def test_a_call_is_in_the_trace_of_its_caller(telemetry: Captured) -> None:
    """The span of an HTTP server is below `execute_tool` of the agent, and the span within the tool below that."""
    server = modern_server()

    @server.tool()
    def look() -> str:
        """Look into a database."""
        with telemetry.tracer_provider.get_tracer("db").start_as_current_span("SELECT"):
            return "found"

    instrument_server(server, objective=30.0)
    with serving(server.streamable_http_app) as port:
        async with MCPProvider.connect(f"http://127.0.0.1:{port}/mcp", id="hub") as provider:
            model = ScriptedModel(ToolCall("look"), "done")
            await within(Agent("a", model=model, providers=[provider]).run("hi"))
    client, served, inner = (telemetry.span(name) for name in ("execute_tool look", "tools/call look", "SELECT"))
    assert served.kind is SpanKind.SERVER
    assert served.parent is not None
    assert served.parent.span_id == client.context.span_id
    assert served.parent.is_remote
    assert inner.parent is not None
    assert inner.parent.span_id == served.context.span_id
    assert len({span.context.trace_id for span in (client, served, inner)}) == 1
    assert (
        attributes(served).items()
        >= {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "look",
            "pellucid.mcp.server.name": "modern",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "gen_ai.tool.call.arguments": "{}",
            "gen_ai.tool.call.result": '{"result":"found"}',
        }.items()
    )
    measured = calls_of(telemetry, "look", network_transport="tcp")
    assert measured.count == 1
    [exemplar] = measured.exemplars
    assert exemplar.span_id == format_span_id(served.context.span_id)
    assert exemplar.trace_id == format_trace_id(client.context.trace_id)


async def test_handlers_find_the_span_of_the_request_in_its_meta(telemetry: Captured) -> None:
    """A handler that reads the trace from the request's meta finds the span of the server."""
    server = modern_server()
    instrument_server(server)
    async with Client(server) as client:
        result = await within(client.call_tool("trace", meta=META))
        served = telemetry.span("tools/call trace")
        assert format_trace_id(served.context.trace_id) in CALLER
        [text] = result.content
        assert isinstance(text, TextContent)
        assert text.text == f"00-{CALLER[3:35]}-{format_span_id(served.context.span_id)}-01"
        await within(client.call_tool("trace", meta=cast("Any", {"traceparent": "nonsense"})))
    spans = telemetry.find("tools/call trace")
    assert format_trace_id(spans[1].context.trace_id) not in CALLER


async def test_a_span_around_the_server_becomes_a_link(telemetry: Captured) -> None:
    """A span around the server becomes a link if the client has sent a trace of its own."""
    server = modern_server()
    instrument_server(server)
    async with Client(server) as client:
        with telemetry.tracer_provider.get_tracer("http").start_as_current_span("POST /mcp") as outer:
            await within(client.call_tool("add", {"a": 1, "b": 2}, meta=META))
            await within(client.call_tool("lines"))
    called, other = telemetry.span("tools/call add"), telemetry.span("tools/call lines")
    if called.links:  # the client of the SDK may itself have told the outer span
        assert [link.context for link in called.links] == [outer.get_span_context()]
    assert not other.links
    assert other.context.trace_id == outer.get_span_context().trace_id


async def test_failures_are_told_apart(telemetry: Captured) -> None:
    """A tool that raises, an error of the protocol, and an unknown name have statuses and labels of their own."""
    server = modern_server()
    instrument_server(server)
    async with Client(server) as client:
        for _ in range(2):
            await within(client.call_tool("add", {"a": 1, "b": 2}))
        await within(client.call_tool("fail"))
        await within(client.call_tool("made_up"))
        with pytest.raises(MCPError):
            await within(client.call_tool("refuse"))
    assert calls_of(telemetry, "add", error_type=None).count == 2
    assert calls_of(telemetry, "fail", error_type="tool_error").count == 1
    assert calls_of(telemetry, semconv.OTHER, error_type="tool_error").count == 1
    assert calls_of(telemetry, "refuse", error_type="-32042", rpc_response_status_code="-32042").count == 1
    failed = telemetry.span("tools/call fail")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "Error executing tool fail: no such city"
    assert telemetry.span("tools/call refuse").status.description == "not today"
    assert telemetry.span("tools/call made_up").status.status_code is StatusCode.ERROR
    assert inflight(telemetry) == 0


async def test_a_tool_is_known_by_the_list_of_the_server(telemetry: Captured) -> None:
    """A low-level server's tool is known from its list, or from a call that succeeded."""

    def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=name)], is_error="fail" in arguments)

    server = listing_server(lambda _: ListToolsResult(tools=[tool_of("listed")]), call)
    instrument_server(server)
    async with Client(server) as client:
        await within(client.call_tool("listed", {"fail": True}))
        await within(client.list_tools())
        await within(client.call_tool("listed", {"fail": True}))
        await within(client.call_tool("works"))
    assert calls_of(telemetry, semconv.OTHER).count == 1
    assert calls_of(telemetry, "listed").count == 1
    assert calls_of(telemetry, "works").count == 1


@pytest.mark.parametrize(("objective", "late"), [(1e-9, 1), (1000.0, 0)])
async def test_requests_over_the_objective_are_counted(telemetry: Captured, objective: float, late: int) -> None:
    """Requests over the objective are counted from 0 on, by the latest objective of the server."""
    server = modern_server()
    instrument_server(server, objective=objective)
    async with Client(server) as client:
        await within(client.call_tool("add", {"a": 1, "b": 2}))
        assert telemetry.value(servers.SERVER_OVER_OBJECTIVE, gen_ai_tool_name="add") == late
        assert telemetry.value(servers.SERVER_OBJECTIVE, pellucid_mcp_server_name="modern") == objective
        instrument_server(server, objective=7.0)
        assert telemetry.value(servers.SERVER_OBJECTIVE) == 7.0
        instrument_server(server)
        assert not [point for point in telemetry.metrics if point.name == servers.SERVER_OBJECTIVE.name]


async def test_a_cancelled_call_ends(telemetry: Captured) -> None:
    """A cancelled call is in flight, with a growing age, while it hangs; then its span ends without an error."""
    desk = Desk()
    server = modern_server(desk)
    instrument_server(server, objective=0.5)
    async with Client(server) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "slow")
            with anyio.fail_after(60):
                await desk.started.wait()
            age = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "slow"}
            first = telemetry.value(servers.SERVER_INFLIGHT_AGE, **age)
            assert inflight(telemetry) == 1
            await until(lambda: telemetry.value(servers.SERVER_INFLIGHT_AGE, **age) > first)
            assert not telemetry.find("tools/call slow")
            group.cancel_scope.cancel()
        await until(lambda: bool(telemetry.find("tools/call slow")))
        assert inflight(telemetry) == 0
        assert telemetry.value(servers.SERVER_INFLIGHT_AGE, **age) == 0
    served = telemetry.span("tools/call slow")
    assert attributes(served)[semconv.ERROR_TYPE] == "cancelled"
    assert served.status.status_code is StatusCode.UNSET
    assert calls_of(telemetry, "slow", error_type="cancelled").count == 1


async def test_a_client_that_leaves_half_way(telemetry: Captured) -> None:
    """A call over HTTP whose client leaves ends as cancelled, and is in flight no more."""
    server = MCPServer("shop")
    server.add_tool(anyio.sleep_forever, name="slow", structured_output=False)
    instrument_server(server)

    async def call(url: str) -> None:
        async with Client(url) as client:
            await client.call_tool("slow")

    with serving(server.streamable_http_app) as port:
        async with anyio.create_task_group() as group:
            group.start_soon(call, f"http://127.0.0.1:{port}/mcp")
            await until(lambda: any(span.name == "tools/call slow" for span in telemetry.started))
            await until(lambda: inflight(telemetry) == 1)
            group.cancel_scope.cancel()
        await until(lambda: bool(telemetry.find("tools/call slow")))
        await until(lambda: inflight(telemetry) == 0)
    assert attributes(telemetry.span("tools/call slow"))[semconv.ERROR_TYPE] == "cancelled"


async def test_sessions_over_http(telemetry: Captured) -> None:
    """A session over HTTP is open until its client ends it, and is then measured with version and transport."""
    server = modern_server()
    instrument_server(server)
    with serving(server.streamable_http_app) as port:
        async with Client(f"http://127.0.0.1:{port}/mcp", mode="legacy") as client:
            await within(client.list_tools())
            assert telemetry.value(servers.SERVER_SESSIONS) == 1
        await until(lambda: telemetry.value(servers.SERVER_SESSIONS) == 0)
        ended = [point for point in telemetry.metrics if point.name == servers.SERVER_SESSION_DURATION.name]
    [session] = ended
    assert session.count == 1
    assert dict(session.attributes) == {
        "pellucid.mcp.server.name": "modern",
        "mcp.protocol.version": "2025-11-25",
        "network.transport": "tcp",
        "network.protocol.name": "http",
    }
    assert telemetry.span("initialize").kind is SpanKind.SERVER
    assert telemetry.histogram(DURATION, mcp_method_name="notifications/initialized").count == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_on_streams(telemetry: Captured, mode: str) -> None:
    """A session on streams is open as long as the server runs on them, with either protocol."""
    server = listing_server(lambda _: ListToolsResult(tools=[]))
    instrument_server(server)
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as group:
        group.start_soon(server.run, *theirs, server.create_initialization_options())
        async with ClientSession(*ours) as session:
            await within(session.initialize() if mode == "legacy" else session.discover())
            if mode == "legacy":
                await within(session.list_tools())
            assert telemetry.value(servers.SERVER_SESSIONS) == 1
        group.cancel_scope.cancel()
    assert telemetry.value(servers.SERVER_SESSIONS) == 0
    session_ended = telemetry.histogram(servers.SERVER_SESSION_DURATION, network_transport="pipe")
    assert session_ended.count == 1


SCRIPT = """
import json, sys
from mcp.server.mcpserver import MCPServer
from pellucid_exporters.testing import capture
from pellucid_instrumentation import instrument_server

server = MCPServer("clock", version="7")
server.add_tool(lambda: "noon", name="now")
instrument_server(server, objective=1)
with capture() as telemetry:
    server.run()
    found = {
        "spans": {
            span.name: [span.parent.span_id if span.parent else 0, dict(span.attributes)] for span in telemetry.spans
        },
        "metrics": [[point.name, point.value] for point in telemetry.metrics],
    }
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


async def test_a_server_in_a_process(tmp_path: Path) -> None:
    """A server in a process shows the trace of another process, and a session that ends with its client."""
    script, out = tmp_path / "server.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    parameters = StdioServerParameters(command=sys.executable, args=[str(script), str(out)], env=_environ())
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await within(session.initialize())
        await within(session.call_tool("now", meta=META))
    await until(out.exists)
    found = json.loads(out.read_text())
    parent, facts = found["spans"]["tools/call now"]
    assert f"{parent:016x}" in CALLER
    assert facts["network.transport"] == "pipe"
    assert facts["pellucid.mcp.server.version"] == "7"
    assert [servers.SERVER_SESSIONS.name, 0] in found["metrics"]
    assert servers.SERVER_SESSION_DURATION.name in dict(found["metrics"])


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("PATH", "PYTHON", "HOME"))}


@pytest.mark.parametrize("mode", ["redacted", "off", "metadata"])
async def test_content_follows_the_policy(mode: Any) -> None:
    """Arguments, results and texts of errors are recorded only as the capture policy says, without secrets."""
    server = MCPServer("shop")
    server.add_tool(lambda password, city: city.upper(), name="login")
    instrument_server(server)
    with capture(capture=CapturePolicy(mode=mode)) as telemetry:
        async with Client(server) as client:
            await within(client.call_tool("login", {"password": "hunter2", "city": "rome"}))
            await within(client.call_tool("nowhere"))
    facts = attributes(telemetry.span("tools/call login"))
    told = telemetry.span("tools/call nowhere").status.description
    assert "hunter2" not in json.dumps(facts)
    if mode == "redacted":
        assert json.loads(facts["gen_ai.tool.call.arguments"])["city"] == "rome"
        assert json.loads(facts["gen_ai.tool.call.result"])
        assert told == "Unknown tool: nowhere"
    else:
        assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & set(facts)
        assert told is None


async def test_a_fault_of_the_instrumentation_breaks_nothing(
    telemetry: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are answered although the instrumentation fails, and the fault is counted."""
    server = modern_server()
    instrument_server(server)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("wrong")

    async with Client(server) as client:
        await within(client.call_tool("add", {"a": 1, "b": 2}))
        monkeypatch.setattr(modern, "ServedRequest", wrong)
        assert not (await within(client.call_tool("add", {"a": 1, "b": 2}))).is_error
        monkeypatch.undo()
        monkeypatch.setattr("pellucid_instrumentation.servers.requests.failure_in", wrong)
        assert not (await within(client.call_tool("add", {"a": 1, "b": 2}))).is_error
    assert telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part="instrumentation") == 2
    assert len(telemetry.find("tools/call add")) == 2
    assert inflight(telemetry) == 0


async def test_twice_is_once_and_restored_is_as_before(telemetry: Captured) -> None:
    """Instrumenting twice makes one span for each request, and uninstrumenting restores the server's own middleware."""
    server = modern_server()
    low = server._lowlevel_server
    before, run = list(low.middleware), low.run
    uninstrument_server(server)
    for _ in range(2):
        instrument_server(server)
    instrument_server(low)
    assert "OpenTelemetryMiddleware" not in [type(one).__name__ for one in low.middleware]
    async with Client(server) as client:
        await within(client.call_tool("add", {"a": 1, "b": 2}))
        assert len(telemetry.find("tools/call add")) == 1
        uninstrument_server(server)
        assert (low.middleware, low.run) == (before, run)
        await within(client.call_tool("add", {"a": 1, "b": 2}))
    assert len(telemetry.find("tools/call add")) == 1


def test_what_is_no_server_is_refused() -> None:
    """An object that is no server, or a wrong objective, raises ConfigError that says what is accepted."""
    for wrong in (3, "shop", Server, object(), Client):
        with pytest.raises(ConfigError, match="takes a Server, MCPServer or FastMCP of the package mcp"):
            instrument_server(wrong)
        with pytest.raises(ConfigError, match="uninstrument_server"):
            uninstrument_server(wrong)
    for objective in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="must be a positive number of seconds"):
            instrument_server(MCPServer("shop"), objective=objective)


async def test_methods_that_clients_make_up(telemetry: Captured) -> None:
    """Methods that clients make up share one label, and wrong parameters have their JSON-RPC code as error type."""
    server = modern_server()
    instrument_server(server)
    headers = {"accept": "application/json, text/event-stream"}
    with serving(lambda: server.streamable_http_app(json_response=True, stateless_http=True)) as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            for method, params in (("made/up", {}), ("tools/call", {"arguments": 3})):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                with anyio.fail_after(60):
                    await client.post("/mcp", json=body)
    assert telemetry.histogram(DURATION, mcp_method_name=semconv.OTHER, error_type="-32601").count == 1
    assert telemetry.histogram(DURATION, mcp_method_name="tools/call", error_type="-32602").count == 1
    assert telemetry.span(semconv.OTHER).status.status_code is StatusCode.ERROR
    assert telemetry.value(servers.SERVER_SESSIONS) == 0


async def test_nothing_is_shown_without_a_pipeline() -> None:
    """An instrumented server works in a program without telemetry."""
    server = modern_server()
    instrument_server(server, objective=1)
    async with Client(server) as client:
        assert not (await within(client.call_tool("add", {"a": 1, "b": 2}))).is_error
    assert not trace.get_current_span().is_recording()
