"""An OAuth authorization server and an MCP server that trusts it, in one application, with faults to order."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import anyio
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


@dataclass
class Token:
    """An access token that was issued."""

    client_id: str
    scope: str
    expires: float


@dataclass
class AuthorizationServer:
    """Grants codes, client credentials and refresh tokens, which it rotates; its MCP server's tools say who calls.

    Attributes:
        lifetime: Seconds of an access token.
        announced: Seconds that it says instead.
        status: HTTP status of a token response.
        clock: Offset of its clock, in seconds.
        secret_without_method: Register clients with a secret, and name no method.
        refuses_refresh: Refuse refresh tokens as invalid, and repeat them in the error.
        is_down: Answer the token endpoint with 503.
        scope: Scopes that it grants.
        needed_scope: Scope that a call of the MCP server needs.
        together: Number of calls that are answered only together.
        registers: Register clients that ask.
        grants: Grant types of the token requests, in order.
        secrets: All that must never be seen elsewhere.
    """

    lifetime: float = 3600.0
    announced: int | None = None
    status: int = 200
    clock: float = 0.0
    secret_without_method: bool = False
    refuses_refresh: bool = False
    is_down: bool = False
    scope: str = "tools"
    needed_scope: str = ""
    together: int = 1
    registers: bool = True
    url: str = ""
    grants: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    clients: dict[str, str | None] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    unauthorized: int = 0
    _waiting: int = 0
    _all_there: anyio.Event | None = None
    _codes: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    _refresh: dict[str, str] = field(default_factory=dict)

    def app(self) -> Starlette:
        """Return the application, in the event loop that serves it."""
        inner = Server("crm", on_list_tools=self._list, on_call_tool=self._call).streamable_http_app()

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and (refusal := self._refusal(dict(scope["headers"]))) is not None:
                await refusal(scope, receive, send)
            else:
                await inner(scope, receive, send)

        routes = [
            Route("/.well-known/oauth-protected-resource/mcp", self._resource),
            Route("/.well-known/oauth-authorization-server", self._metadata),
            Route("/register", self._register, methods=["POST"]),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Mount("/", guarded),
        ]
        return Starlette(routes=routes, lifespan=inner.router.lifespan_context)

    def revoke(self) -> None:
        """Revoke all access tokens."""
        self.tokens.clear()

    def _refusal(self, headers: dict[bytes, bytes]) -> Response | None:
        token = self.tokens.get(headers.get(b"authorization", b"").decode().removeprefix("Bearer "))
        if token is None or token.expires < time.time() + self.clock:
            self.unauthorized += 1
            where = f"{self.url}/.well-known/oauth-protected-resource/mcp"
            return Response(status_code=401, headers={"www-authenticate": f'Bearer resource_metadata="{where}"'})
        if self.needed_scope and self.needed_scope not in token.scope.split():
            challenge = f'Bearer error="insufficient_scope", scope="{self.needed_scope}"'
            return Response(status_code=403, headers={"www-authenticate": challenge})
        return None

    async def _resource(self, _request: Request) -> Response:
        return JSONResponse({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def _metadata(self, _request: Request) -> Response:
        names = {"token": "token", **({"registration": "register"} if self.registers else {})}
        endpoints = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in names.items()}
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                **endpoints,
            }
        )

    async def _register(self, request: Request) -> Response:
        if not self.registers:
            return Response(status_code=404)
        wanted = await request.json()
        client_id, secret = secrets.token_hex(8), self._secret() if self.secret_without_method else None
        self.clients[client_id] = secret
        answer = {**wanted, "client_id": client_id, "client_secret": secret}
        answer["token_endpoint_auth_method"] = None if self.secret_without_method else "none"
        return JSONResponse({name: value for name, value in answer.items() if value is not None}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = request.query_params
        code = self._secret()
        self._codes[code] = asked["client_id"], asked["code_challenge"], asked.get("scope", self.scope)
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.grants.append(form["grant_type"])
        if self.is_down:
            return Response(status_code=503)
        client_id = self._client(request, form)
        if client_id is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        scope = form.get("scope", self.scope)
        match form["grant_type"]:
            case "authorization_code":
                owner, challenge, scope = self._codes.pop(form["code"], ("", "", ""))
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                is_valid = owner == client_id and base64.urlsafe_b64encode(digest).decode().rstrip("=") == challenge
            case "refresh_token":
                is_valid = self._refresh.pop(form["refresh_token"], None) == client_id and not self.refuses_refresh
            case kind:
                is_valid = kind == "client_credentials"
        if not is_valid:
            return JSONResponse({"error": "invalid_grant", "error_description": f"refused: {form}"}, 400)
        return JSONResponse(
            self._issue(client_id, scope, has_refresh=form["grant_type"] != "client_credentials"), self.status
        )

    def _client(self, request: Request, form: dict[str, str]) -> str | None:
        """Return the id of the client that a request authenticates."""
        authorization = request.headers.get("authorization", "")
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":")
            client_id, secret = (unquote(part) for part in pair)
            return client_id if self.clients.get(client_id) == secret else None
        client_id = form.get("client_id", "")
        return client_id if client_id in self.clients and self.clients[client_id] == form.get("client_secret") else None

    def _issue(self, client_id: str, scope: str, *, has_refresh: bool) -> dict[str, Any]:
        access, refresh = self._secret(), self._secret()
        self.tokens[access] = Token(client_id, scope, time.time() + self.clock + self.lifetime)
        answer = {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.announced or int(self.lifetime),
            "scope": scope,
        }
        if has_refresh:
            self._refresh[refresh] = client_id
            answer["refresh_token"] = refresh
        return answer

    def _secret(self) -> str:
        self.secrets.append(secrets.token_urlsafe(24))
        return self.secrets[-1]

    async def _list(self, _ctx: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="look_up", input_schema={"type": "object"})])

    async def _call(self, _ctx: Any, _params: Any) -> CallToolResult:
        self._all_there = self._all_there or anyio.Event()
        self._waiting += 1
        if self._waiting >= self.together:
            self._all_there.set()
        await self._all_there.wait()
        return CallToolResult(content=[TextContent(text="found")])


class Browser:
    """A person's browser: it opens the page, consents, and gives the application what it is sent back with."""

    def __init__(self) -> None:
        self.opened = 0
        self._query = ""

    async def open(self, url: str, _identity: object) -> None:
        """Open the authorization server's page."""
        import httpx2

        self.opened += 1
        async with httpx2.AsyncClient() as client:
            self._query = urlsplit((await client.get(url)).headers["location"]).query

    async def answered(self, _identity: object) -> Any:
        """Return the parameters of the redirect."""
        from mcp.shared.auth import AuthorizationCodeResult

        parameters = parse_qs(self._query)
        return AuthorizationCodeResult(code=parameters["code"][0], state=parameters["state"][0])
