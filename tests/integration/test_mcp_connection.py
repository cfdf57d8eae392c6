"""Connecting to MCP servers, losing them, and closing."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client._memory import InMemoryTransport
from starlette.applications import Starlette

from pellucid import ConfigError, DiscoveryContext, DiscoveryError, Tool, ToolContext, ToolError
from pellucid.errors import DiscoveryBackoff
from pellucid.mcp import MCPProvider
from support.mcp_servers import modern_server, serving
from support.processes import python

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_servers.py")
CTX = ToolContext()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


async def tools_of(provider: MCPProvider) -> dict[str, Tool]:
    """Return a provider's tools by name."""
    return {tool.name: tool for tool in await provider.list_tools(DiscoveryContext())}


def process() -> MCPProvider:
    """Return a provider of a server process."""
    return MCPProvider.stdio(*python(SCRIPT, "modern"), id="demo")


async def pid_of(provider: MCPProvider) -> int:
    """Return the id of the server's process."""
    answer = await (await tools_of(provider))["pid"].run({}, CTX)
    number: int = answer["result"]
    return number


def alive(pid: int) -> bool:
    """Say whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_real_time_server() -> None:
    """`mcp-server-time` lists its tools and answers a call."""
    with anyio.fail_after(60):
        async with MCPProvider.stdio(sys.executable, "-m", "mcp_server_time", id="time") as provider:
            tools = await tools_of(provider)
            assert {"get_current_time", "convert_time"} <= tools.keys()
            answer = await tools["get_current_time"].run({"timezone": "Europe/Berlin"}, CTX)
            assert "Europe/Berlin" in str(answer)


async def test_the_real_git_server(tmp_path: Path) -> None:
    """`mcp-server-git` lists its tools and tells the status of a repository."""
    with anyio.fail_after(60):
        await anyio.run_process(["git", "init", "-q", str(tmp_path)])
        async with MCPProvider.stdio(sys.executable, "-m", "mcp_server_git", id="git") as provider:
            tools = await tools_of(provider)
            answer = await tools["git_status"].run({"repo_path": str(tmp_path)}, CTX)
            assert "branch" in str(answer)


async def test_a_process_killed_while_idle_is_started_again() -> None:
    """The next listing connects once more, without an error and without a pause."""
    with anyio.fail_after(60):
        async with process() as provider:
            first = await pid_of(provider)
            os.kill(first, signal.SIGKILL)
            second = await pid_of(provider)
            assert second != first


async def test_closing_ends_the_process() -> None:
    """After `aclose` the process is gone; closing again does nothing, and using the provider says that it is closed."""
    provider = process()
    with anyio.fail_after(60):
        tools = await tools_of(provider)
        pid = await pid_of(provider)
        await provider.aclose()
        await provider.aclose()
        assert not alive(pid)
        with pytest.raises(DiscoveryError, match="was closed"):
            await provider.list_tools(DiscoveryContext())
        with pytest.raises(ToolError, match="was closed"):
            await tools["add"].run({"a": 1, "b": 1}, CTX)


async def test_closing_fails_calls_under_way() -> None:
    """A call that is waiting when the provider is closed ends with an error instead of hanging."""
    failures = []
    provider = process()
    with anyio.fail_after(60):
        tools = await tools_of(provider)

        async def call() -> None:
            try:
                await tools["slow"].run({}, CTX)
            except ToolError as error:
                failures.append(error.error_type)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await tools["add"].run({"a": 1, "b": 1}, CTX)  # sent after the slow one
            await provider.aclose()
    assert failures == ["connection_lost"]


async def test_a_provider_may_be_closed_by_another_task_than_the_one_that_connected() -> None:
    """Open, call and close in three tasks, one of them cancelled meanwhile: no scope is left in the wrong task."""
    provider = MCPProvider.connect(InMemoryTransport(modern_server()), id="demo")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tools_of, provider)
        tools = await tools_of(provider)
        with anyio.move_on_after(0.05):
            await tools["slow"].run({}, CTX)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tools["lines"].run, {}, CTX)
            tasks.start_soon(tools["lines"].run, {}, CTX)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.aclose)


async def test_a_command_that_fails_tells_why_and_is_left_alone_for_a_moment() -> None:
    """The error has what the process wrote; asking again at once is refused without starting it."""
    provider = MCPProvider.stdio(sys.executable, "-c", "import sys; sys.exit('no licence')", id="bad")
    with anyio.fail_after(60):
        with pytest.raises(DiscoveryError, match="no licence"):
            await provider.list_tools(DiscoveryContext())
        with pytest.raises(DiscoveryBackoff) as refused:
            await provider.list_tools(DiscoveryContext())
        await provider.aclose()
    assert 0 < refused.value.retry_after <= 0.5


async def test_a_command_that_does_not_exist_is_a_discovery_error() -> None:
    """The operating system's own error stays the cause."""
    provider = MCPProvider.stdio("/no/such/server", id="bad")
    with anyio.fail_after(60), pytest.raises(DiscoveryError, match="/no/such/server") as failed:
        await provider.list_tools(DiscoveryContext())
    assert isinstance(failed.value.__cause__, FileNotFoundError)


