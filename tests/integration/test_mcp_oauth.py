"""OAuth of MCP servers: tokens that are got, renewed in time, refused, kept, and never seen."""

from __future__ import annotations

import json
import stat
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, Identity, ToolCall
from pellucid.errors import DiscoveryError
from pellucid.mcp import MCPProvider
from pellucid.mcp.oauth import AuthorizationCode, ClientCredentials, FileTokens
from pellucid.testing import FunctionModel
from support.authorization_server import AuthorizationServer, Browser
from support.mcp_servers import serving
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid.models import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]
SECRET = "client secret of the application"


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    """An authorization server with its MCP server, and one client that it knows."""
    server = AuthorizationServer(clients={"robot": SECRET}, secrets=[SECRET])
    with serving(server.app) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


def robot(server: AuthorizationServer, **options: Any) -> MCPProvider:
    """Return a provider that authorizes itself."""
    auth = ClientCredentials("robot", SECRET, issuer=server.url, **options)
    return MCPProvider.http(f"{server.url}/mcp", id="crm", auth=auth, ttl=60)


def person(server: AuthorizationServer, browser: Browser, **options: Any) -> MCPProvider:
    """Return a provider that asks a person."""
    auth = AuthorizationCode("http://127.0.0.1:1/back", ask=browser.open, answered=browser.answered, **options)
    return MCPProvider.http(f"{server.url}/mcp", id="crm", auth=auth, ttl=60)


def caller(request: ModelRequest) -> str | ToolCall:
    """Call the tool, then answer with its result."""
    last = request.messages[-1]
    return str(last.tool_results[0].response) if last.tool_results else ToolCall("look_up", {})


async def ask(provider: MCPProvider, **identity: str) -> str:
    """Run an agent that calls the tool, and return the tool's result."""
    agent = Agent("a", model=FunctionModel(caller), providers=[provider])
    return str((await within(agent.run("Look it up", identity=Identity(**identity)))).output)


async def test_an_application_authorizes_itself(server: AuthorizationServer) -> None:
    """An application gets a token with its first request, and uses it for the others."""
    async with robot(server) as provider:
        assert await ask(provider) == "found"
        assert await ask(provider) == "found"
    assert server.grants == ["client_credentials"]
    assert server.unauthorized == 1


async def test_a_person_authorizes_an_agent(server: AuthorizationServer) -> None:
    """A person authorizes an agent by discovery, registration and a code with its verifier, for each identity alone."""
    browser = Browser()
    async with person(server, browser) as provider:
        assert await ask(provider, principal="ann") == "found"
        assert await ask(provider, principal="ann", conversation_id="2") == "found"
        assert await ask(provider, principal="bob") == "found"
    assert browser.opened == 2
    assert server.grants == ["authorization_code"] * 2


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_a_client_that_was_registered_by_hand(server: AuthorizationServer, secret: str | None) -> None:
    """A client that was registered by hand is used where the server registers nobody, with a secret or without."""
    server.registers = False
    server.clients = {"desk": secret}
    client = {"client_id": "desk", "client_secret": secret, "issuer": server.url}
    async with person(server, Browser(), **client) as provider:
        assert await ask(provider, principal="ann") == "found"
        server.revoke()
        assert await ask(provider, principal="ann") == "found"
    assert server.grants == ["authorization_code", "refresh_token"]
    assert {token.client_id for token in server.tokens.values()} == {"desk"}


async def test_a_client_of_another_server(server: AuthorizationServer) -> None:
    """The secret of a client of another server is not sent, and the application registers itself."""
    client = {"client_id": "desk", "client_secret": SECRET, "issuer": "https://auth.example.com"}
    async with person(server, Browser(), **client) as provider:
        assert await ask(provider, principal="ann") == "found"
    assert "desk" not in {token.client_id for token in server.tokens.values()}


@pytest.mark.parametrize("client", [{"client_id": "desk"}, {"issuer": "https://x.example"}, {"client_secret": "s"}])
def test_half_a_client(client: Any) -> None:
    """An id without its issuer, and a secret without an id, are refused."""
    with pytest.raises(ConfigError, match=r"AuthorizationCode\(client_id=\.\.\., issuer=\.\.\.\): give both"):
        AuthorizationCode("http://127.0.0.1:1/back", ask=Browser().open, answered=Browser().answered, **client)


@pytest.mark.parametrize("fault", [{"status": 201}, {"secret_without_method": True}])
async def test_servers_of_others(server: AuthorizationServer, fault: dict[str, Any]) -> None:
    """A token endpoint may answer 201, also to a refresh, and a registration with a secret may name no method."""
    for name, value in fault.items():
        setattr(server, name, value)
    async with person(server, Browser()) as provider:
        assert await ask(provider, principal="ann") == "found"
        server.revoke()
        assert await ask(provider, principal="ann") == "found"
    assert server.grants == ["authorization_code", "refresh_token"]


async def test_a_token_is_renewed_before_it_expires(server: AuthorizationServer) -> None:
    """A token is renewed before it expires, so that no request is refused."""
    server.announced = 1
    browser = Browser()
    async with person(server, browser) as provider:
        await ask(provider, principal="ann")
        refused = server.unauthorized
        with anyio.fail_after(60):
            while "refresh_token" not in server.grants:
                assert await ask(provider, principal="ann") == "found"
    assert server.unauthorized == refused
    assert browser.opened == 1


@pytest.mark.parametrize("clock", [-86400.0, 86400.0])
async def test_clocks_that_differ(server: AuthorizationServer, clock: float) -> None:
    """A server whose clock differs works, since lifetimes of tokens are relative."""
    server.clock = clock
    async with robot(server) as provider:
        assert await ask(provider) == "found"
    assert server.grants == ["client_credentials"]


