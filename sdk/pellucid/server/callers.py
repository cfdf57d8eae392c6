"""Authentication: callers of runs by a function of the application, outside workers by the token of their call."""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.requests import Request

from pellucid.context import Identity
from pellucid.durable.runs.tokens import CallGrant, CallTokens
from pellucid.durable.store.values import is_storable
from pellucid.errors import ConfigError
from pellucid.server.pages import LOCAL_NAMES, host_of
from pellucid.server.problems import Problem, unauthorized

if TYPE_CHECKING:
    from pellucid.durable import DurableRuns

Authenticate: TypeAlias = Callable[[Request], Identity | Awaitable[Identity | None] | None]
"""Returns the identity of the caller, on whose behalf a run acts; None if the credentials are missing or wrong."""

TOKEN_VARIABLE: Final = "PELLUCID_API_TOKEN"  # noqa: S105  (a name)
"""Variable with the bearer token of callers."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "testclient"})
"""Addresses of callers on this machine; the last one is Starlette's test client."""


async def authenticated(request: Request, authenticate: Authenticate) -> Identity:
    """Return the identity of the caller of a request.

    Raises:
        Problem: 401, the credentials are missing or wrong.
    """
    identity = authenticate(request)
    if isawaitable(identity):
        identity = await identity
    if identity is None:
        raise unauthorized()
    return identity


def bearer(token: str | None = None) -> Authenticate:
    """Return a function that accepts one bearer token, by default that of `PELLUCID_API_TOKEN`.

    Raises:
        ConfigError: there is no token.
    """
    expected = token if token is not None else os.environ.get(TOKEN_VARIABLE, "")
    if not expected:
        raise ConfigError(f"no bearer token for callers; set {TOKEN_VARIABLE}, or pass one")

    def authenticate(request: Request) -> Identity | None:
        return Identity() if hmac.compare_digest(token_of(request).encode(), expected.encode()) else None

    return authenticate


def loopback_only(request: Request) -> Identity:
    """Accept callers on this machine, and nobody else.

    The name of the host must be a local one, too: others may be a web page's, whose owner lets it point here.

    Raises:
        Problem: 401, with the remedy.
    """
    is_local = request.client is not None and request.client.host in LOOPBACK
    if not is_local or host_of(f"//{request.headers.get('host', '')}") not in LOCAL_NAMES:
        raise unauthorized(
            "without a bearer token this server answers programs on its own machine only, under a name such as "
            f"localhost; set {TOKEN_VARIABLE} on the server"
        )
    return Identity()


async def grant_of(token: str, request: Request, tokens: CallTokens, runs: DurableRuns) -> CallGrant:
    """Return what the token of an outside worker allows; nothing is looked up before its signature is checked.

    A token whose call was extended since is valid for as long as a new one would be.

    Raises:
        Problem: 401 without a valid token; 404 if it is for another call.
    """
    grant = tokens.signed(token)
    if grant is None:
        raise unauthorized()
    if grant.result_id != request.path_params["result_id"] or not is_storable(grant.result_id):
        raise unknown_call()
    now = await runs.now()
    if now >= grant.expires_at:
        call = await runs.call(grant.result_id)
        if call is None or call.heartbeat_at is None or now >= tokens.expiry(call.expires_at, call.heartbeat_at):
            raise unauthorized()
    return grant


def unknown_call() -> Problem:
    """Return the problem of a call that does not exist, or for which the token is not."""
    return Problem(404, "Async tool result not found")


def token_of(request: Request) -> str:
    """Return the bearer token of a request; empty if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
