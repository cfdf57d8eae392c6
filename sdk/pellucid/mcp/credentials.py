"""Credentials for a server over HTTP: headers and authentication by identity."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

import httpx2

from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.failures import describe, error_type_of

Headers: TypeAlias = Mapping[str, str] | Callable[[Identity | None], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers of each request, or a function of the identity, sync or async, that is called for each request."""

_IS_OF_AUTH: Final = "pellucid_is_of_auth"


class Authentication(Protocol):
    """Makes the authentication of requests to a server, such as `pellucid.mcp.oauth.ClientCredentials`."""

    @property
    def by_identity(self) -> bool:
        """True if each identity authenticates on its own."""

    def for_server(self, url: str, identity: Identity | None) -> httpx2.Auth:
        """Return the authentication of an identity; None if all identities share it."""


Auth: TypeAlias = httpx2.Auth | Authentication | Callable[[Identity | None], httpx2.Auth]
"""Authentication of all identities, or of each one."""


class HeadersFailed(Exception):
    """The application's function for headers failed. Nothing was sent."""

    def __init__(self, error: Exception) -> None:
        self.error_type = error_type_of(error)
        super().__init__(f"the function given as headers= failed, so nothing was sent: {describe(error)}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Credentials:
    """Headers and authentication of requests to one server; `MCPProvider.http` documents them."""

    url: str
    headers: Headers | None = None
    auth: Auth | None = None
    idle_timeout: float = 300.0

    def __post_init__(self) -> None:
        headers: object = self.headers
        auth: object = self.auth
        if not self.idle_timeout > 0:
            raise _invalid("idle_timeout", self.idle_timeout, "give a positive number of seconds")
        if headers is not None and not callable(headers) and not isinstance(headers, Mapping):
            remedy = "give a mapping of names to values, or a function of the identity that returns one"
            raise _invalid("headers", type(headers).__name__, remedy)
        if not (auth is None or isinstance(auth, httpx2.Auth) or callable(auth) or hasattr(auth, "for_server")):
            remedy = "give one of pellucid.mcp.oauth, an httpx2.Auth, or a function of the identity that returns one"
            raise _invalid("auth", type(auth).__name__, remedy)

    @property
    def static_headers(self) -> Mapping[str, str]:
        """Headers of every request, beneath those that the protocol and the authentication set."""
        return {} if self.headers is None or callable(self.headers) else dict(self.headers)

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of headers that the authentication sets."""
        return ("authorization",) if self.auth is not None else ()

    @property
    def by_identity(self) -> bool:
        """True if requests of different identities have different credentials."""
        return callable(self.headers) or (
            self.auth is not None and not isinstance(self.auth, httpx2.Auth) and getattr(self.auth, "by_identity", True)
        )

    def holder(self, identity: Identity | None) -> Identity | None:
        """Return whom the credentials depend on: tenant and principal; None if it is nobody in particular."""
        if identity is None or not self.by_identity:
            return None
        return replace(identity, conversation_id=None)

    def client_auth(self, holder: Identity | None) -> httpx2.Auth | None:
        """Return the authentication of an HTTP client for one holder."""
        auth = self.auth
        if auth is None or isinstance(auth, httpx2.Auth):
            made = auth
        elif callable(auth):
            made = auth(holder)
        else:
            made = auth.for_server(self.url, holder)
        return _MarkedAuth(made) if made is not None else None

    async def headers_for(self, holder: Identity | None) -> Mapping[str, str]:
        """Return what the application's function says for one request; nothing without a function.

        Raises:
            HeadersFailed: the application's function failed, or returned something else.
        """
        if not callable(self.headers):
            return {}
        try:
            made = self.headers(holder)
            headers = await made if inspect.isawaitable(made) else made
            return httpx2.Headers(headers)  # checks types
        except Exception as error:
            raise HeadersFailed(error) from error


def _invalid(option: str, value: object, remedy: str) -> ConfigError:
    return ConfigError(f"MCPProvider.http({option}={value}): {remedy}")


def is_of_auth(request: httpx2.Request) -> bool:
    """Return whether an authentication made the request, such as for a token, and not a call to the MCP server."""
    return bool(request.extensions.get(_IS_OF_AUTH))


class _MarkedAuth(httpx2.Auth):
    """An authentication whose own requests are marked."""

    def __init__(self, auth: httpx2.Auth) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._auth.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    outgoing.extensions = {**outgoing.extensions, _IS_OF_AUTH: True}
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()