async def test_one_refresh_for_all(server: AuthorizationServer) -> None:
    """Requests that are refused at once, because all tokens are revoked, share one refresh."""
    async with person(server, Browser()) as provider:
        await ask(provider, principal="ann")
        server.revoke()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(lambda: ask(provider, principal="ann"))
    assert server.grants == ["authorization_code", "refresh_token"]


async def test_calls_overlap(server: AuthorizationServer) -> None:
    """A call that takes long does not hold up others that have the same token."""
    server.together = 3
    async with robot(server) as provider, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask, provider)
    assert server.grants == ["client_credentials"]


async def test_a_refused_refresh_token(server: AuthorizationServer) -> None:
    """A person is asked again if the refresh token is refused, too."""
    browser = Browser()
    async with person(server, browser) as provider:
        await ask(provider, principal="ann")
        server.revoke()
        server.refuses_refresh = True
        assert await ask(provider, principal="ann") == "found"
    assert server.grants == ["authorization_code", "refresh_token", "authorization_code"]
    assert browser.opened == 2


async def test_tokens_outlive_the_process(server: AuthorizationServer, tmp_path: Path) -> None:
    """Tokens, their expiry and the registration are kept in files of the user alone, and renewed after a restart."""
    browser = Browser()
    for _ in range(2):
        async with person(server, browser, tokens=FileTokens(tmp_path / "tokens")) as provider:
            assert await ask(provider, principal="ann") == "found"
        server.revoke()
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "tokens").iterdir()} == {0o600}
    (file,) = (tmp_path / "tokens").glob("*.json")
    assert set(json.loads(file.read_text())) == {"tokens", "expires_at", "client"}
    assert browser.opened == 1
    assert server.grants == ["authorization_code", "refresh_token"]
    file.write_text("[")
    with pytest.raises(DiscoveryError, match="does not hold OAuth tokens; delete it"):
        await ask(person(server, browser, tokens=FileTokens(tmp_path / "tokens")), principal="ann")


async def test_processes_share_tokens(server: AuthorizationServer, tmp_path: Path) -> None:
    """Processes that share a folder of tokens share one refresh after a refusal."""
    browser = Browser()
    providers = [person(server, browser, tokens=FileTokens(tmp_path)) for _ in range(3)]
    async with providers[0], providers[1], providers[2]:
        for provider in providers:
            assert await ask(provider, principal="ann") == "found"
        server.revoke()
        async with anyio.create_task_group() as tasks:
            for provider in providers:
                tasks.start_soon(partial(ask, provider, principal="ann"))
    assert server.grants == ["authorization_code", "refresh_token"]
    assert browser.opened == 1


async def test_more_scopes(server: AuthorizationServer) -> None:
    """A call that needs another scope gets a token that has both."""
    async with robot(server, scope="tools") as provider:
        await ask(provider)
        server.needed_scope = "write"
        assert await ask(provider) == "found"
    assert [token.scope for token in server.tokens.values()] == ["tools", "tools write"]


async def test_a_scope_that_is_not_granted(server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope that the server asks for and does not grant is named to the model."""
    async with robot(server, scope="tools") as provider:
        await ask(provider)
        issue = server._issue
        monkeypatch.setattr(server, "_issue", lambda client, _scope, **options: issue(client, "tools", **options))
        server.needed_scope = "write"
        assert "the server asks for the scopes 'write'; granted are 'tools'" in await ask(provider)


async def test_failures_have_no_secrets(
    server: AuthorizationServer, telemetry: Captured, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A token that cannot be had fails the run by the server's refusal and the reason; secrets are nowhere."""
    caplog.set_level("DEBUG")
    caplog.set_level("INFO", "httpcore2.http11")  # the browser's redirect has the code
    tokens = FileTokens(tmp_path)
    async with person(server, Browser(), tokens=tokens) as provider:
        await ask(provider, principal="ann")
        server.revoke()
        server.refuses_refresh = True
        server.clients.clear()
        answer = await ask(provider, principal="ann")
    assert "401" in answer
    assert "OAuth failed: the token endpoint answered 'invalid_client' with HTTP status 401" in answer
    seen = answer + caplog.text + repr(provider) + repr(tokens) + repr(ClientCredentials("robot", SECRET, issuer="x"))
    seen += "".join(span.to_json() for span in telemetry.spans)
    assert [secret for secret in server.secrets if secret in seen] == []


async def test_an_authorization_server_that_is_down(
    server: AuthorizationServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that cannot be renewed is used until the server refuses it; then the run fails and says why."""
    server.lifetime = 2.0
    async with person(server, Browser()) as provider:
        await ask(provider, principal="ann")
        server.is_down = True
        with anyio.fail_after(60):
            while (answer := await ask(provider, principal="ann")) == "found":
                pass
    assert "was not renewed: the token endpoint answered HTTP status 503" in caplog.text
    assert "HTTP status 401 (Unauthorized); OAuth failed: the token endpoint answered HTTP status 503" in answer


async def test_an_unknown_client(server: AuthorizationServer) -> None:
    """A wrong secret is the authorization server's refusal, with the kind auth."""
    server.clients["robot"] = "another"
    with pytest.raises(DiscoveryError, match="invalid_client") as caught:
        async with robot(server):
            pass
    assert caught.value.error_kind == "auth"


def test_a_storage_instead_of_a_function() -> None:
    """Tokens of identities need a storage for each."""
    with pytest.raises(ConfigError, match="tokens="):
        ClientCredentials("robot", SECRET, issuer="https://x.example", tokens=object())  # type: ignore[arg-type]
