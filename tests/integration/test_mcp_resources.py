"""Resources and prompts of MCP servers, and links to resources in results."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import ListResourcesResult, PaginatedRequestParams, ResourceLink, TextContent
from mcp_types import Resource as ServerResource

from pellucid import Agent, BlobPart, DiscoveryContext, Identity, Message, TextPart, ToolCall, ToolError, semconv
from pellucid.mcp import MCPProvider, Prompt, Resource
from pellucid.testing import FunctionModel
from pellucid.tools.lock import ToolLock
from support.mcp_servers import listing_server
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp.server.context import ServerRequestContext

    from pellucid.models import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

PDF = b"%PDF-1.7"


def library() -> MCPServer:
    """Return a server with a text, a document, a prompt, and a tool whose result links to the text."""
    server = MCPServer("library")

    @server.resource("notes://1", name="one", title="First note", mime_type="text/plain")
    def note() -> str:
        """Say something."""
        return "Buy milk."

    @server.resource("notes://2", name="two", mime_type="application/pdf")
    def document() -> bytes:
        """Return a document."""
        return PDF

    @server.prompt(title="Summary")
    def summarize(topic: str, style: str = "short") -> list[UserMessage]:
        """Summarise a topic."""
        return [UserMessage(f"Summarise {topic}, {style}.")]

    @server.tool(structured_output=False)
    def find() -> list[Any]:
        """Find a note."""
        return [TextContent(text="Found."), ResourceLink(uri="notes://1", name="one", mime_type="text/plain")]

    return server


async def test_resources_are_listed_and_read(telemetry: Captured) -> None:
    """Each request is a span with the conventions' names, and its output."""
    async with MCPProvider.connect(library(), id="notes") as provider:
        listed = await within(provider.resources())
        text = await within(provider.read("notes://1"))
        document = await within(provider.read("notes://2"))
    assert [(item.uri, item.name, item.title, item.mime_type) for item in listed] == [
        ("notes://1", "one", "First note", "text/plain"),
        ("notes://2", "two", None, "application/pdf"),
    ]
    assert all(isinstance(item, Resource) for item in listed)
    assert text == (TextPart("Buy milk."),)
    assert document == (BlobPart(content=b64encode(PDF).decode(), modality="document", mime_type="application/pdf"),)
    first, second = telemetry.find("resources/read")
    assert attributes(first)["mcp.resource.uri"] == "notes://1"
    assert attributes(first)[semconv.MCP_METHOD_NAME] == "resources/read"
    assert attributes(first)[semconv.PROVIDER_ID] == "notes"
    assert "Buy milk." in str(attributes(first)[semconv.OUTPUT])
    assert attributes(second)["mcp.resource.uri"] == "notes://2"
    assert len(telemetry.find("resources/list")) == 1
    points = [point for point in telemetry.metrics if point.name == semconv.MCP_OPERATION_DURATION.name]
    methods = {point.attributes[semconv.MCP_METHOD_NAME] for point in points}
    assert methods >= {"resources/list", "resources/read"}


async def test_prompts_are_listed_and_used(telemetry: Captured) -> None:
    """A prompt is messages, which start a run."""
    async with MCPProvider.connect(library(), id="notes") as provider:
        listed = await within(provider.prompts())
        messages = await within(provider.prompt("summarize", {"topic": "tea"}))
    assert listed == (
        Prompt(
            name="summarize",
            title="Summary",
            description="Summarise a topic.",
            arguments={"topic": True, "style": False},
        ),
    )
    assert messages == (Message("user", "Summarise tea, short."),)
    span = attributes(telemetry.span("prompts/get summarize"))
    assert span["gen_ai.prompt.name"] == "summarize"
    agent = Agent("a", model=FunctionModel(lambda request: request.messages[-1].text))
    assert (await within(agent.run(list(messages)))).output == "Summarise tea, short."


