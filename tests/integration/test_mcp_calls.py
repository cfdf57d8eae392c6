"""Calling tools of MCP servers."""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.client._memory import InMemoryTransport
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from pellucid import (
    Agent,
    BlobPart,
    DiscoveryContext,
    Mcp,
    TelemetryOptions,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    UriPart,
    dump_messages,
    load_messages,
    semconv,
)
from pellucid.mcp import MCPProvider
from pellucid.mcp.content import to_value
from pellucid.testing import ScriptedModel
from support.mcp_servers import PIXEL, Desk, listing_server, modern_server, serving, tool_of
from support.processes import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_servers.py")
CTX = ToolContext()


async def tools_of(provider: MCPProvider) -> dict[str, Tool]:
    """Return a provider's tools by name."""
    return {tool.name: tool for tool in await provider.list_tools(DiscoveryContext())}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


@pytest.fixture(params=["memory", "streams", "stdio", "http"])
async def tools(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Tool]]:
    """The tools of one and the same server, reached in different ways."""
    match request.param:
        case "memory":
            provider = MCPProvider.connect(modern_server(), id="demo")
        case "streams":
            provider = MCPProvider.connect(InMemoryTransport(modern_server()), id="demo")
        case "stdio":
            provider = MCPProvider.stdio(*python(SCRIPT, "modern"), id="demo")
        case _:
            with serving(modern_server().streamable_http_app) as port:
                provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="demo")
                with anyio.fail_after(60):
                    yield await tools_of(provider)
                    await provider.aclose()
            return
    with anyio.fail_after(60):
        yield await tools_of(provider)
        await provider.aclose()


async def test_results_are_text_data_or_parts(tools: dict[str, Tool]) -> None:
    """Text is joined, structured content is data that is sent once, and an image is a content part."""
    with anyio.fail_after(60):
        assert await tools["lines"].run({}, CTX) == "one\ntwo"
        assert await tools["add"].run({"a": 1, "b": 2}, CTX) == {"result": 3}
        assert await tools["weather"].run({}, CTX) == {"celsius": 21}
        image = BlobPart(content=b64encode(PIXEL).decode(), modality="image", mime_type="image/png")
        assert await tools["picture"].run({}, CTX) == (TextPart("a pixel"), image)


async def test_what_fails_is_a_tool_error(tools: dict[str, Tool]) -> None:
    """A result with `isError` is a `tool_error` with its text, and an error of the protocol has its code."""
    with anyio.fail_after(60):
        with pytest.raises(ToolError, match="no such city") as failed:
            await tools["fail"].run({}, CTX)
        with pytest.raises(ToolError, match="not today") as refused:
            await tools["refuse"].run({}, CTX)
    assert failed.value.error_type == "tool_error"
    assert refused.value.error_type == "-32042"


async def test_progress_is_passed_on(tools: dict[str, Tool]) -> None:
    """Progress that the server reports reaches the context of the call."""
    heard = []
    arrived = anyio.Event()

    def progress(value: Any) -> None:
        heard.append(value)
        arrived.set()

    with anyio.fail_after(60):
        await tools["steps"].run({}, ToolContext(progress=progress))
        await arrived.wait()
    assert heard == [{"progress": 1, "total": 2, "message": "half"}]


async def test_trace_context_is_the_callers(tools: dict[str, Tool]) -> None:
    """Each of concurrent calls on one connection carries the span of its caller."""
    seen: dict[int, Any] = {}

    async def call(number: int) -> None:
        context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        with trace.use_span(NonRecordingSpan(context)):
            seen[number] = await tools["trace"].run({}, CTX)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(1, 6):
                tasks.start_soon(call, number)
    assert seen == {number: {"result": f"00-{number:032x}-{number:016x}-01"} for number in range(1, 6)}


@pytest.mark.parametrize("reach", [lambda server: server, InMemoryTransport], ids=["memory", "streams"])
async def test_cancelling_a_call_cancels_it_at_the_server(reach: Callable[[Any], Any]) -> None:
    """A cancelled call cancels the server's handler, and the connection works on, also for a call under way."""
    desk = Desk()
    outcome = []
    with anyio.fail_after(60):
        async with MCPProvider.connect(reach(modern_server(desk)), id="demo") as provider:
            tools = await tools_of(provider)
            async with anyio.create_task_group() as others:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(tools["slow"].run, {}, CTX)
                    await desk.started.wait()
                    desk.started = anyio.Event()

                    async def patient() -> None:
                        outcome.append(await tools["slow"].run({}, CTX))

                    others.start_soon(patient)
                    await desk.started.wait()
                    tasks.cancel_scope.cancel()
                await desk.cancelled.wait()
                desk.release.set()
            assert outcome == [{"result": "released"}]
            assert await tools["add"].run({"a": 1, "b": 1}, CTX) == {"result": 2}


