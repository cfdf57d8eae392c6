"""MCP servers over HTTP that many identities ask: each has its own headers, sessions, tools and failures."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, Identity, ToolCall, combined, gated_tools
from pellucid.errors import DiscoveryError
from pellucid.mcp import MCPProvider
from pellucid.testing import FunctionModel
from support.mcp_servers import serving
from support.runs import within
from support.tenant_server import TenantServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid.models import ModelRequest

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]


@pytest.fixture
def server() -> TenantServer:
    """A server whose tools depend on the token."""
    return TenantServer()


@pytest.fixture
def url(server: TenantServer) -> Iterator[str]:
    """Address of the server."""
    with serving(server.app) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def token_of(identity: Identity | None) -> dict[str, str]:
    """Return the headers of an identity."""
    return {"Authorization": f"Bearer {identity.tenant}"} if identity is not None else {}


def caller(request: ModelRequest) -> str | ToolCall:
    """Call the only tool that there is, then answer with the tools' names and the result."""
    last = request.messages[-1]
    if last.tool_results:
        return f"{[tool.name for tool in request.tools]} {last.tool_results[0].response}"
    return ToolCall(request.tools[0].name, {})


async def test_tenants_never_cross(server: TenantServer, url: str) -> None:
    """Tools, results, sessions and tokens of a tenant are seen by no other, in any order of 500 runs."""
    order = random.Random(37)
    tenants = [f"t{number}" for number in range(10)]
    async with MCPProvider.http(url, id="crm", headers=token_of, ttl=60) as provider:
        agents = {tenant: Agent(tenant, model=FunctionModel(caller), providers=[provider]) for tenant in tenants}

        async def run(tenant: str) -> None:
            identity = Identity(tenant=tenant, conversation_id=str(order.random()))
            result = await agents[tenant].run("Who am I?", identity=identity)
            assert result.output == f"['of_{tenant}'] {tenant}"

        for _ in range(25):
            async with anyio.create_task_group() as tasks:
                for tenant in order.choices(tenants, k=20):
                    tasks.start_soon(run, tenant)
    assert server.crossed == []
    assert set(server.tokens) == set(tenants)


async def test_headers_are_asked_for_each_request(server: TenantServer, url: str) -> None:
    """Headers are asked for each request, so that a token changes without a new connection."""
    served: list[str] = []

    async def headers(identity: Identity | None) -> dict[str, str]:
        served.append(f"{identity.principal if identity else None}{len(served)}")
        return {"Authorization": f"Bearer {served[-1]}"}

    async with MCPProvider.http(url, id="crm", headers=headers, ttl=60) as provider:
        agent = Agent("a", model=FunctionModel(caller), providers=[provider])
        await within(agent.run("Hello", identity=Identity(principal="ann")))
    assert len(served) >= 3
    assert all(token.startswith("ann") for token in served)
    assert served[-1] in server.tokens


async def test_headers_of_the_protocol_stay(url: str) -> None:
    """A mapping of headers adds to those that the protocol needs, and replaces none."""
    headers = {"Authorization": "Bearer me", "Content-Type": "text/plain", "Accept": "text/plain"}
    async with MCPProvider.http(url, id="crm", headers=headers) as provider:
        agent = Agent("a", model=FunctionModel(caller), providers=[provider])
        assert (await within(agent.run("Hello"))).output == "['of_me'] me"


async def test_headers_that_fail(url: str) -> None:
    """A function for headers that fails ends the listing of its caller only, by name."""

    def headers(identity: Identity | None) -> dict[str, str]:
        if identity is not None and identity.tenant == "bad":
            raise LookupError("no secret of this tenant")
        return token_of(identity)

    async with MCPProvider.http(url, id="crm", headers=headers) as provider:
        agent = Agent("a", model=FunctionModel(caller), providers=[provider])
        with pytest.raises(DiscoveryError, match=r"headers= failed.*no secret of this tenant"):
            await within(agent.run("Hello", identity=Identity(tenant="bad")))
        assert (await within(agent.run("Hello", identity=Identity(tenant="good")))).output == "['of_good'] good"


