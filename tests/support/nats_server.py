"""A real NATS server with JetStream in a temporary folder, on a port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


class NATSServer:
    """A server that runs. Attributes: url: its URL; folder: where its streams are."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self._port = _free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self.folder)],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 5).close()
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"nats-server did not start: {error}\n{(self.folder / 'log').read_text()}")
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Stop in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop as after a crash."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)


@contextmanager
def nats_server() -> Iterator[NATSServer]:
    """Run a server until the end of the block; without the program the test is skipped, or fails where CI says so."""
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain("the program 'nats-server' is not installed (Debian: apt-get install nats-server)")
    folder = Path(tempfile.mkdtemp(prefix="nats-"))
    server = NATSServer(program, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
