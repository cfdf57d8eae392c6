"""The MCP SDK's OAuth flows, run for many requests at a time: tokens are renewed early, once, and kept."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import fields
from typing import Any, Final

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth

from pellucid.failures import describe
from pellucid.mcp.exchange import explain_refusal
from pellucid.response_limits import Counter, Meter, limiting_hooks

MAX_ANSWER_BYTES: Final = 2**20
TIMEOUT: Final = 30.0
"""Seconds of each step of a request to an authorization server."""
RENEWAL_MARGIN: Final = 30.0
"""Seconds before its expiry at which a token is renewed, or half its lifetime if that is shorter."""

_CODE: Final = re.compile(r"\w{1,40}")
"""Error codes of OAuth."""
_IS_OURS: Final[ContextVar[bool]] = ContextVar("pellucid_mcp_oauth", default=False)
_log = logging.getLogger("pellucid.mcp")


def _is_told_elsewhere(_record: logging.LogRecord) -> bool:
    """Return whether to log a record of the MCP SDK; flows of ours report failures themselves, without secrets."""
    return not _IS_OURS.get()


logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_told_elsewhere)


class _Context(OAuthContext):
    """State of the flow. A secret without a method is sent as RFC 7591 says for a registration that names none."""

    def prepare_token_auth(
        self, data: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        client = self.client_info
        if client is not None and client.client_secret and client.token_endpoint_auth_method is None:
            client.token_endpoint_auth_method = "client_secret_basic"  # noqa: S105  (a name)
        return super().prepare_token_auth(data, headers)


class Flow(OAuthClientProvider):
    """The SDK's flow, which refreshes a token before it authorizes anew, and keeps the expiry of a stored token."""

    may_refresh = True
    is_refresh = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.context = _Context(**{each.name: getattr(self.context, each.name) for each in fields(OAuthContext)})

    async def load(self) -> None:
        """Load what is stored, once."""
        if not self._initialized:
            await self._initialize()
            if self.context.current_tokens is not None and self.context.current_tokens.expires_in is not None:
                self.context.update_token_expiry(self.context.current_tokens)

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Keep other processes from renewing the token, if the storage can."""
        exclusive = getattr(self.context.storage, "exclusive", nullcontext)
        context: AbstractAsyncContextManager[None] = exclusive()
        return context

    async def adopt(self) -> None:
        """Take the stored token over if another process has renewed it."""
        stored, present = await self.context.storage.get_tokens(), self.context.current_tokens
        if stored is None or (present is not None and stored.access_token == present.access_token):
            return
        self.context.current_tokens = stored
        self.context.update_token_expiry(stored)
        self.may_refresh = True

    @property
    def expires_soon(self) -> bool:
        """True if the token expires soon and can be renewed."""
        tokens, expiry = self.context.current_tokens, self.context.token_expiry_time
        if tokens is None or expiry is None or self.context.oauth_metadata is None:
            return False
        is_soon = time.time() >= expiry - min(RENEWAL_MARGIN, (tokens.expires_in or 0) / 2)
        return is_soon and (self._renews_alone or self._can_refresh)

    async def renewal(self) -> httpx2.Request:
        """Return the request for a new token."""
        return await self._perform_authorization()

    async def take(self, response: httpx2.Response) -> None:
        """Take the token of a response."""
        await self._handle_token_response(response)

    _renews_alone = False

    @property
    def _can_refresh(self) -> bool:
        return self.may_refresh and self.context.can_refresh_token()

    async def _perform_authorization(self) -> httpx2.Request:
        self.is_refresh = self._can_refresh
        return await (self._refresh_token() if self.is_refresh else super()._perform_authorization())

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        prior = self.context.current_tokens if self.is_refresh else None
        if response.status_code not in {httpx2.codes.OK, httpx2.codes.CREATED}:
            raise OAuthTokenError(f"the token endpoint answered {_problem(response)}")
        try:
            await super()._handle_token_response(response)
        except OAuthTokenError:  # its text has the response, with the token
            raise OAuthTokenError("the token endpoint's answer is not a token response (RFC 6749, 5.1)") from None
        tokens = self.context.current_tokens
        if prior is not None and tokens is not None and tokens.refresh_token is None:
            # RFC 6749, 6: a refresh token that is not replaced stays valid.
            self.context.current_tokens = tokens.model_copy(update={"refresh_token": prior.refresh_token})
            await self.context.storage.set_tokens(self.context.current_tokens)
        self.may_refresh = True


class ApplicationFlow(Flow, ClientCredentialsOAuthProvider):
    """The flow of an application, which needs no refresh token for a new token."""

    _renews_alone = True


class OAuth(httpx2.Auth):
    """Authorizes requests, and renews tokens in turns: before they expire, and once for all requests that wait.

    A request is sent without the lock, so that a slow call does not hold up others. The requests of a flow have a
    client of their own: what fails in them leaves the server's refusal to the request, and does not break the
    connection.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._turn = anyio.Lock()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield a request with its token, and once more with another one if it is refused."""
        async with self._turn:
            await self._flow.load()
            await self._renew()
            used = self._authorize(request)
        response = yield request
        if not _is_refused(response):
            return
        async with self._turn:
            # Else another request has got a new token meanwhile.
            if self._token == used and not await self._renewed(request, response, used):
                return
            self._authorize(request)
        response = yield request
        if _is_refused(response) and (scope := extract_field_from_www_auth(response, "scope")) is not None:
            granted = self._flow.context.current_tokens
            explain_refusal(f"the server asks for the scopes {scope!r}; granted are {granted and granted.scope!r}")

    @property
    def _token(self) -> str | None:
        tokens = self._flow.context.current_tokens
        return tokens.access_token if tokens is not None else None

    def _authorize(self, request: httpx2.Request) -> str | None:
        """Add the token to a request, and return it."""
        if (token := self._token) is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return token

    async def _renew(self) -> None:
        """Renew a token that expires soon. If that fails, the present one is used until the server refuses it."""
        if not self._flow.expires_soon:
            return
        try:
            async with self._flow.exclusive():
                await self._flow.adopt()
                if self._flow.expires_soon:
                    async with _client() as client:
                        await self._flow.take(await client.send(await self._flow.renewal()))
        except Exception as error:  # noqa: BLE001  (logged; the present token is used)
            self._flow.may_refresh = self._flow.may_refresh and not isinstance(error, OAuthFlowError)
            _log.warning("The OAuth token for %s was not renewed: %s", self._flow.context.server_url, _described(error))

    async def _renewed(self, request: httpx2.Request, refusal: httpx2.Response, used: str | None) -> bool:
        """Return whether there is a new token, got by this process or by another."""
        async with self._flow.exclusive():
            await self._flow.adopt()
            return self._token != used or await self._authorized_anew(request, refusal)

    async def _authorized_anew(self, request: httpx2.Request, refusal: httpx2.Response) -> bool:
        """Run the flow that a refusal starts, again without the refresh token if that is refused."""
        flow = self._flow
        if refusal.status_code != httpx2.codes.UNAUTHORIZED:
            flow.may_refresh = False  # more scopes need a new authorization
        while True:
            flow.is_refresh = False
            flow.context.token_expiry_time = None  # or the SDK refreshes first, at an address that it guesses
            try:
                await self._run(request, refusal)
            except Exception as error:  # noqa: BLE001  (told by the server's refusal)
                if not (flow.is_refresh and isinstance(error, OAuthFlowError)):
                    explain_refusal(f"OAuth failed: {_described(error)}")
                    return False
                flow.may_refresh = False
            else:
                return True

    async def _run(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        flow = self._flow.async_auth_flow(request)
        told = _IS_OURS.set(True)
        try:
            await anext(flow)
            outgoing = await flow.asend(refusal)
            async with _client() as client:
                while outgoing is not request:
                    outgoing = await flow.asend(await client.send(outgoing))
        finally:
            _IS_OURS.reset(told)
            await flow.aclose()


def _client() -> httpx2.AsyncClient:
    def meter(_response: httpx2.Response) -> Meter:
        counter = Counter(subject="an OAuth answer", limit=MAX_ANSWER_BYTES, remedy="let the server send less")
        return Meter(whole=counter, event=None, refused=lambda refusal: httpx2.StreamError(str(refusal)))

    return httpx2.AsyncClient(timeout=TIMEOUT, event_hooks=limiting_hooks(meter))


def _is_refused(response: httpx2.Response) -> bool:
    return response.status_code == httpx2.codes.UNAUTHORIZED or (
        response.status_code == httpx2.codes.FORBIDDEN
        and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, OAuthFlowError) else describe(error)


def _problem(response: httpx2.Response) -> str:
    """Return the status and the error code of a response; nothing else of it, which may repeat secrets."""
    try:
        code = response.json()["error"]
    except (ValueError, LookupError, TypeError):
        code = None
    status = f"HTTP status {response.status_code}"
    return f"{code!r} with {status}" if isinstance(code, str) and _CODE.fullmatch(code) else status
