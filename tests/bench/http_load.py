"""Clients of a server that are measured: keep-alive connections that send prepared requests, and event streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """Return the bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def send(port: int, requests: Sequence[bytes], clients: int) -> tuple[float, list[float]]:
    """Send requests that must be accepted, from several clients; return the seconds for all, and for each."""
    took: list[float] = []

    async def client(share: Sequence[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in share:
            sent = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            took.append(time.perf_counter() - sent)
            assert head.startswith(b"HTTP/1.1 202"), head
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    return time.perf_counter() - start, took


class EventStreams:
    """Open streams of events of runs. Attributes: received: Number of events."""

    def __init__(self) -> None:
        self.received = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.Task[None]] = []

    async def open(self, port: int, run_ids: Sequence[str], after: int) -> None:
        """Open a stream for each id, and wait until the server has answered all."""
        for run_id in run_ids:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = (
                f"GET /runs/{run_id}/events?wait=true HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {after}\r\n\r\n"
            )
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            self._writers.append(writer)
            self._readers.append(asyncio.create_task(self._read(reader)))

    async def until(self, number: int) -> None:
        """Wait until so many events were received."""
        while self.received < number:  # noqa: ASYNC110  (many streams, of which each would set it)
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Close all streams."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self.received += line.startswith(b"id:")
