"""A local HTTP server that answers what a test tells it to, byte by byte: good answers, and bad ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

PATIENCE: Final = 20.0
"""Seconds that a hanging answer waits to be released or left."""


class Hang:
    """Part of a body: send nothing more until the client has gone or the server is released."""


class Cut:
    """Part of a body: close the connection here, without the end that HTTP asks for."""


Chunk: TypeAlias = bytes | Hang | Cut


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of the server. Attributes: body: pieces, each of which is one chunk on the wire."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Chunk] = ()


@dataclass(frozen=True, kw_only=True)
class Received:
    """Request to the server. Attributes: body: as it came; headers: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


Reply: TypeAlias = Answer | Callable[[Received], Answer]


def answer_json(value: object, *, status: int = 200, **headers: str) -> Answer:
    """Return an answer with a JSON body; `_` in the names of headers stands for `-`."""
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(
        status=status, headers={"content-type": "application/json", **given}, body=[json.dumps(value).encode()]
    )


def answer_sse(*chunks: Chunk, **headers: str) -> Answer:
    """Return an answer that is a stream of server-sent events, of which each piece is any number of bytes."""
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(headers={"content-type": "text/event-stream", **given}, body=chunks)


class VendorServer:
    """The server.

    Attributes:
        url: Base address, without a path.
        requests: What it was asked.
        left: Hanging answers whose client went away.
        reached: Set once an answer hangs.
        released: Set it to let hanging answers go on.
        on_left: Called when a client has gone before its answer was over.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.left = 0
        self.on_left: Callable[[], None] | None = None
        self.released = threading.Event()
        self.reached = threading.Event()
        self._replies: list[Reply] = []
        self._default: Reply | None = None
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                server._serve(self)

            def do_POST(self) -> None:
                server._serve(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64  # with fewer, clients that come at once wait a second for their connection

        self._http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def answers(self, *replies: Reply) -> None:
        """Answer with these, one for each request, in turn."""
        self._replies.extend(replies)

    def always(self, reply: Reply) -> None:
        """Answer with this whenever there is no other answer left."""
        self._default = reply

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what hangs is released."""
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(PATIENCE)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        received = Received(
            method=handler.command,
            path=handler.path,
            headers={name.lower(): value for name, value in handler.headers.items()},
            body=handler.rfile.read(length),
        )
        with self._lock:
            self.requests.append(received)
            reply = self._replies.pop(0) if self._replies else self._default
        if reply is None:
            reply = answer_json({"error": {"message": "the test gave no answer for this request"}}, status=501)
        answer = reply if isinstance(reply, Answer) else reply(received)
        try:
            self._send(handler, answer)
        except OSError:  # the client has gone
            handler.close_connection = True
            if self.on_left is not None:
                self.on_left()

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for chunk in answer.body:
            if isinstance(chunk, Cut):
                handler.close_connection = True
                return
            if isinstance(chunk, Hang):
                self._hang(handler)
                continue
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    def _hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Wait until the test releases the answer, or the client closes its end."""
        self.reached.set()
        handler.connection.settimeout(0.02)
        for _ in range(int(PATIENCE / 0.02)):
            if self.released.is_set():
                handler.connection.settimeout(None)  # the next request on this connection may come at any time
                return
            try:
                has_left = handler.connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:  # it left without having read all
                has_left = True
            if has_left:
                self.left += 1
                raise ConnectionResetError("the client has gone")
        raise TimeoutError("nobody released the answer that hangs")


@contextmanager
def vendor_server() -> Iterator[VendorServer]:
    """Run a server while the context lasts."""
    server = VendorServer()
    server.start()
    try:
        yield server
    finally:
        server.close()
