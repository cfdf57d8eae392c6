"""Requests of any MCP client have our spans and measurements, once each."""

from __future__ import annotations

import sys
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types import ListToolsResult
from opentelemetry import trace
from opentelemetry.trace import SpanKind, format_trace_id

from pellucid import Agent, ToolCall, semconv, tool
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid_instrumentation import Endpoint, ObservedHub, messages
from support.http_hub import http_hub
from support.mcp_clients import instrumented, list_all, over_http, over_stdio
from support.mcp_servers import listing_server, modern_server, tool_of
from support.runs import attributes, ending, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured
    from support.http_hub import HttpHub

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

NONE = {"pellucid_discovery_cache": "none"}


@pytest.fixture
def hub() -> Iterator[HttpHub]:
    """Serve over HTTP, at once unless the test changes that."""
    with http_hub() as server:
        yield server


async def test_one_hub_in_connect_list_and_call(telemetry: Captured, hub: HttpHub) -> None:
    """Host and path name it before the handshake and after; the query, which has secrets, is nowhere."""
    with instrumented():
        async with over_http(hub.url) as session:
            await session.initialize()
            assert await list_all(session) == ["search", "count"]
            await session.call_tool("search", {"text": "x"})
    name = f"127.0.0.1:{hub.server_port}/mcp"
    assert telemetry.histogram(semconv.MCP_CONNECT_DURATION, pellucid_provider_id=name).count == 1
    listing, call = telemetry.span(f"discover_tools {name}"), telemetry.span("execute_tool search")
    assert attributes(listing)[semconv.PROVIDER_ID] == attributes(call)[semconv.PROVIDER_ID] == name
    assert attributes(call)[semconv.MCP_SERVER_NAME] == "catalogue"
    assert attributes(call)[semconv.SERVER_PORT] == hub.server_port
    assert telemetry.histogram(semconv.TOOL_DURATION, pellucid_provider_id=name).count == 1
    assert telemetry.histogram(semconv.MCP_SESSION_DURATION).count == 1
    assert telemetry.value(semconv.CATALOG_SIZE, pellucid_provider_id=name) == 2
    assert telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, pellucid_provider_id=name) > 0
    assert "secret" not in repr([(span.name, attributes(span)) for span in telemetry.spans])


async def test_spans_have_the_ids_of_their_requests(telemetry: Captured, hub: HttpHub) -> None:
    """As those of `MCPProvider`: of a listing, of a call, and of a call that a framework's span stands for."""
    tracer = trace.get_tracer("framework")
    with instrumented({"*": "ids"}):
        async with over_http(hub.url) as session:
            await session.initialize()
            await session.list_tools()
            await session.call_tool("search", {"text": "x"})
            with tracer.start_as_current_span(
                "execute_tool search",
                attributes={semconv.OPERATION_NAME: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: "search"},
            ):
                await session.call_tool("search", {"text": "y"})
    spans = [*telemetry.find("discover_tools ids"), *telemetry.find("execute_tool search")]
    ids = [attributes(span).get(semconv.JSONRPC_REQUEST_ID) for span in spans]
    assert len(ids) == 3
    assert len({*ids}) == 3
    assert all(isinstance(request_id, str) and request_id.isdecimal() for request_id in ids)


async def test_pages_of_one_listing_are_one(telemetry: Captured, hub: HttpHub) -> None:
    """Each page is a request; the listing is one round trip, also if nobody asks for its second page."""
    with instrumented({"*": "pages"}):
        async with over_http(hub.url) as session:
            await session.initialize()
            await list_all(session)
            await session.list_tools()
            await session.list_tools()
    counts = [attributes(span)[semconv.DISCOVERY_TOOL_COUNT] for span in telemetry.find("discover_tools pages")]
    assert counts == [2, 1, 1]
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, **NONE).count == 3
    assert telemetry.histogram(semconv.MCP_OPERATION_DURATION, mcp_method_name="tools/list").count == 4


@pytest.mark.usefixtures("quiet_opentelemetry")
async def test_listings_at_the_same_time(telemetry: Captured) -> None:
    """Each is one round trip with all its pages, whatever other tasks request of the session meanwhile."""

    def page(cursor: str | None) -> ListToolsResult:
        number = int(cursor or 0)
        return ListToolsResult(tools=[tool_of(f"t{number}")], next_cursor=str(number + 1) if number < 3 else None)

    with instrumented({"*": "pages"}):
        async with Client(listing_server(page)) as client, anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(list_all, client.session)
                tasks.start_soon(client.session.call_tool, "t0", {})
    spans = [attributes(span) for span in telemetry.find("discover_tools pages")]
    counts = [span[semconv.DISCOVERY_TOOL_COUNT] for span in spans if span[semconv.DISCOVERY_CACHE] == "none"]
    assert counts == [4, 4, 4]
    assert telemetry.value(semconv.CATALOG_SIZE, pellucid_provider_id="pages") == 4


