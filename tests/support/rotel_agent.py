"""An OTLP agent that is not ours, between an application and a collector: started, stopped and started again."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

rotel: Any = pytest.importorskip("rotel", reason="the OTLP agent rotel has no wheel for this platform")
PROGRAM = Path(rotel.__file__).parent / "rotel-agent"


class Agent:
    """Forwards what it gets to a collector, if there is one.

    Attributes:
        endpoint: Its base URL, over HTTP.
        grpc_endpoint: Its base URL, over gRPC.
    """

    def __init__(self, collector: str | None, folder: Path) -> None:
        self._port, other = free_ports(2)
        self.endpoint, self.grpc_endpoint = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{other}"
        self._command = [
            str(PROGRAM), "start",
            "--otlp-http-endpoint", f"127.0.0.1:{self._port}",
            "--otlp-grpc-endpoint", f"127.0.0.1:{other}",
            *_exporter(collector),
            "--pid-file", str(folder / "rotel.pid"), "--log-file", str(folder / "rotel.log"),
        ]  # fmt: skip
        self._log = folder / "rotel.out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the agent did not start: {self._log.read_text()[-500:]}")
            time.sleep(0.02)  # between two looks at another process

    def stop(self) -> None:
        """Stop it; what it has taken it still passes on."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    async def pause(self, after: float, seconds: float) -> None:
        """Stop it after some seconds, and start it again so many seconds later."""
        await anyio.sleep(after)
        await anyio.to_thread.run_sync(self.stop)
        await anyio.sleep(seconds)
        await anyio.to_thread.run_sync(self.start)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def agent_before(collector: str | None, folder: Path) -> Iterator[Agent]:
    """Run an agent that forwards to a collector, or throws away what it gets."""
    agent = Agent(collector, folder)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def _exporter(collector: str | None) -> list[str]:
    if collector is None:
        return ["--exporter", "blackhole"]
    return ["--exporter", "otlp", "--otlp-exporter-endpoint", collector, "--otlp-exporter-protocol", "http"]
