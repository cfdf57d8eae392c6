"""The real Alertmanager, started on a free port, and a webhook that keeps what it is told."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from support.prometheus_server import listening, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from socketserver import TCPServer


class Webhook:
    """Keeps the notifications that it gets. Attributes: url: where they are to be posted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._told: list[dict[str, Any]] = []
        self._news = threading.Condition()

    def tell(self, notification: dict[str, Any]) -> None:
        """Take one notification."""
        with self._news:
            self._told.append(notification)
            self._news.notify_all()

    @property
    def told(self) -> list[dict[str, Any]]:
        """All notifications until now."""
        with self._news:
            return list(self._told)

    def until(self, wanted: Callable[[dict[str, Any]], bool], timeout: float = 60.0) -> dict[str, Any]:
        """Return the first notification that is wanted, waiting for it."""
        with self._news:
            if not self._news.wait_for(lambda: any(map(wanted, self._told)), timeout):
                pytest.fail(f"not told in {timeout:g} s; of each alert, told last was:\n{self._summary()}")
            return next(filter(wanted, self._told))

    def _summary(self) -> str:
        alerts = [alert for notification in self._told for alert in notification.get("alerts", ())]
        if not alerts:
            return json.dumps(self._told)  # in the format of a chat
        last = {json.dumps(alert["labels"]): alert["status"] for alert in alerts}
        return "\n".join(f"{status} {labels}" for labels, status in sorted(last.items()))


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Listen for notifications in JSON, on any path."""

    class Exchange(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.tell(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *line: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
    found = Webhook(f"http://127.0.0.1:{server.server_port}")
    with serving(server):
        yield found


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Serve from a thread until the end of the block; the value is the base URL."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def alertmanager_server(config: Path) -> Iterator[str]:
    """Run Alertmanager until the end of the block; templates are found beside `config`. The value is its base URL."""
    command = [
        program("prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={config.parent}/alertmanager-data",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    with listening(command) as (url, _):
        yield url


def post(url: str, body: Any) -> int:
    """Post JSON and return the status."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        status: int = answer.status
        return status


def alerts_of(alertmanager: str) -> Sequence[dict[str, Any]]:
    """Return the alerts that Alertmanager knows, each with `labels`, `annotations` and `status`."""
    with urlopen(f"{alertmanager}/api/v2/alerts", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found