async def test_a_listing_that_checks_a_result_is_no_discovery(telemetry: Captured) -> None:
    """The MCP SDK makes it within the call of a tool that it does not know."""
    with instrumented({"*": ObservedHub("time", objective=1e-9)}):
        async with over_stdio(sys.executable, "-m", "mcp_server_time") as session:
            await session.initialize()
            await session.call_tool("get_current_time", {"timezone": "UTC"})
    [listing] = telemetry.find("discover_tools time")
    assert attributes(listing)[semconv.DISCOVERY_CACHE] == "validation"
    assert not [point for point in telemetry.metrics if point.name == semconv.DISCOVERY_OVER_OBJECTIVE.name]


async def test_the_framework_has_a_span_of_the_call(telemetry: Captured, hub: HttpHub) -> None:
    """It is completed, and there is no second one; that of another tool, around it, is left alone."""
    telemetry.is_checked = False  # the check knows nothing of spans that are not ours
    tracer = telemetry.tracer_provider.get_tracer("framework")
    call = {semconv.OPERATION_NAME: semconv.EXECUTE_TOOL}
    with instrumented({"*": "hub"}):
        async with over_http(hub.url) as session:
            await session.initialize()
            with tracer.start_as_current_span("tool", attributes={**call, semconv.TOOL_NAME: "research"}):
                await session.call_tool("search", {})
            with tracer.start_as_current_span("tool", attributes={**call, semconv.TOOL_NAME: "web_search"}) as span:
                await session.call_tool("search", {})
    own = telemetry.span("execute_tool search")
    other, completed = telemetry.find("tool")
    assert attributes(completed)[semconv.PROVIDER_ID] == "hub"
    assert semconv.PROVIDER_ID not in attributes(other)
    assert own.parent is not None
    assert own.parent.span_id == other.get_span_context().span_id
    duration = telemetry.histogram(semconv.TOOL_DURATION, gen_ai_tool_name="search")
    assert duration.count == 2
    assert format_trace_id(span.get_span_context().trace_id) in {exemplar.trace_id for exemplar in duration.exemplars}


async def test_a_span_of_a_server_is_not_that_of_the_call(telemetry: Captured, hub: HttpHub) -> None:
    """A server that passes a call on to another one makes a further call, of the same tool."""
    telemetry.is_checked = False  # the check knows nothing of spans that are not ours
    tracer = telemetry.tracer_provider.get_tracer("server")
    facts = {semconv.MCP_METHOD_NAME: "tools/call", semconv.TOOL_NAME: "search"}
    with instrumented({"*": "hub"}):
        async with over_http(hub.url) as session:
            await session.initialize()
            with tracer.start_as_current_span("tools/call search", kind=SpanKind.SERVER, attributes=facts):
                await session.call_tool("search", {})
    assert semconv.PROVIDER_ID not in attributes(telemetry.span("tools/call search"))
    assert attributes(telemetry.span("execute_tool search"))[semconv.PROVIDER_ID] == "hub"


async def test_a_tool_of_ours_that_calls_one_of_the_same_name(telemetry: Captured, hub: HttpHub) -> None:
    """Its span has one provider, that of its one measurement; what it lacks is completed."""
    telemetry.is_checked = False  # the check knows nothing of listings within calls
    with instrumented({"*": "hub"}):
        async with over_http(hub.url) as session:
            await session.initialize()

            @tool
            async def search() -> str:
                """Search."""
                return messages.text_of(await session.call_tool("search", {}))

            await within(Agent("a", model=ScriptedModel(ToolCall("search", {}), "done"), tools=[search]).run("x"))
    facts = attributes(telemetry.span("execute_tool search"))
    measured = telemetry.histogram(semconv.TOOL_DURATION, gen_ai_tool_name="search")
    assert facts[semconv.PROVIDER_ID] == measured.attributes[semconv.PROVIDER_ID] == "static"
    assert facts[semconv.MCP_SERVER_NAME] == "catalogue"


async def test_a_session_without_a_handshake(telemetry: Captured, hub: HttpHub) -> None:
    """It is connected by its first request, so that it does not seem to hang while it is open."""
    with instrumented({"*": "hub"}):
        async with over_http(hub.url) as session:
            await list_all(session)
            assert telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="hub") == 0
    assert telemetry.histogram(semconv.MCP_CONNECT_DURATION, pellucid_provider_id="hub").count == 1


