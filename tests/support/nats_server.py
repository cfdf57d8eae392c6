"""A real NATS server with JetStream in a temporary folder, on a port of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal
from nats import connect

from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


class NATSServer:
    """A server that runs. Attributes: url: its URL; port: its port; folder: where its streams are."""

    def __init__(self, program: str, folder: Path, address: str, storage: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._program = program
        self._address = address
        self._configuration = folder / "nats.conf"
        self._configuration.write_text(f'jetstream {{ store_dir: "{folder}", max_file_store: {storage} }}\n')
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-a", self._address, "-p", str(self.port), "-c", str(self._configuration)],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
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

    def explain(self) -> None:
        """Print the end of the log, if the server has ended by itself."""
        if self._process is not None and (code := self._process.poll()) not in (None, -signal.SIGKILL):
            print(f"nats-server has ended by itself with {code}:", (self.folder / "log").read_text()[-4000:])

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)


@contextmanager
def nats_server(address: str = "127.0.0.1", storage: str = "1TB") -> Iterator[NATSServer]:
    """Run a server until the end of the block; without the program the test is skipped, or fails where CI says so.

    Args:
        address: Address to listen on.
        storage: What all streams together may reserve, such as `1GB`. A queue reserves 768 MiB, whatever it stores.
            Without the option a server allows three quarters of what is free on the disk.
    """
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain("the program 'nats-server' is not installed (Debian: apt-get install nats-server)")
    folder = Path(tempfile.mkdtemp(prefix="nats-"))
    server = NATSServer(program, folder, address, storage)
    try:
        server.start()
        yield server
    except BaseException:
        server.explain()
        raise
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


class Admin:
    """A connection of its own to the API of JetStream, and to any subject."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._portal = ExitStack()

    async def __aenter__(self) -> Self:
        """Connect."""
        await anyio.to_thread.run_sync(self._open)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnect."""
        with anyio.CancelScope(shield=True):
            await self._run(self._client.close)
            await anyio.to_thread.run_sync(self._portal.close)

    def _open(self) -> None:
        self._loop = self._portal.enter_context(start_blocking_portal("asyncio"))
        self._client: Any = self._loop.call(connect, self._url)

    async def _run(self, function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(self._loop.call, function, *arguments)

    async def call(self, operation: str, name: str, body: Any = None) -> Any:
        """Call the API, such as `STREAM.INFO`; return the answer."""
        answer = await self.request(f"$JS.API.{operation}.{name}", body)
        assert "error" not in answer, answer
        return answer

    async def waiting(self, stream: str, consumer: str) -> int:
        """Return the number of requests that wait for messages of a consumer; 0 if there is no such consumer."""
        info = await self.request(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
        number: int = info.get("num_waiting", 0)
        return number

    async def request(self, subject: str, body: Any = None) -> Any:
        """Return the answer to a request, as JSON."""
        data = json.dumps(body).encode() if body is not None else b""
        return json.loads((await self._run(partial(self._client.request, subject, data, timeout=30))).data)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Store a message."""
        await self._run(partial(self._client.request, subject, body, timeout=30, headers=headers))

    async def messages(self, stream: str) -> list[Any]:
        """Return all messages of a stream."""
        state = (await self.call("STREAM.INFO", stream))["state"]
        numbers = range(state["first_seq"], state["last_seq"] + 1)
        jetstream = self._client.jetstream(timeout=30)
        return [await self._run(partial(jetstream.get_msg, stream, seq=number)) for number in numbers]

    async def bodies(self, stream: str) -> list[bytes]:
        """Return the bodies of all messages of a stream."""
        return [message.data for message in await self.messages(stream)]
