"""OAuth for MCP servers over HTTP: the MCP SDK's flows, with tokens that are renewed in time and kept.

```python
MCPProvider.http(url, id="crm", auth=ClientCredentials("my-client", secret, issuer="https://auth.example.com"))
MCPProvider.http(url, id="crm", auth=AuthorizationCode(redirect_uri, ask=open_page, answered=wait_for_code))
```

Discovery of metadata (RFC 9728, RFC 8414), registration (RFC 7591), PKCE (RFC 7636) and resource indicators (RFC 8707)
are the SDK's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import httpx2
from mcp.client.auth import TokenStorage
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata

from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.mcp.oauth_flow import ApplicationFlow, Flow, OAuth
from pellucid.mcp.tokens import FileTokens, MemoryTokens, Tokens

__all__ = ["AuthorizationCode", "ClientCredentials", "FileTokens", "MemoryTokens", "Tokens"]


@dataclass(frozen=True)
class ClientCredentials:
    """Authorize the application itself, by an id and a secret that the authorization server issued (RFC 6749, 4.4).

    Args:
        client_id: The client's id.
        client_secret: The client's secret.
        issuer: Issuer URL of the authorization server; the secret is sent to no other.
        scope: Scopes to request, separated by spaces.
        tokens: Where tokens are kept.
    """

    client_id: str
    client_secret: str = field(repr=False)
    _: KW_ONLY
    issuer: str
    scope: str | None = None
    tokens: Tokens = field(default_factory=MemoryTokens)

    by_identity: Final = False

    def __post_init__(self) -> None:
        _check(self.tokens)

    def for_server(self, url: str, identity: Identity | None) -> httpx2.Auth:
        """Return the authentication for a server."""
        storage = self.tokens(url, identity)
        return OAuth(
            ApplicationFlow(url, storage, self.client_id, self.client_secret, scope=self.scope, issuer=self.issuer)
        )


@dataclass(frozen=True)
class AuthorizationCode:
    """Authorize a person, who is sent to the authorization server's page (RFC 6749, 4.1, with PKCE).

    Each identity is authorized on its own. The application registers itself with the authorization server when it is
    first used (RFC 7591), unless it has a `client_id` or a `client_metadata_url`.

    Args:
        redirect_uri: Where the server sends the person back to.
        ask: Sends the person to a URL, for example by opening it in a browser: `await ask(url, identity)`.
        answered: Waits until the person comes back, and returns the parameters of the redirect URI as an
            `mcp.shared.auth.AuthorizationCodeResult`: `await answered(identity)`.
        client_id: Id of a client that you have registered with the authorization server.
        client_secret: Its secret, if it has one.
        issuer: Issuer URL of that authorization server; the client is used with no other.
        client_name: Name of the application on the server's page.
        scope: Scopes to request, separated by spaces; those that the server asks for by default.
        client_metadata_url: URL of the client's metadata, for servers that take it instead of a registration.
        tokens: Where tokens and registrations are kept.

    Raises:
        ConfigError: `client_id` and `issuer` are not given together, or another option is invalid.
    """

    redirect_uri: str
    _: KW_ONLY
    ask: Callable[[str, Identity | None], Awaitable[None]]
    answered: Callable[[Identity | None], Awaitable[AuthorizationCodeResult]]
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    issuer: str | None = None
    client_name: str = "Pellucid agent"
    scope: str | None = None
    client_metadata_url: str | None = None
    tokens: Tokens = field(default_factory=MemoryTokens)

    by_identity: Final = True

    def __post_init__(self) -> None:
        _check(self.tokens)
        if (self.client_id is None) != (self.issuer is None) or (self.client_secret and self.client_id is None):
            raise ConfigError(
                "OAuth: AuthorizationCode(client_id=..., issuer=...): give both, and client_secret= if the client has "
                "one; or none of them, and the application registers itself"
            )

    def for_server(self, url: str, identity: Identity | None) -> httpx2.Auth:
        """Return the authentication of an identity for a server."""

        async def ask(page: str) -> None:
            await self.ask(page, identity)

        async def answered() -> AuthorizationCodeResult:
            return await self.answered(identity)

        metadata = OAuthClientMetadata.model_validate(
            {"redirect_uris": [self.redirect_uri], "client_name": self.client_name, "scope": self.scope}
        )
        storage = self.tokens(url, identity)
        if self.client_id is not None:
            storage = _Registered(storage, self._client(self.client_id))
        return OAuth(Flow(url, metadata, storage, ask, answered, self.client_metadata_url))

    def _client(self, client_id: str) -> OAuthClientInformationFull:
        return OAuthClientInformationFull.model_validate(
            {
                "client_id": client_id,
                "client_secret": self.client_secret,
                "redirect_uris": [self.redirect_uri],
                "token_endpoint_auth_method": None if self.client_secret else "none",
                "issuer": self.issuer,
            }
        )


class _Registered:
    """Storage of tokens of a client that is registered already."""

    def __init__(self, storage: TokenStorage, client: OAuthClientInformationFull) -> None:
        self._storage = storage
        self._client = client
        self.get_tokens = storage.get_tokens
        self.set_tokens = storage.set_tokens
        self.exclusive = getattr(storage, "exclusive", nullcontext)

    async def get_client_info(self) -> OAuthClientInformationFull:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a client that another authorization server has registered."""
        await self._storage.set_client_info(client_info)


def _check(tokens: object) -> None:
    if not callable(tokens):
        raise ConfigError(
            f"OAuth: tokens={type(tokens).__name__} must be FileTokens, MemoryTokens, or a function of the server's "
            f"URL and the identity that returns a TokenStorage of the MCP SDK"
        )
