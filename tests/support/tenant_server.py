"""An MCP server over HTTP whose tools depend on who asks, and that binds its sessions to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool
from starlette.requests import Request
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION = b"mcp-session-id"


class TenantServer:
    """A server with one tool for each tenant, named after it, whose result says who called.

    Attributes:
        crossed: Requests that used the session of another token, as pairs of the session's token and their own.
        tokens: Token of each request that was let in, in order.
        lists: Number of listings by token.
        is_lax: Let requests in without a token.
    """

    def __init__(self, *, is_lax: bool = False) -> None:
        self.crossed: list[tuple[str, str]] = []
        self.tokens: list[str] = []
        self.lists: dict[str, int] = {}
        self.is_lax = is_lax
        self._sessions: dict[bytes, str] = {}

    def app(self) -> ASGIApp:
        """Return the application, in the event loop that serves it."""
        server = Server("tenants", on_list_tools=self._list, on_call_tool=self._call)
        inner = server.streamable_http_app()

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            headers = dict(scope["headers"])
            token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if not token and not self.is_lax:
                await JSONResponse({"error": "no token"}, 401)(scope, receive, send)
                return
            self.tokens.append(token)
            session = headers.get(SESSION)
            if session is not None and (owner := self._sessions.setdefault(session, token)) != token:
                self.crossed.append((owner, token))
                await JSONResponse({"error": "the session belongs to somebody else"}, 403)(scope, receive, send)
                return

            async def bind(message: Message) -> None:
                if message["type"] == "http.response.start":
                    opened = dict(message.get("headers", ())).get(SESSION)
                    if opened is not None:
                        self._sessions.setdefault(opened, token)
                await send(message)

            await inner(scope, receive, bind)

        return guarded

    async def _list(self, ctx: ServerRequestContext[Any], _params: PaginatedRequestParams | None) -> ListToolsResult:
        token = _token(ctx)
        self.lists[token] = self.lists.get(token, 0) + 1
        return ListToolsResult(tools=[Tool(name=f"of_{token or 'nobody'}", input_schema={"type": "object"})])

    async def _call(self, ctx: ServerRequestContext[Any], _params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=_token(ctx))])


def _token(ctx: ServerRequestContext[Any]) -> str:
    assert isinstance(ctx.request, Request)
    return ctx.request.headers.get("authorization", "").removeprefix("Bearer ")
