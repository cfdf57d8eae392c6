"""Small tool catalogue served over HTTP. It lists its tools slowly and fails the first request.

`GET /tools` lists the tools, `POST /tools/<name>` runs one with the JSON object that it is sent.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LATENCY: Final = 0.4
"""Seconds that listing the tools takes."""

RETRY_AFTER: Final = 3
"""Seconds that the failing server asks its clients to wait."""

SHORTEST_TOP_WORD: Final = 4


def count_words(text: str) -> int:
    """Return the number of words."""
    return len(_words(text))


def top_words(text: str, count: int = 3) -> list[dict[str, Any]]:
    """Return the words that occur most often, leaving out short ones."""
    long_words = (word for word in _words(text) if len(word) >= SHORTEST_TOP_WORD)
    return [{"word": word, "count": number} for word, number in Counter(long_words).most_common(count)]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*", text.lower())


TOOLS: Final[Mapping[str, Callable[..., Any]]] = {"count_words": count_words, "top_words": top_words}

_NO_HEADERS: Final[Mapping[str, str]] = {}

_TEXT: Final = {"type": "string", "description": "Any text."}
_COUNT: Final = {"type": "integer", "minimum": 1, "description": "How many words to return; 3 unless given."}


def _schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": ["text"], "additionalProperties": False}


LISTING: Final = [
    {
        "name": "count_words",
        "description": "Count the words of a text.",
        "inputSchema": _schema(text=_TEXT),
    },
    {
        "name": "top_words",
        "description": f"Find a text's most frequent words of {SHORTEST_TOP_WORD} letters or more.",
        "inputSchema": _schema(text=_TEXT, count=_COUNT),
    },
]


class CatalogueServer(ThreadingHTTPServer):
    """Listens on a free port of this machine.

    Attributes:
        is_down: Whether the next listing fails.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.is_down = True


class _Answer(BaseHTTPRequestHandler):
    server: CatalogueServer

    def do_GET(self) -> None:
        if self.path != "/tools":
            self._send(404, {"error": f"no such page: {self.path}"})
            return
        time.sleep(LATENCY)
        if self.server.is_down:
            self.server.is_down = False
            self._send(503, {"error": "the index is being rebuilt"}, {"Retry-After": str(RETRY_AFTER)})
        else:
            self._send(200, {"tools": LISTING})

    def do_POST(self) -> None:
        run = TOOLS.get(self.path.removeprefix("/tools/"))
        if run is None:
            self._send(404, {"error": f"no such tool: {self.path}"})
            return
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(200, {"result": run(**arguments)})

    def _send(self, status: int, answer: object, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        """Stay silent; the base class would write to stderr."""


@contextmanager
def catalogue_server() -> Iterator[int]:
    """Serve from a thread within the context; yields the port."""
    with CatalogueServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="catalogue", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
