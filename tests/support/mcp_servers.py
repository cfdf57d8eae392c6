"""MCP servers for tests: in memory, as a process, and over HTTP; of this year's protocol and of the one before.

Run as a script, it is a server over stdio: `modern` is built with the MCP SDK, `legacy` is written by hand after the
protocol of 2025-11-25, so that it can misbehave on purpose.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

PIXEL = b"\x89PNG\r\n\x1a\n"
OBJECT = {"type": "object", "properties": {}}


class Desk:
    """Events in a server's slow calls, for the test to see and set."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.cancelled = anyio.Event()
        self.release = anyio.Event()


def modern_server(desk: Desk | None = None) -> MCPServer:  # noqa: C901, PLR0915  (a list of small tools)
    """Return a server of the MCP SDK with a tool for each thing that a test wants to see."""
    server = MCPServer("modern")
    desk = desk or Desk()

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def pid() -> int:
        """Return the id of the server's process."""
        return os.getpid()

    @server.tool()
    def secret() -> str:
        """Return an environment variable."""
        return os.environ.get("PELLUCID_TEST_SECRET", "unset")

    @server.tool()
    def trace(ctx: Context) -> str:
        """Return the trace context that came with the call."""
        meta: Any = ctx.request_context.meta or {}
        return str(meta.get("traceparent"))

    @server.tool()
    def carried(ctx: Context) -> dict[str, Any]:
        """Return all that came with the call about its context."""
        meta: Any = ctx.request_context.meta or {}
        return {name: meta.get(name) for name in ("traceparent", "tracestate", "baggage")}

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ToolError("no such city")

    @server.tool()
    def refuse() -> str:
        """Answer with an error of the protocol."""
        raise MCPError(code=-32042, message="not today")

    @server.tool(structured_output=False)
    def picture() -> list[str | Image]:
        """Return a text and an image."""
        return ["a pixel", Image(data=PIXEL, format="png")]

    @server.tool(structured_output=False)
    def lines() -> list[str]:
        """Return two texts."""
        return ["one", "two"]

    @server.tool()
    def weather() -> dict[str, int]:
        """Return structured data."""
        return {"celsius": 21}

    @server.tool()
    async def steps(ctx: Context) -> str:
        """Report progress."""
        await ctx.report_progress(1, 2, "half")
        return "done"

    @server.tool()
    async def slow() -> str:
        """Wait to be released."""
        desk.started.set()
        try:
            await desk.release.wait()
        except anyio.get_cancelled_exc_class():
            desk.cancelled.set()
            raise
        return "released"

    @server.tool()
    def die() -> str:
        """End the process without a word."""
        os._exit(3)

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Add a tool and announce it."""
        server.add_tool(lambda: "new", name="grown", structured_output=False)
        await ctx.notify_tools_changed()
        return "grown"

    return server


def listing_server(
    pages: Callable[[str | None], ListToolsResult], call: Callable[[str, dict[str, Any]], CallToolResult] | None = None
) -> Server[Any]:
    """Return a server whose answers to `tools/list` are what `pages(cursor)` returns."""

    async def on_list(ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return pages(params.cursor if params is not None else None)

    async def on_call(ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if call is None:
            return CallToolResult(content=[TextContent(text=params.name)])
        return call(params.name, params.arguments or {})

    return Server("listing", on_list_tools=on_list, on_call_tool=on_call)


def tool_of(name: str, schema: dict[str, Any] | None = None) -> Tool:
    """Return a tool as a server lists it."""
    return Tool(name=name, description=f"The tool {name}.", input_schema=schema or OBJECT)


@contextmanager
def serving(make_app: Callable[[], Any], port: int = 0) -> Iterator[int]:
    """Serve an ASGI application, made in the server's own event loop, while the context lasts; gives its port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        config = uvicorn.Config(make_app, factory=True, log_config=None, timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