async def test_cancelling_a_call_notifies_a_legacy_process(tmp_path: Path) -> None:
    """A cancelled call to a process sends `notifications/cancelled` with the id of its request."""
    log = tmp_path / "log"
    env = {"PELLUCID_TEST_LOG": str(log)}
    with anyio.fail_after(60):
        async with MCPProvider.stdio(*python(SCRIPT, "legacy"), id="old", env=env) as provider:
            tools = await tools_of(provider)
            with anyio.move_on_after(0.2):
                await tools["hang"].run({}, CTX)
            await tools["echo"].run({}, CTX)  # answered after the notice was read
    messages = [json.loads(line) for line in log.read_text().splitlines()]
    hung = next(message["id"] for message in messages if message.get("params", {}).get("name") == "hang")
    cancelled = [
        message["params"]["requestId"] for message in messages if message["method"] == "notifications/cancelled"
    ]
    assert cancelled == [hung]


async def test_a_call_whose_server_dies_says_so_and_the_next_one_works() -> None:
    """A call whose server dies fails as `connection_lost`, and the next one starts a new process."""
    with anyio.fail_after(60):
        async with MCPProvider.stdio(*python(SCRIPT, "modern"), id="demo") as provider:
            tools = await tools_of(provider)
            first = await tools["pid"].run({}, CTX)
            with pytest.raises(ToolError, match="not known whether the tool ran") as lost:
                await tools["die"].run({}, CTX)
            assert lost.value.error_type == "connection_lost"
            assert await tools["pid"].run({}, CTX) != first


async def test_last_words_of_a_process_are_in_the_error(tmp_path: Path) -> None:
    """Text that a dying server wrote to its standard error is in the error of the call."""
    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log")}
    with anyio.fail_after(60):
        async with MCPProvider.stdio(*python(SCRIPT, "legacy"), id="old", env=env) as provider:
            tools = await tools_of(provider)
            with pytest.raises(ToolError, match="out of memory"):
                await tools["die"].run({}, CTX)


async def test_the_environment_of_a_process_is_added_to_a_safe_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's process gets a safe environment with `PATH` and the given variables, and not those of this process."""
    monkeypatch.setenv("PELLUCID_TEST_SECRET", "mine")
    with anyio.fail_after(60):
        async with MCPProvider.stdio(*python(SCRIPT, "modern"), id="a") as provider:
            assert await (await tools_of(provider))["secret"].run({}, CTX) == {"result": "unset"}
        env = {"PELLUCID_TEST_SECRET": "given"}
        async with MCPProvider.stdio(*python(SCRIPT, "modern"), id="b", env=env) as provider:
            assert await (await tools_of(provider))["secret"].run({}, CTX) == {"result": "given"}


async def test_names_are_made_to_fit_and_lead_back() -> None:
    """Odd and long names get a hash, no two the same, and calls use the server's own names."""
    own = ["weather/today", "weather.today", "x" * 70, "x" * 71, "fine", ""]
    server = listing_server(lambda _cursor: ListToolsResult(tools=[tool_of(name) for name in own]))
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub") as provider:
            tools = await provider.list_tools(DiscoveryContext())
            again = await MCPProvider.connect(server, id="hub").list_tools(DiscoveryContext())
            assert [tool.name for tool in tools] == [tool.name for tool in again]
            assert len({tool.name for tool in tools}) == len(own)
            assert tools[4].name == "fine"
            assert [provider.server_name(tool.name) for tool in tools] == own
            assert [await tool.run({}, CTX) for tool in tools] == own


async def test_names_have_a_prefix_on_request() -> None:
    """`prefix=True` puts the server's id before each name."""
    with anyio.fail_after(60):
        async with MCPProvider.connect(modern_server(), id="demo", prefix=True) as provider:
            tools = await tools_of(provider)
            assert await tools["mcp__demo__add"].run({"a": 1, "b": 2}, CTX) == {"result": 3}
            assert tools["mcp__demo__add"].source == Mcp("demo")


