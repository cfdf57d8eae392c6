"""HTTP server of the relay: an Alertmanager for Prometheus, and a webhook for Alertmanager."""

from __future__ import annotations

import json
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pellucid.errors import ConfigError
from pellucid_dashboards.relay.enriching import DeliveryError, describe
from pellucid_dashboards.relay.links import Places
from pellucid_exporters.alerting import runbook_html

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pellucid_dashboards.relay.enriching import Relay

MOST_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of one request. Prometheus sends 64 alerts at once."""
MOST_DIGITS: Final = 4_000
"""Digits of a length; Python reads at most 4,300."""
_LOCAL: Final = Places()


class RelayServer(ThreadingHTTPServer):
    """HTTP server of one relay.

    It has `POST /api/v2/alerts`, `POST /webhook` (which prints), `GET /-/healthy`, and the runbooks: `GET /runbooks/`,
    and `GET /runbooks/{name}` with the labels of an alert as a query; HEAD works as GET does.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], relay: Relay, places: Places = _LOCAL) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Exchange)
        self.relay, self.places = relay, places

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a request, unless the client has disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Exchange(BaseHTTPRequestHandler):
    timeout = 10
    server: RelayServer

    def do_GET(self) -> None:
        """Respond to health checks; show runbooks."""
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            return self._answer(400, str(error))
        if parts.path == "/-/healthy":
            return self._answer(200, "ok")
        if not parts.path.startswith("/runbooks/"):
            return self._answer(404, "there are /-/healthy and /runbooks/")
        name = unquote(parts.path.removeprefix("/runbooks/"))
        try:
            return self._show(self._runbook(name, dict(parse_qsl(parts.query))) if name else runbook_html.index())
        except (ConfigError, ValueError) as error:
            return self._answer(404, str(error))

    def _runbook(self, name: str, labels: Mapping[str, str]) -> str:
        places = self.server.places
        return runbook_html.page(name, labels, places.links(name, labels), places.query)

    def do_HEAD(self) -> None:
        """Respond as to GET, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Receive alerts from Prometheus, or a notification from Alertmanager."""
        refusal = self._refusal()
        if refusal is not None:
            return self._answer(*refusal)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path not in ("/api/v2/alerts", "/webhook"):
            return self._answer(404, "there are /api/v2/alerts and /webhook")
        try:
            self._take(json.loads(body))
        except DeliveryError as error:
            return self._answer(502, str(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return self._answer(400, f"these are not alerts: {error!r}")
        return None

    def _refusal(self) -> tuple[int, str] | None:
        """Return the answer to a body of unknown, ambiguous or excessive length (RFC 9112, section 6.3)."""
        lengths = {length.strip(" \t") for length in self.headers.get_all("Content-Length", ())}
        if not lengths:
            return 411, "Content-Length is missing"
        (length, *others) = lengths
        if others or "Transfer-Encoding" in self.headers or re.fullmatch("[0-9]+", length) is None:
            return 400, "the length of the body is not one number"
        if len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
            return 413, f"more than {MOST_BYTES} bytes"
        return None

    def _take(self, body: Any) -> None:
        if self.path == "/api/v2/alerts":
            self.server.relay.pass_on(body)
        else:
            text = describe(body)
            # In one write, with the end of the line: notifications arrive at the same time.
            print(f"{text}\n", end="", flush=True)  # noqa: T201  (the output of the command)
        self._answer(200, "ok")

    def _show(self, page: str) -> None:
        policy = runbook_html.CONTENT_SECURITY_POLICY
        self._send(200, page, "text/html", {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})

    def _answer(self, status: int, text: str) -> None:
        self._send(status, f"{text}\n", "text/plain", {})

    def _send(self, status: int, text: str, kind: str, headers: Mapping[str, str]) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *line: Any) -> None:
        """Log nothing: errors are in the response and logged where they occur."""