class LegacyHttp:
    """A streamable HTTP server of protocol 2025-11-25 that can forget its sessions and list what it is told to.

    Attributes:
        unknown: Makes the answer to a request of an unknown session.
        refusals: Make the answers to requests that are refused, by their method.
        requests: Methods of the requests that were let in, in order.
    """

    def __init__(self, listing: dict[str, Any] | None = None) -> None:
        self.listing = listing or {"tools": [{"name": "count", "inputSchema": OBJECT}]}
        self.unknown: Callable[[], Response] = lambda: Response(status_code=404)
        self.refusals: dict[str, Callable[[dict[str, Any]], Response]] = {}
        self.requests: list[str] = []
        self.sessions: set[str] = set()
        self.opened = 0
        self.calls = 0
        self.app = Starlette(routes=[Route("/mcp", self.answer, methods=["POST", "GET", "DELETE"])])

    async def answer(self, request: Request) -> Response:  # noqa: PLR0911  (one for each kind of request)
        """Answer one HTTP request."""
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        method, session = message["method"], request.headers.get("mcp-session-id")
        if method in self.refusals:
            return self.refusals[method](message)
        if method == "initialize":
            self.opened += 1
            self.sessions.add(str(self.opened))
            return _answer(message, LEGACY_GREETING, {"mcp-session-id": str(self.opened)})
        if session is None:
            return Response(status_code=400)
        if session not in self.sessions:
            return self.unknown()
        if "id" not in message:
            return Response(status_code=202)
        self.requests.append(method)
        if method == "tools/list":
            return _answer(message, self.listing)
        self.calls += 1
        return _answer(message, {"content": [{"type": "text", "text": str(self.calls)}]})


LEGACY_GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "legacy", "version": "1"},
}


def _answer(message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


FORM = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


class LegacyStdio:
    """A server over stdio, line by line. It notes each message it gets in the file named by `PELLUCID_TEST_LOG`.

    It lists what the JSON in `PELLUCID_TEST_LISTING` says, if that is set, and speaks the protocol in
    `PELLUCID_TEST_PROTOCOL`.
    """

    def __init__(self) -> None:
        self.names = ["echo", "hang", "grow", "die", "ask", "open", "log"]
        self.held: dict[str, Any] = {}
        self.hung: dict[str, Any] = {}
        self.listing = json.loads(os.environ.get("PELLUCID_TEST_LISTING", "null"))

    def run(self) -> None:
        """Serve until standard input ends."""
        print("legacy server is up", file=sys.stderr, flush=True)
        with Path(os.environ["PELLUCID_TEST_LOG"]).open("a", encoding="utf-8") as log:
            for line in sys.stdin:
                log.write(line)
                log.flush()
                self.take(json.loads(line))

    def take(self, message: dict[str, Any]) -> None:  # noqa: C901, PLR0912, PLR0915  (one case for each message)
        """Answer one message."""
        params = message.get("params", {})
        match message.get("method"), params.get("name"):
            case None, _:  # the answer to the question
                answer = json.dumps(message.get("result", message.get("error")))
                self.say(self.held, result={**_text(answer), "contents": [{"uri": "notes://1", "text": answer}]})
                if self.hung:
                    self.say(self.hung, result=_text("late"))
            case "initialize", _:
                version = os.environ.get("PELLUCID_TEST_PROTOCOL", LEGACY_GREETING["protocolVersion"])
                self.say(message, result={**LEGACY_GREETING, "protocolVersion": version})
            case "tools/list", _:
                named = {"tools": [{"name": name, "inputSchema": OBJECT} for name in self.names]}
                self.say(message, result=self.listing or named)
            case "resources/read", _:
                self.held = message
                self.ask()
            case "tools/call", "hang":
                self.hung = message
            case "tools/call", "die":
                print("out of memory", file=sys.stderr, flush=True)
                os._exit(3)
            case "tools/call", "ask":
                self.held = message
                self.ask(**params.get("arguments", {}))
            case "tools/call", "log":
                data = {"level": "error", "data": "a line of the server"}
                self.send({"jsonrpc": "2.0", "method": "notifications/message", "params": data})
                self.say(message, result=_text("logged"))
            case "tools/call", "open" if not self.held:
                self.held = message
                url = {"mode": "url", "message": "Pay.", "url": "https://pay.example/1", "elicitationId": "e1"}
                error = {"code": -32042, "message": "open it first", "data": {"elicitations": [url]}}
                self.say(message, error=error)
            case "tools/call", "open":
                self.say(message, result=_text("paid"))
            case "tools/call", "grow":
                self.names.append("grown")
                self.send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                self.say(message, result={"content": []})
            case "tools/call", _:
                self.say(message, result=_text(json.dumps(params.get("_meta"))))
            case _ if "id" in message:
                self.say(message, error={"code": -32601, "message": "unknown method"})

    def ask(self, method: str = "elicitation/create", params: dict[str, Any] | None = None) -> None:
        """Ask a person, or for something else, before the message that is held is answered."""
        question = {"mode": "form", "message": "Which size?", "requestedSchema": FORM} if params is None else params
        self.send({"jsonrpc": "2.0", "id": "q1", "method": method, "params": question})

    def say(self, message: dict[str, Any], **answer: Any) -> None:
        """Answer a request."""
        self.send({"jsonrpc": "2.0", "id": message["id"], **answer})

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "legacy":
        LegacyStdio().run()
    else:
        logging.disable()
        modern_server().run("stdio")