async def test_a_run_has_the_mcp_attributes_on_its_tool_spans() -> None:
    """`execute_tool` has the attributes of MCP that the conventions want."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "3")
    with serving(modern_server().streamable_http_app) as port, anyio.fail_after(60):
        async with MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="demo") as provider:
            agent = Agent("a", model=model, providers=[provider], telemetry=TelemetryOptions(tracer_provider=tracers))
            await agent.run("1 + 2?")
    spans = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    tool, discovery = spans["execute_tool add"], spans["discover_tools demo"]
    assert tool[semconv.MCP_METHOD_NAME] == "tools/call"
    assert tool[semconv.MCP_PROTOCOL_VERSION] == "2026-07-28"
    assert tool[semconv.NETWORK_TRANSPORT] == "tcp"
    assert tool[semconv.DISPATCH_MODE] == "mcp"
    assert (tool[semconv.SERVER_ADDRESS], tool[semconv.SERVER_PORT]) == ("127.0.0.1", port)
    assert (discovery[semconv.SERVER_ADDRESS], discovery[semconv.SERVER_PORT]) == ("127.0.0.1", port)
    assert discovery[semconv.PROVIDER_KIND] == "mcp.http"


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (CallToolResult(content=[]), ""),
        (CallToolResult(content=[], structured_content=[1]), [1]),
        (CallToolResult(content=[TextContent(text="21")], structured_content={"result": 21}), {"result": 21}),
        (
            CallToolResult(content=[TextContent(text="a"), TextContent(text="b")], structured_content=["a", "b"]),
            ["a", "b"],
        ),
        (
            CallToolResult(content=[TextContent(text="Mild.")], structured_content={"celsius": 21}),
            (TextPart("Mild."), TextPart('{"celsius": 21}')),
        ),
        (
            CallToolResult(content=[AudioContent(data="AA==", mime_type="audio/wav")]),
            (BlobPart(content="AA==", modality="audio", mime_type="audio/wav"),),
        ),
        (
            CallToolResult(content=[ResourceLink(name="film", uri="https://x.test/f", mime_type="video/mp4")]),
            (UriPart(uri="https://x.test/f", modality="video", mime_type="video/mp4"),),
        ),
        (CallToolResult(content=[EmbeddedResource(resource=TextResourceContents(uri="a:b", text="hi"))]), "hi"),
        (
            CallToolResult(content=[EmbeddedResource(resource=BlobResourceContents(uri="a:b", blob="AA=="))]),
            (BlobPart(content="AA==", modality="document"),),
        ),
    ],
)
def test_content_becomes_a_tool_result(result: CallToolResult, value: object) -> None:
    """Every kind of content block has its place, and nothing is said twice."""
    assert to_value(result) == value


FILE = "def main() -> None:\n    print('a \"quoted\" line')\n" * 250
IMAGE = b64encode(bytes(range(256)) * 240).decode()
PICTURE = ImageContent(data=IMAGE, mime_type="image/png")
BLOB = BlobPart(content=IMAGE, modality="image", mime_type="image/png")
RESOURCE = EmbeddedResource(resource=BlobResourceContents(uri="a:b", blob=IMAGE, mime_type="image/png"))
TEXT = TextContent(text=FILE)
SAME_PICTURE = {"type": "image", "data": IMAGE, "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("content", "data", "value"),
    [
        ([TEXT], {"content": FILE}, {"content": FILE}),
        ([TEXT], {"result": FILE}, {"result": FILE}),
        ([TEXT], {"file": {"text": FILE}, "lines": 500}, {"file": {"text": FILE}, "lines": 500}),
        ([TEXT], {"content": [{"type": "text", "text": FILE}]}, {"content": [{"type": "text", "text": FILE}]}),
        ([TextContent(text=json.dumps({"a": [1]}, indent=2))], {"result": {"a": [1]}}, {"result": {"a": [1]}}),
        ([TextContent(text=json.dumps({"data": {"a": [1]}}))], {"a": [1]}, (TextPart('{"data": {"a": [1]}}'),)),
        ([TextContent(text=f"main.py:\n{FILE}")], {"content": FILE}, (TextPart(f"main.py:\n{FILE}"),)),
        ([PICTURE], {"content": [SAME_PICTURE]}, (BLOB,)),
        ([PICTURE], {"result": f"data:image/png;base64,{IMAGE}"}, (BLOB,)),
        ([PICTURE, RESOURCE, PICTURE], None, (BLOB,)),
        ([TextContent(text="1")], {"ok": True}, (TextPart("1"), TextPart('{"ok": true}'))),
        ([TextContent(text="")], {"rows": [None] * 2000}, {"rows": [None] * 2000}),
        ([TextContent(text="A cat."), PICTURE], {"content": ["A cat.", SAME_PICTURE]}, (TextPart("A cat."), BLOB)),
        (
            [TextContent(text="A cat."), PICTURE],
            {"image": IMAGE, "size": 61440},
            (TextPart("A cat."), BLOB, TextPart('{"image": "[see above]", "size": 61440}')),
        ),
    ],
)
async def test_the_model_gets_each_thing_once(content: list[Any], data: Any, value: object) -> None:
    """The model gets each text, blob or JSON value once; a run keeps the server's structured content."""

    def answer(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult(content=content, structured_content=data)

    assert to_value(answer("", {})) == value
    server = listing_server(lambda _cursor: ListToolsResult(tools=[tool_of("read")]), answer)
    model = ScriptedModel(ToolCall("read", {}), "done")
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub") as provider:
            result = await Agent("a", model=model, providers=[provider]).run("go")
    [part] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]
    assert (part.response, part.is_error) == (value, False)
    assert part.structured == (None if isinstance(value, dict) else data)
    [same] = [part for message in load_messages(dump_messages(result.messages)) for part in message.parts][2:3]
    assert same == part
    assert len(json.dumps(part.to_dict())) < 1.1 * max(len(json.dumps(FILE)), len(IMAGE)) + 200