async def test_headers_that_fail_before_a_call(server: TenantServer, url: str) -> None:
    """A call whose headers fail is not sent; the model sees why, and other requests go on."""
    is_broken = False

    def headers(identity: Identity | None) -> dict[str, str]:
        if is_broken:
            raise LookupError("vault sealed")
        return token_of(identity)

    def answer(request: ModelRequest) -> str | ToolCall:
        nonlocal is_broken
        is_broken = not request.messages[-1].tool_results
        return caller(request)

    async with MCPProvider.http(url, id="crm", headers=headers, ttl=60) as provider:
        agent = Agent("a", model=FunctionModel(answer), providers=[provider])
        await within(agent.warm_up(identity=Identity(tenant="t")))
        result = await within(agent.run("Hello", identity=Identity(tenant="t")))
    assert "vault sealed" in result.output
    assert "nothing was sent" in result.output


async def test_idle_connections_close(server: TenantServer, url: str) -> None:
    """The connection of an identity that asks no more is closed, and opened again for its next request."""
    async with MCPProvider.http(url, id="crm", headers=token_of, idle_timeout=0.05) as provider:
        agent = Agent("a", model=FunctionModel(caller), providers=[provider])
        for _ in range(2):
            result = await within(agent.run("Hello", identity=Identity(tenant="t")))
            assert result.output == "['of_t'] t"
            for connection in list(provider._pool.connections):  # not public: nothing else says that there is none
                await within(connection.wait_closed())


async def test_a_connection_whose_request_waits_for_headers_is_not_idle(url: str) -> None:
    """A slow function for headers does not cost the connection that its request is about to use."""
    is_slow = False
    closed: list[object] = []

    async def headers(identity: Identity | None) -> dict[str, str]:
        open_now = [each for each in provider._pool.connections if each.usable]  # not public: nothing else tells
        if is_slow:
            with anyio.move_on_after(0.5):
                for connection in open_now:
                    await connection.wait_closed()
                    closed.append(connection)
        return token_of(identity)

    def answer(request: ModelRequest) -> str | ToolCall:
        nonlocal is_slow
        is_slow = not request.messages[-1].tool_results
        return caller(request)

    async with MCPProvider.http(url, id="crm", headers=headers, idle_timeout=0.1, ttl=60) as provider:
        agent = Agent("a", model=FunctionModel(answer), providers=[provider])
        result = await within(agent.run("Hello", identity=Identity(tenant="t")))
    assert result.output == "['of_t'] t"
    assert closed == []


async def test_a_provider_is_opened_again(url: str) -> None:
    """A provider can be closed and opened any number of times, and is closed with the last of nested contexts."""
    provider = MCPProvider.http(url, id="crm", headers={"Authorization": "Bearer me"})
    agent = Agent("a", model=FunctionModel(caller), providers=[provider])
    for _ in range(2):
        async with provider:
            async with provider:
                pass
            assert (await within(agent.run("Hello"))).output == "['of_me'] me"
        with pytest.raises(DiscoveryError, match="open it again"):
            await within(agent.run("Hello"))


async def test_an_agent_opens_its_providers(url: str) -> None:
    """`async with agent` opens and closes providers, also within wrappers; shared ones close with the last agent."""
    provider = MCPProvider.http(url, id="crm", headers={"Authorization": "Bearer me"})
    wrapped = combined(gated_tools(provider, lambda _tool, _ctx: True))
    agents = [Agent("a", model=FunctionModel(caller), providers=[each]) for each in (provider, wrapped)]
    for _ in range(2):
        async with agents[0]:
            async with agents[1]:
                pass
            for agent in agents:
                assert (await within(agent.run("Hello"))).output == "['of_me'] me"
        with pytest.raises(DiscoveryError, match="open it again"):
            await within(agents[0].run("Hello"))


async def test_an_agent_that_cannot_open(url: str) -> None:
    """An agent that cannot open one provider closes the others, and the error names the one without secrets."""
    good = MCPProvider.http(url, id="good", headers={"Authorization": "Bearer me"})
    bad = MCPProvider.http("http://user:secret@127.0.0.1:1/mcp/secret?key=secret", id="bad")
    with pytest.raises(DiscoveryError, match=r"'bad'.*http://127\.0\.0\.1:1: ") as caught:
        async with Agent("a", model=FunctionModel(caller), providers=[good, bad]):
            pass
    assert "secret" not in str(caught.value)
    assert not good._pool.connections


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"headers": "Bearer x"}, "headers=str"),
        ({"auth": "token"}, "auth=str"),
        ({"idle_timeout": 0}, "idle_timeout=0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], problem: str) -> None:
    """A wrong option raises ConfigError when the provider is made."""
    with pytest.raises(ConfigError, match=problem):
        MCPProvider.http("http://127.0.0.1:1/mcp", id="crm", **options)
