"""Providers and agents of ours as MCP servers: in memory, and `pellucid mcp serve` over stdio and HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from mcp import Client, ClientSession, MCPError
from mcp.shared.memory import create_client_server_memory_streams

from pellucid import (
    Agent,
    BlobPart,
    DiscoveryError,
    DiscoveryProvider,
    Limits,
    TextPart,
    ToolCall,
    ToolContext,
    ToolRegistry,
    Verdict,
    observe,
    static_tools,
    tool,
)
from pellucid.adapters.mcp_server import agent_tools, mcp_server
from pellucid.cli import main
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel
from support.hubs import names
from support.mcp_servers import serving
from support.ports import free_port
from support.processes import PATIENCE
from support.runs import results, within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid.selection import Policy
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.integration

MODULE = '''
import subprocess
import sys

from pellucid import Agent, ToolRegistry
from pellucid.testing import ScriptedModel

print("a stray line")
subprocess.run([sys.executable, "-c", "print('a stray line of a process')"], check=True)


def rooms(floor: int) -> list[str]:
    """List the rooms of a floor."""
    return [f"{floor}-1", f"{floor}-2"]


registry = ToolRegistry([rooms], id="rooms")
agent = Agent("porter", model=ScriptedModel(*["Room 7."] * 9), description="Finds rooms.")
'''


@tool
def rooms(floor: int) -> dict[str, int]:
    """Count the rooms of a floor."""
    return {"count": floor * 10}


@tool
def picture() -> tuple[TextPart, BlobPart]:
    """Return a picture."""
    return TextPart("a cat"), BlobPart(content="aGVsbG8=", modality="image", mime_type="image/png")


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


@tool
def broken(ctx: ToolContext) -> str:
    """Fail."""
    raise OSError("the disk is full")


@pytest.mark.anyio
async def test_a_client_uses_a_provider(telemetry: Captured) -> None:
    """Tools, data, pictures and failures arrive; a request is one span, in the trace of the client's run."""
    server = mcp_server(ToolRegistry([rooms, picture, pay, broken], id="desk"))
    provider = MCPProvider.connect(server, id="client")
    calls = [ToolCall("rooms", {"floor": 2}), ToolCall("picture"), ToolCall("pay"), ToolCall("broken")]
    model = ScriptedModel(calls, "done")
    run = await within(Agent("a", model=model, providers=[provider]).run("x"))
    await provider.aclose()
    count, cat, refused, failed = results(run)
    assert count.response == {"count": 20}
    assert cat.response == (
        TextPart("a cat"), BlobPart(content="aGVsbG8=", modality="image", mime_type="image/png"),
    )  # fmt: skip
    assert refused.is_error
    assert "a person must approve" in str(refused.response)
    assert failed.is_error
    assert "the disk is full" in str(failed.response)
    served = [span for span in telemetry.find("execute_tool rooms") if "pellucid.run.id" not in (span.attributes or {})]
    assert len(served) == 1
    assert {span.context.trace_id for span in telemetry.spans} == {served[0].context.trace_id}


@pytest.mark.anyio
async def test_a_client_gets_output_schemas() -> None:
    """With the structured content that fits; a schema that is not of an object is not served, as MCP forbids it."""

    @tool
    def floors() -> list[int]:
        """List the floors."""
        return [1, 2]

    server = mcp_server(static_tools([rooms, floors]))
    with anyio.fail_after(60):
        async with Client(server) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            counted = await client.call_tool("rooms", {"floor": 2})
            listing = await client.call_tool("floors", {})
    assert listed["rooms"].output_schema == rooms.output_schema
    assert rooms.output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert counted.structured_content == {"count": 20}
    assert (listed["floors"].output_schema, listing.structured_content) == (None, None)


@pytest.mark.anyio
async def test_a_cut_result_of_an_output_schema_is_an_error_for_clients() -> None:
    """They would refuse one without the promised data; so they get what is left of it."""
    server = mcp_server(observe(static_tools([rooms]), limits=Limits(max_result_bytes=5)))
    with anyio.fail_after(60):
        async with Client(server) as client:
            await client.list_tools()
            result = await client.call_tool("rooms", {"floor": 2})
    assert result.is_error
    assert "[cut: 13 bytes in all" in str(result.content)


@pytest.mark.anyio
async def test_agents_are_tools(telemetry: Captured) -> None:
    """A client runs an agent by a call."""
    porter = Agent("porter", model=ScriptedModel("Room 7."), description="Finds rooms.")
    provider = observe(MCPProvider.connect(mcp_server(agent_tools([porter])), id="client"))
    assert names(await within(provider.list_tools())) == ["porter"]
    assert (await within(provider.call_tool("porter", {"input": "a room, please"}))).response == "Room 7."
    await provider.aclose()


