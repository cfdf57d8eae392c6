#!/usr/bin/env python
"""Stand-in for Loki, which takes long to build: it takes logs at /otlp, and tells which it has.

`loki.py --config.file=FILE` listens where the configuration says; `-health -health.url=URL` asks whether it does.
GET /received returns the records as JSON.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError
from urllib.request import urlopen

import yaml
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

PATH = "/otlp/v1/logs"
"""Path at which Loki takes OTLP."""


class Handler(BaseHTTPRequestHandler):
    """Handler of requests."""

    received: ClassVar[list[dict[str, Any]]] = []
    lock = threading.Lock()

    def do_GET(self) -> None:
        """Say that it is ready, or what was received."""
        with self.lock:
            body = json.dumps(self.received).encode() if self.path == "/received" else b"ready\n"
        self._answer(200 if self.path in {"/ready", "/received"} else 404, body)

    def do_POST(self) -> None:
        """Take a request of OTLP."""
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.path != PATH or self.headers["content-type"] != "application/x-protobuf":
            self._answer(404, b"")
            return
        if self.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        found = MessageToDict(ExportLogsServiceRequest.FromString(content))
        with self.lock:
            for group in found.get("resourceLogs", []):
                for scoped in group.get("scopeLogs", []):
                    resource = group.get("resource", {}).get("attributes", [])
                    self.received.extend({**record, "resource": resource} for record in scoped.get("logRecords", []))
        self._answer(200, ExportLogsServiceResponse().SerializeToString())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (as the base class names it)
        """Be quiet."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(arguments: list[str]) -> int:
    """Serve, or ask."""
    options = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    if "health" in options:
        try:
            with urlopen(options["health.url"], timeout=5) as answer:
                return 0 if answer.status == 200 else 1
        except (URLError, OSError):
            return 1
    server = yaml.safe_load(Path(options["config.file"]).read_text(encoding="utf-8"))["server"]
    with ThreadingHTTPServer((server["http_listen_address"], server["http_listen_port"]), Handler) as listening:
        listening.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