async def test_pages_of_resources() -> None:
    """All pages are read; a cursor that comes back is an error."""

    async def pages(ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListResourcesResult:
        number = int(params.cursor) if params is not None and params.cursor else 0
        following = {0: "1", 1: "2", 2: last}[number]
        return ListResourcesResult(
            resources=[ServerResource(uri=f"r://{number}", name=str(number))], next_cursor=following
        )

    last: str | None = None
    async with MCPProvider.connect(Server("pages", on_list_resources=pages), id="pages") as provider:
        assert [item.uri for item in await within(provider.resources())] == ["r://0", "r://1", "r://2"]
        last = "1"
        with pytest.raises(ToolError, match="'pages' repeats a cursor of resources/list"):
            await within(provider.resources())


async def test_a_server_without_resources_and_prompts(telemetry: Captured) -> None:
    """Lists are empty without a request; what it refuses is an error by name, and the span failed."""
    async with MCPProvider.connect(listing_server(lambda _: None), id="plain") as provider:  # type: ignore[arg-type,return-value]
        assert await within(provider.resources()) == ()
        assert await within(provider.prompts()) == ()
        with pytest.raises(ToolError, match="MCP server 'plain' returned error"):
            await within(provider.read("notes://1"))
    span = telemetry.span("resources/read")
    assert attributes(span)[semconv.ERROR_TYPE]
    assert not span.status.is_ok


async def test_a_server_that_does_not_answer(telemetry: Captured) -> None:
    """Each request has the time of a listing; then it fails by name."""

    async def never(ctx: ServerRequestContext[Any], params: Any) -> Any:
        await anyio.sleep_forever()

    server: Server[Any] = Server(
        "mute", on_list_resources=never, on_read_resource=never, on_list_prompts=never, on_get_prompt=never
    )

    async def fails(method: str, request: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ToolError, match=f"'mute' did not answer {method} within 1 s") as raised:
            await within(request())
        assert (raised.value.error_type, raised.value.error_kind) == ("timeout", "timeout")

    async with MCPProvider.connect(server, id="mute", timeout=1) as provider:
        requests: dict[str, Callable[[], Awaitable[object]]] = {
            "resources/list": provider.resources,
            "resources/read": lambda: provider.read("notes://1"),
            "prompts/list": provider.prompts,
            "prompts/get": lambda: provider.prompt("p"),
        }
        async with anyio.create_task_group() as tasks:
            for method, request in requests.items():
                tasks.start_soon(fails, method, request)
    failed = {
        attributes(span)[semconv.MCP_METHOD_NAME]
        for span in telemetry.spans
        if attributes(span).get(semconv.ERROR_TYPE) == "timeout"
    }
    assert failed == set(requests)


async def test_a_server_that_has_the_tool_for_links() -> None:
    """Its own is offered: two tools of one name would make the listing fail."""
    server = library()

    @server.tool()
    def read_resource(uri: str) -> str:
        """Read it."""
        return f"own {uri}"

    def answer(request: ModelRequest) -> str | ToolCall:
        number = sum(bool(message.tool_results) for message in request.messages)
        names = ("mcp__notes__find", "mcp__notes__read_resource")
        assert sorted(tool.name for tool in request.tools) == sorted(names)
        arguments: tuple[dict[str, str], ...] = ({}, {"uri": "notes://1"})
        if number < len(names):
            return ToolCall(names[number], arguments[number], f"c{number}")
        return str(request.messages[-1].tool_results[0].response)

    async with MCPProvider.connect(server, id="notes", prefix=True, follow_links=True) as provider:
        done = await within(Agent("a", model=FunctionModel(answer), providers=[provider]).run("Find it."))
    assert "own notes://1" in done.output
    assert done.degraded == ()


async def test_an_unknown_resource() -> None:
    """It is an error that names the server."""
    async with MCPProvider.connect(library(), id="notes") as provider:
        with pytest.raises(ToolError, match="MCP server 'notes' returned error"):
            await within(provider.read("notes://9"))


async def test_a_model_follows_a_link() -> None:
    """The tool is offered from the result with the link on, to this identity only, and reads only links."""
    offered: list[list[str]] = []

    def answer(request: ModelRequest) -> str | ToolCall:
        offered.append([tool.name for tool in request.tools])
        number = sum(bool(message.tool_results) for message in request.messages)
        calls = [
            ToolCall("find", {}, "c0"),
            ToolCall("mcp__notes__read_resource", {"uri": "notes://2"}, "c1"),
            ToolCall("mcp__notes__read_resource", {"uri": "notes://1"}, "c2"),
        ]
        return calls[number] if number < len(calls) else str(request.messages[-1].tool_results[0].response)

    async with MCPProvider.connect(library(), id="notes", follow_links=True) as provider:
        agent = Agent("a", model=FunctionModel(answer), providers=[provider])
        done = await within(agent.run("Find it.", identity=Identity(tenant="t")))
        other = Agent("b", model=FunctionModel(lambda request: str(len(request.tools))), providers=[provider])
        assert (await within(other.run("?", identity=Identity(tenant="u")))).output == "1"
        assert (await within(other.run("?", identity=Identity(tenant="t", conversation_id="7")))).output == "2"
    assert offered == [["find"], *[["find", "mcp__notes__read_resource"]] * 3]
    results = [part for message in done.messages for part in message.tool_results]
    assert results[1].is_error
    assert "No result of a tool of 'notes' has a link to 'notes://2'" in str(results[1].response)
    assert done.output == "Buy milk."


async def test_a_lock_file_lets_links_be_followed(tmp_path: Path) -> None:
    """The tool that reads links is Pellucid's own, and in no lock file."""
    offered: list[int] = []

    def answer(request: ModelRequest) -> str | ToolCall:
        offered.append(len(request.tools))
        return "Done." if request.messages[-1].tool_results else ToolCall("find", {}, "c0")

    async with MCPProvider.connect(library(), id="notes", follow_links=True) as provider:
        ToolLock.of({"notes": await provider.list_tools(DiscoveryContext())}).write(tmp_path / "lock")
        agent = Agent("a", model=FunctionModel(answer), providers=[provider], lock=tmp_path / "lock")
        await within(agent.run("Find it."))
    assert offered == [1, 2]


async def test_links_are_not_followed_by_default() -> None:
    """A result with a link does not change what is offered."""
    names: list[int] = []

    def answer(request: ModelRequest) -> str | ToolCall:
        names.append(len(request.tools))
        return ToolCall("find", {}, "c0") if len(names) == 1 else "Done."

    async with MCPProvider.connect(library(), id="notes") as provider:
        await within(Agent("a", model=FunctionModel(answer), providers=[provider]).run("Find it."))
    assert names == [1, 1]