@pytest.mark.anyio
async def test_a_hub_that_fails_is_an_error_of_the_protocol() -> None:
    """Clients learn the type of the failure, without details."""
    hub = DiscoveryProvider(FakeHub(faults=[OSError("secret path")] * 9), id="hub")
    provider = MCPProvider.connect(mcp_server(hub), id="client")
    with pytest.raises(DiscoveryError, match=r"the tools of 'hub' cannot be listed now \(OSError\)") as raised:
        await within(observe(provider).list_tools())
    assert "secret" not in str(raised.value)
    await provider.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("policy", [None, lambda _request: Verdict("halt", "secret path")], ids=["hub", "policy"])
async def test_a_call_that_cannot_list_first(policy: Policy | None) -> None:
    """It fails as a listing does, also with clients of the protocol before, which get other errors with their text."""
    hub = FakeHub([rooms], faults=[OSError("secret path")] if policy is None else [])
    server = mcp_server(observe(DiscoveryProvider(hub, id="hub"), policy=policy))
    async with create_client_server_memory_streams() as (streams, ours), anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, *ours, server.create_initialization_options())
        async with ClientSession(*streams) as session:
            await session.initialize()
            with pytest.raises(MCPError, match=r"the tools of 'hub' cannot be listed now \((OSError|policy_halt)\)"):
                await within(session.call_tool("rooms", {}))
        tasks.cancel_scope.cancel()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the module to serve."""
    (tmp_path / "place.py").write_text(MODULE)
    return tmp_path


@pytest.mark.anyio
async def test_stdio(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any client starts it as a process; what its modules and their processes print does not disturb the protocol."""
    command = (sys.executable, "-m", "pellucid", "mcp", "serve", "place:registry")
    provider = observe(MCPProvider.stdio(*command, id="client", cwd=folder, env=dict(os.environ)))
    assert (await within(provider.call_tool("rooms", {"floor": 3}))).response == '["3-1", "3-2"]'
    await provider.aclose()
    assert caplog.records == []  # of the client, about lines that are no messages


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_stdio(folder: Path, stop: signal.Signals) -> None:
    """At once, although the client says nothing and stays."""
    command = [sys.executable, "-m", "pellucid", "mcp", "serve", "place:registry"]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(stop)
        try:
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.fixture
def address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a server that needs a token; SIGTERM ends it, without an error and a secret in its log."""
    monkeypatch.setenv("PELLUCID_API_TOKEN", "of-a-test")
    port = free_port()
    command = [sys.executable, "-m", "pellucid", "mcp", "serve", "place:agent", "--http", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if "Uvicorn running" in line:
            break
    else:
        pytest.fail("".join(seen))
    yield f"http://127.0.0.1:{port}/mcp"
    process.send_signal(signal.SIGTERM)
    log = process.stdout.read()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    assert "401 Unauthorized" in log
    assert "Traceback" not in log
    assert "key" not in log


@pytest.mark.anyio
async def test_a_call_over_http_lists_nothing(telemetry: Captured) -> None:
    """The MCP SDK checks the headers of a call against the schema that was listed last."""
    server = mcp_server(ToolRegistry([rooms], id="rooms"))
    with serving(server.streamable_http_app) as port:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            await client.list_tools()
            for floor in range(3):
                result = await within(client.call_tool("rooms", {"floor": floor}))
                assert not result.is_error
    assert len(telemetry.find("discover_tools rooms")) == 1
    assert len(telemetry.find("execute_tool rooms")) == 3


@pytest.mark.anyio
async def test_http(address: str) -> None:
    """An agent over streamable HTTP, for callers with the token and nobody else."""
    provider = observe(MCPProvider.http(address, id="client", headers={"Authorization": "Bearer of-a-test"}))
    assert (await within(provider.call_tool("porter", {"input": "a room"}))).response == "Room 7."
    await provider.aclose()
    async with httpx.AsyncClient() as stranger:
        answer = await stranger.post(f"{address}?key=secret", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert (answer.status_code, answer.json()) == (401, {"error": "missing or invalid bearer token"})


def test_a_port_in_use(folder: Path) -> None:
    """The error names it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-m", "pellucid", "mcp", "serve", "place:registry", "--http", "--port", port]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["place:nothing"], "'place:nothing' is not a tool provider, an agent, nor a list of agents"),
        (["place"], "'place' is not a place; write module:name"),
        (["place:registry", "--http", "--host", "0.0.0.0"], "set PELLUCID_API_TOKEN"),
    ],
)
def test_mistakes(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    """They are named before anything is served."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("PELLUCID_API_TOKEN", raising=False)
    assert main(["mcp", "serve", *arguments]) == 2
    assert problem in capsys.readouterr().err
