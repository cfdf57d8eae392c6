"""Annotations of tools of MCP servers: titles, icons and hints, and who reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import Icon
from mcp_types import ToolAnnotations as Said

from pellucid import Agent, DiscoveryContext, Tool, ToolCall, semconv, tool
from pellucid.adapters.mcp_server import mcp_server
from pellucid.errors import ConfigError
from pellucid.events import ToolsRedefined
from pellucid.mcp import MCPProvider
from pellucid.providers import static_tools
from pellucid.testing import ScriptedModel
from pellucid.tools import ToolAnnotations
from pellucid.tools.annotations import ToolIcon
from support.approvals import decide, passed_on
from support.runs import attributes, results, within

if TYPE_CHECKING:
    from pellucid.selection import PermissionRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


def wipe() -> str:
    """Wipe the disk."""
    return "wiped"


def server_of(annotations: Said | None = None, **more: Any) -> MCPServer:
    """Return a server with one tool."""
    server = MCPServer("disks")
    server.add_tool(wipe, annotations=annotations, **more)
    return server


async def listed(server: Any, **options: Any) -> Tool:
    """Return the one tool of a server."""
    async with MCPProvider.connect(server, id="disks", **options) as provider:
        [only] = await within(provider.list_tools(DiscoveryContext()))
    return only


async def test_what_a_server_says_is_on_the_tool() -> None:
    """A tool has the title, the icons and the hints that its server sends."""
    icon = Icon(src="https://example.org/wipe.png", mime_type="image/png", sizes=["48x48"], theme="dark")
    said = Said(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    found = await listed(server_of(said, title="Wipe a disk", icons=[icon]))
    assert found.annotations == ToolAnnotations(
        title="Wipe a disk",
        read_only_hint=False,
        destructive_hint=True,
        idempotent_hint=True,
        open_world_hint=False,
        icons=(ToolIcon(src=icon.src, mime_type="image/png", sizes=("48x48",), theme="dark"),),
    )
    assert not found.idempotent  # what a server says lets nothing be repeated


async def test_a_tool_of_which_nothing_is_said_has_no_annotations() -> None:
    """A tool without annotations has its digest as its fingerprint."""
    plain, empty = await listed(server_of()), await listed(server_of(Said()))
    assert plain.annotations is None
    assert empty.annotations is None
    assert plain.fingerprint == empty.fingerprint == plain.digest


async def test_annotations_are_in_fingerprints_and_not_in_what_models_get() -> None:
    """Annotations are in the fingerprint of a tool, and not in the definition that models get."""
    plain = await listed(server_of())
    safe, unsafe = await listed(server_of(Said(read_only_hint=True))), await listed(server_of(Said(title="x")))
    assert len({safe.fingerprint, unsafe.fingerprint, plain.fingerprint}) == 3
    assert (safe.definition, safe.digest) == (unsafe.definition, unsafe.digest)


async def test_a_hub_whose_annotations_change_has_changed(telemetry: Captured) -> None:
    """A hub whose annotations change has another listing, and `pin=True` withholds the tool."""
    server = server_of(Said(read_only_hint=True))

    async def swap(ctx: Context) -> str:
        """Change what the other tool says, and announce it."""
        server.remove_tool("wipe")
        server.add_tool(wipe, annotations=Said(destructive_hint=True))
        await ctx.notify_tools_changed()
        return "swapped"

    server.add_tool(swap)
    model = ScriptedModel(ToolCall("swap", {}), ToolCall("wipe", {}), "done")
    agent = Agent("a", model=model, providers=[MCPProvider.connect(server, id="disks")], pin=True)
    async with agent:
        result = await within(agent.run("x"))
    assert "has changed since it was offered" in str(results(result)[1].response)
    [event] = [event for event in telemetry.events if isinstance(event, ToolsRedefined)]
    assert (event.tool_name, event.after, event.refused) == ("wipe", "offer", True)
    assert [attributes(span)[semconv.CATALOG_CHANGED] for span in telemetry.find("discover_tools")] == [
        False,
        True,
        False,
    ]


async def test_a_title_does_not_forge_what_people_read() -> None:
    """Characters in a title that turn or hide text are left out, and long titles are cut."""
    found = await listed(server_of(title="Re\u202ead\u200b" + "x" * 1_000))
    assert found.annotations is not None
    assert found.annotations.title == "Read" + "x" * 196 + "…"


async def test_long_addresses_of_icons_are_not_repeated() -> None:
    """An icon in a long address is a hash in fingerprints and recordings, and whole on the tool."""
    one, other = (Icon(src=f"data:image/png;base64,{letter * 5_000}") for letter in "AB")
    first, second = await listed(server_of(icons=[one])), await listed(server_of(icons=[other]))
    assert first.fingerprint != second.fingerprint
    assert first.annotations is not None
    assert first.annotations.icons[0].src == one.src
    assert len(json.dumps(first.annotations.brief)) < 200
    assert first.annotations.to_dict()["icons"] == [{"src": one.src}]


CASES: list[tuple[Said | None, bool]] = [
    (None, True),
    (Said(title="Wipe"), True),
    (Said(read_only_hint=False), True),
    (Said(destructive_hint=True), True),
    (Said(read_only_hint=True), False),
    (Said(destructive_hint=False), False),
    (Said(read_only_hint=True, destructive_hint=True), False),  # which has no meaning for a tool that changes nothing
]


@pytest.mark.parametrize(("said", "asks"), CASES)
async def test_destructive_tools_need_an_approval(said: Said | None, asks: bool) -> None:
    """A tool under `needs_approval="destructive"` needs an approval unless it says that it is harmless."""
    provider = MCPProvider.connect(server_of(said), id="disks", needs_approval="destructive")
    agent = Agent("a", model=ScriptedModel(ToolCall("wipe", {}), "done"), providers=[provider])
    async with agent:
        result = await within(agent.run("x"))
    assert result.status == ("awaiting_approval" if asks else "completed")


async def test_who_approves_reads_what_the_tool_says() -> None:
    """An approval has the annotations of its tool, also from a stored checkpoint."""
    provider = MCPProvider.connect(server_of(Said(destructive_hint=True), title="Wipe a disk"), id="disks")
    model = ScriptedModel(ToolCall("wipe", {}), "done")
    agent = Agent("a", model=model, providers=[provider], policy=lambda request: "ask")
    async with agent:
        waits = await within(agent.run("x"))
        [request] = waits.approvals
        assert request.annotations == {"title": "Wipe a disk", "destructiveHint": True}
        assert passed_on(waits.checkpoint)["approvals"][0]["annotations"] == request.annotations
        result = await within(agent.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert [part.response for part in results(result)] == [{"result": "wiped"}]


async def test_a_policy_reads_what_the_tool_says() -> None:
    """A permission policy reads the annotations of the tool in each request."""

    def policy(request: PermissionRequest) -> str:
        said = request.tool.annotations
        return "allow" if said is not None and said.read_only_hint else "deny"

    offered = []
    for said in (None, Said(read_only_hint=True)):
        model = ScriptedModel("done")
        provider = MCPProvider.connect(server_of(said), id="disks")
        agent = Agent("a", model=model, providers=[provider], policy=policy)
        async with agent:
            await within(agent.run("x"))
        offered.append([item.name for item in model.requests[0].tools])
    assert offered == [[], ["wipe"]]


async def test_a_tool_of_ours_says_of_itself_what_a_server_may() -> None:
    """A tool of the application may have annotations, and `mcp_server` passes them on."""
    icon = ToolIcon(src="https://example.org/look.png")
    said = ToolAnnotations(title="Look", read_only_hint=True, icons=(icon,))
    look = tool(name="look", annotations=said, needs_approval="destructive")(wipe)
    assert look.needs_approval is False
    async with Client(mcp_server(static_tools([look]))) as client:
        [found] = (await client.list_tools()).tools
    assert found.annotations is not None
    assert (found.title, found.annotations.read_only_hint) == ("Look", True)
    assert found.icons is not None
    assert found.icons[0].src == icon.src
    assert (await listed(mcp_server(static_tools([look])))).annotations == said


def test_another_text_is_no_need_for_approval() -> None:
    """A text other than "destructive" for `needs_approval` raises ConfigError when the tool is made."""
    wrong: Any = "destructiv"
    with pytest.raises(ConfigError, match="unknown needs_approval 'destructiv'; use True, False, 'destructive' or a"):
        tool(needs_approval=wrong)(wipe)
