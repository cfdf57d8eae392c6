"""A server of MCP over HTTP that answers as slowly as it is told to, with nothing but the standard library.

It runs below every Python that a framework is tried with. Run as a script, it prints its port.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

GREETING: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "catalogue", "version": "1"},
}
SCHEMA: Final = {"type": "object", "properties": {"text": {"type": "string"}}}
PAGES: Final[Mapping[str | None, Mapping[str, Any]]] = {
    None: {"tools": [{"name": "search", "inputSchema": SCHEMA}], "nextCursor": "2"},
    "2": {"tools": [{"name": "count", "inputSchema": SCHEMA}]},
}
"""The tools, on two pages."""


class HttpHub(ThreadingHTTPServer):
    """The server.

    Attributes:
        delays: Seconds to wait before the answer to a method; those to `tools/list` apply to its first page.
        released: Lets those that wait answer at once.
        requests: Methods of requests, as they arrive, with the cursor of a further page.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.delays: dict[str, float] = {}
        self.released = threading.Event()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        """URL of the server, with a secret in its query."""
        return f"http://127.0.0.1:{self.server_port}/mcp?key=secret"


class _Handler(BaseHTTPRequestHandler):
    server: HttpHub

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message["method"], message.get("params") or {}
        cursor = params.get("cursor")
        self.server.requests.append(method if cursor is None else f"{method} {cursor}")
        if method in self.server.delays and cursor is None:
            self.server.released.wait(self.server.delays[method])
        if "id" not in message:
            self._send(202, None)
        elif method == "initialize":
            self._answer(message, result=GREETING)
        elif method == "tools/list":
            self._answer(message, result=PAGES[cursor])
        elif method == "tools/call":
            self._answer(message, result={"content": [{"type": "text", "text": "3 hits"}]})
        else:
            self._answer(message, error={"code": -32601, "message": "unknown method"})

    def do_GET(self) -> None:
        self._send(405, None)

    def do_DELETE(self) -> None:
        self._send(200, None)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it so)
        """Print nothing."""

    def _answer(self, message: dict[str, Any], **answer: Any) -> None:
        self._send(200, {"jsonrpc": "2.0", "id": message["id"], **answer})

    def _send(self, status: int, body: dict[str, Any] | None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            if data:
                self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client has gone


@contextmanager
def http_hub() -> Iterator[HttpHub]:
    """Serve until the end of the block."""
    hub = HttpHub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        hub.shutdown()
        hub.server_close()
        thread.join()
