"""A real Redis server that keeps nothing, on a port of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.ports import free_port
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a server within the context, and return its URL; skip the test if it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        if os.environ.get("PELLUCID_REQUIRE_SERVICES"):
            pytest.fail("redis-server is missing (Debian: apt-get install redis-server)")
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    port = free_port()
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _wait(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.kill()


def _wait(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail("redis-server did not start")
            time.sleep(0.02)
        else:
            return
