"""A receiver of callbacks: an HTTP server in a thread."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Received:
    """A request. Attributes: headers: With names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def state(self) -> dict[str, Any]:
        """The JSON of the body."""
        state: dict[str, Any] = json.loads(self.body)
        return state


class Receiver:
    """A server that answers as it is told.

    Attributes:
        url: URL of callbacks.
        received: Requests in order.
        answers: Status and headers of the next answers; 204 when there are none.
        is_open: Answers are sent while this is set.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hooks"
        self.received: list[Received] = []
        self.answers: list[tuple[int, Mapping[str, str]]] = []
        self.is_open = threading.Event()
        self.is_open.set()


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    """Receive callbacks within the context."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiving.received.append(Received(self.path, headers, body))
            receiving.is_open.wait()
            status, more = receiving.answers.pop(0) if receiving.answers else (204, {})
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Print nothing of a client that has left."""

    with Server(("127.0.0.1", port), Handler) as server:
        receiving = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield receiving
        finally:
            receiving.is_open.set()
            server.shutdown()
            thread.join()