async def test_a_server_with_a_long_name(telemetry: Captured) -> None:
    """It does not make every span large."""
    server = listing_server(lambda _cursor: ListToolsResult(tools=[]))
    server.name = "x" * 10_000
    with instrumented({"*": "hub"}):
        async with Client(server) as client:
            await list_all(client.session)
    assert attributes(telemetry.span("discover_tools hub"))[semconv.MCP_SERVER_NAME] == "x" * 256


async def test_a_call_that_is_collected() -> None:
    """It is closed in another context than it began in, without an error of ours."""

    class Waiting(ClientSession):
        async def send_request(self, *_args: Any, **_options: Any) -> Any:
            await anyio.sleep_forever()

    with instrumented():
        async with create_client_server_memory_streams() as ((read, write), _):
            call = Waiting(read, write).call_tool("search", {})
            copy_context().run(call.send, None)
            call.close()


async def test_a_listing_belongs_to_the_run_of_its_caller(telemetry: Captured, hub: HttpHub) -> None:
    """Its span is a child of the current one."""
    tracer = telemetry.tracer_provider.get_tracer("framework")
    with instrumented({"*": "hub"}):
        async with over_http(hub.url) as session:
            await session.initialize()
            with tracer.start_as_current_span("run") as run:
                await list_all(session)
            assert not trace.get_current_span().get_span_context().is_valid
    listing = telemetry.span("discover_tools hub")
    assert listing.parent is not None
    assert listing.parent.span_id == run.get_span_context().span_id


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_hub_that_hangs_has_an_age(telemetry: Captured, hub: HttpHub, method: str) -> None:
    """It is seen before the request ends, whether the hub hangs while one connects or lists; then it is 0."""
    hub.delays[method] = 600

    def age() -> float:
        return telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="hub")

    async def ask() -> None:
        async with over_http(hub.url) as session:
            await session.initialize()
            await session.list_tools()

    with instrumented({"*": "hub"}):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(60):
                while method not in hub.requests or age() < 0.05:
                    await checkpoint()
            tasks.cancel_scope.cancel()
    assert age() == 0
    if method == "tools/list":
        assert ending(telemetry.span("discover_tools hub")) == ("cancelled", "UNSET", None)


async def test_a_connection_that_nobody_uses_has_no_age(telemetry: Captured, hub: HttpHub) -> None:
    """Such as that of a proxy that passes messages on: the hub is not awaited, so it does not hang."""
    with instrumented({"*": "hub"}):
        async with streamable_http_client(hub.url):
            assert telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE, pellucid_provider_id="hub") == 0


async def test_errors_are_those_of_our_own_provider(telemetry: Captured) -> None:
    """A tool that fails, a request that is refused, and a server that is lost, have our types of errors."""
    with instrumented({"*": "modern"}):
        async with Client(modern_server()) as client:
            await client.session.list_tools()
            await client.session.call_tool("fail", {})
            with pytest.raises(Exception, match="not today"):
                await client.session.call_tool("refuse", {})
    assert ending(telemetry.span("execute_tool fail")) == ("failed", "ERROR", "tool_error")
    assert ending(telemetry.span("execute_tool refuse")) == ("failed", "ERROR", "-32042")


async def test_a_server_that_cannot_be_started(telemetry: Captured) -> None:
    """The failure to connect is measured, with the id that the hub always has."""
    with instrumented(), pytest.raises(OSError, match="no-such-program"):
        async with over_stdio("/opt/no-such-program", "--token=secret"):
            pytest.fail("it does not exist")
    failed = telemetry.histogram(semconv.MCP_CONNECT_DURATION, error_type="FileNotFoundError")
    assert failed.attributes["pellucid.provider.id"] == "no-such-program"


async def test_our_own_provider_is_not_observed_twice(telemetry: Captured, hub: HttpHub) -> None:
    """It observes itself."""
    with instrumented({"*": "twice"}):
        async with MCPProvider.http(hub.url, id="own") as provider:
            model = ScriptedModel(ToolCall("search", {}), "done")
            await within(Agent("a", model=model, providers=[provider]).run("x"))
    assert not [span.name for span in telemetry.spans if "twice" in repr(attributes(span))]
    assert len(telemetry.find("execute_tool search")) == 1
    assert telemetry.histogram(semconv.MCP_CONNECT_DURATION).attributes["pellucid.provider.id"] == "own"


async def test_a_hook_that_raises_fails_no_call(telemetry: Captured, hub: HttpHub) -> None:
    """It is counted, and the hub has the id that it has without the hook."""

    def choose(endpoint: Endpoint) -> Any:
        raise ZeroDivisionError

    with instrumented(choose):
        async with over_http(hub.url) as session:
            await session.initialize()
            assert await list_all(session) == ["search", "count"]
    assert len(telemetry.find(f"discover_tools 127.0.0.1:{hub.server_port}/mcp")) == 1
    assert telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part="instrumentation") == 1
