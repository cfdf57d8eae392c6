"""A proxy before PostgreSQL that loses the answer to a commit, or is slow to pass a message on."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SOCKET = ".s.PGSQL.5432"


class LossyProxy:
    """Passes everything on, until told to lose something. Attributes: url: where clients connect."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.url = f"postgresql://pellucid@/postgres?host={folder}"
        self._server = server / _SOCKET
        self._loses = threading.Event()
        self._message = b""
        self._held = b""
        self._is_released = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def lose_next_commit(self, message: bytes = b"COMMIT") -> None:
        """Let the next commit happen, and close its connection instead of answering.

        Args:
            message: Part of the message that commits.
        """
        self._message = message
        self._loses.set()

    def hold(self, message: bytes) -> None:
        """Pass messages of clients with this part on after `release` only."""
        self._held = message

    def release(self) -> None:
        """Pass on what is held, and hold nothing more."""
        self._is_released.set()

    def serve(self) -> None:
        """Accept clients until the proxy is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._ends += [client, server]
                is_lost = threading.Event()
                for start in ((client, server, is_lost), (server, client, is_lost)):
                    thread = threading.Thread(target=self._pass_on, args=start, daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_lost: threading.Event) -> None:
        is_server = source.getpeername() == str(self._server)
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_server and self._loses.is_set() and self._message in data:
                    self._loses.clear()
                    is_lost.set()
                if not is_server and self._held and self._held in data:
                    self._is_released.wait()
                if is_server and is_lost.is_set():
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more clients, and wait for the end of those that there are."""
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (*self._ends, self._listener):
            end.close()


@contextmanager
def lossy_proxy(folder: Path, server: Path) -> Iterator[LossyProxy]:
    """Run a proxy until the end of the block."""
    proxy = LossyProxy(folder, server)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