async def test_a_server_that_is_not_there_is_a_discovery_error() -> None:
    """The HTTP library's own error stays the cause, dug out of its groups."""
    with serving(Starlette) as port:
        pass
    provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="bad")
    with anyio.fail_after(60), pytest.raises(DiscoveryError, match="ConnectError") as failed:
        await provider.list_tools(DiscoveryContext())
    assert type(failed.value.__cause__).__name__ == "ConnectError"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("htp://ann:hunter2@host/mcp", "'htp://host/mcp' is not the URL"),
        ("host/mcp?api_key=hunter2#hunter2", "'host/mcp' is not the URL"),
        ("ann:hunter2@host", "'host' is not the URL"),
        ("ftp://ann:hun/hunter2@host", "'ftp://…' is not the URL"),
    ],
)
async def test_a_url_that_is_none_is_refused_without_its_secrets(url: str, shown: str) -> None:
    """User information, query and fragment are not quoted."""
    for connect in (MCPProvider.http, MCPProvider.connect):
        with pytest.raises(ConfigError, match=re.escape(shown)) as caught:
            connect(url, id="x")
        assert "hunter2" not in str(caught.value)


async def test_an_http_status_is_told() -> None:
    """A server that answers 404 to everything is named with that status."""
    with serving(Starlette) as port, anyio.fail_after(60):
        provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="bad")
        with pytest.raises(DiscoveryError, match="HTTP status 404"):
            await provider.list_tools(DiscoveryContext())


async def test_an_http_server_that_was_restarted_is_found_again() -> None:
    """While it is away the listing fails loudly; when it is back, it works."""
    with anyio.fail_after(40):
        with serving(modern_server().streamable_http_app) as port:
            provider = MCPProvider.http(f"http://127.0.0.1:{port}/mcp", id="demo")
            await tools_of(provider)
        with pytest.raises(DiscoveryError) as away:
            await tools_of(provider)
        assert not isinstance(away.value, DiscoveryBackoff)
        with serving(modern_server().streamable_http_app, port):
            while True:
                try:
                    tools = await tools_of(provider)
                    break
                except DiscoveryBackoff as backoff:
                    await anyio.sleep(backoff.retry_after)
            assert await tools["add"].run({"a": 1, "b": 2}, CTX) == {"result": 3}
            await provider.aclose()


async def test_cancelling_who_connects_leaves_nothing_behind() -> None:
    """A connection that nobody waits for any longer is given up, and the next caller makes a new one."""
    provider = process()
    with anyio.fail_after(60):
        with anyio.move_on_after(0.05):
            await tools_of(provider)
        assert await pid_of(provider)
        await provider.aclose()
    assert not provider._pool.connections


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_event_loop_has_a_connection_of_its_own(backend: str) -> None:
    """Two loops in turn and two at the same time work; what a loop leaves open ends with it."""
    provider = process()
    pids = []

    async def use() -> None:
        with anyio.fail_after(60):
            pids.append(await pid_of(provider))

    anyio.run(use, backend=backend)
    anyio.run(use, backend=backend)
    threads = [threading.Thread(target=anyio.run, args=(use,), kwargs={"backend": backend}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(pids)) == 4
    assert not any(map(alive, pids))
    assert not provider._pool.connections


async def test_closing_reaches_the_connections_of_other_loops() -> None:
    """`aclose` in one loop ends the process that another loop started, and waits for it."""
    provider = process()
    pids: list[int] = []
    ready, done = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        pids.append(await pid_of(provider))
        ready.set()
        await anyio.to_thread.run_sync(done.wait, 20)

    thread = threading.Thread(target=anyio.run, args=(elsewhere,))
    thread.start()
    try:
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(ready.wait, 10)
            await provider.aclose()
            assert not alive(pids[0])
    finally:
        done.set()
        thread.join(60)


async def test_what_a_provider_can_be_made_of() -> None:
    """Parameters of a process, a transport and a function that makes one are taken; a transport serves only once."""
    with anyio.fail_after(60):
        parameters = StdioServerParameters(command=python()[0], args=python(SCRIPT, "modern")[1:])
        async with MCPProvider.connect(parameters, id="a") as provider:
            assert provider.kind == "mcp.stdio"
            assert "add" in await tools_of(provider)
        async with MCPProvider.connect(lambda: InMemoryTransport(modern_server()), id="b") as provider:
            assert "add" in await tools_of(provider)
        provider = MCPProvider.connect(InMemoryTransport(modern_server()), id="c")
        await tools_of(provider)
        for connection in list(provider._pool.connections):
            connection.close()
            await connection.wait_closed()
        with pytest.raises(DiscoveryError, match="pass a function that returns a new one"):
            await tools_of(provider)


def test_options_that_make_no_sense_are_refused() -> None:
    """Each names the provider or the option."""
    with pytest.raises(ConfigError, match="name"):
        MCPProvider.connect(modern_server(), id="")
    with pytest.raises(ConfigError, match="timeout"):
        MCPProvider.connect(modern_server(), id="a", timeout=0)
    with pytest.raises(ConfigError, match="ttl"):
        MCPProvider.connect(modern_server(), id="a", ttl=-1)
    with pytest.raises(ConfigError, match="http"):
        MCPProvider.http("ftp://x.test", id="a")
    with pytest.raises(ConfigError, match="not an MCP server"):
        MCPProvider.connect(42, id="a")  # type: ignore[arg-type]  # what is tested


def test_the_mcp_sdk_is_optional() -> None:
    """`import pellucid` does not load it; `import pellucid.mcp` without it says what to install."""
    code = (
        "import sys, pellucid; assert 'mcp' not in sys.modules; sys.modules['mcp'] = None\n"
        "try:\n    import pellucid.mcp\nexcept pellucid.ConfigError as error:\n    print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'pellucid[mcp]'" in answer.stdout