# --- output schemas ---------------------------------------------------------------------------------------------------

COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


def counting_server(listings: list[str], *answers: Any) -> Any:
    """Return a server with a tool `count` of an output schema, which gives these structured contents in turn."""
    left = iter(answers)

    def pages(cursor: str | None) -> ListToolsResult:
        listings.append("tools/list")
        return ListToolsResult(tools=[tool_of("count").model_copy(update={"output_schema": COUNT}), tool_of("plain")])

    def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        data = next(left)
        return CallToolResult(content=[TextContent(text=json.dumps(data))], structured_content=data)

    return listing_server(pages, call)


async def run_counting(provider: MCPProvider, calls: int) -> list[ToolResult]:
    """Return the results of some calls of `count`."""
    model = ScriptedModel(*[ToolCall("count", {})] * calls, "done")
    with anyio.fail_after(60):
        run = await Agent("a", model=model, providers=[provider]).run("x")
        await provider.aclose()
    return [part for message in run.messages for part in message.tool_results]


async def test_the_output_schema_of_a_server_s_tool_is_kept() -> None:
    """A tool has the output schema that the server lists, or none."""
    provider = MCPProvider.connect(counting_server([]), id="demo")
    with anyio.fail_after(60):
        tools = await tools_of(provider)
        await provider.aclose()
    assert (tools["count"].output_schema, tools["plain"].output_schema) == (COUNT, None)


async def test_structured_content_that_does_not_fit_is_an_error() -> None:
    """Structured content that does not fit its schema is an error with the path and no value."""
    listings: list[str] = []
    provider = MCPProvider.connect(counting_server(listings, {"count": 1}, {"count": "hunter2"}), id="demo", ttl=60)
    fits, misfit = await run_counting(provider, 2)
    assert fits.response == {"count": 1}
    problem = 'count: the value is not of type "integer"'
    assert misfit.response == f"The result of 'count' does not fit its output schema, and is withheld: {problem}."
    assert misfit.is_error
    assert listings == ["tools/list"]


@pytest.mark.parametrize("option", ["report", None])
async def test_structured_content_that_does_not_fit_may_be_let_through(telemetry: Captured, option: Any) -> None:
    """Structured content that does not fit reaches the model on request, with an event if the option is "report"."""
    server = counting_server([], {"count": "two"})
    [result] = await run_counting(MCPProvider.connect(server, id="demo", on_invalid_output=option), 1)
    assert (result.is_error, result.response) == (False, {"count": "two"})
    names = [event.name for event in telemetry.span("execute_tool count").events]
    assert names == (["tool.output_invalid"] if option else [])
