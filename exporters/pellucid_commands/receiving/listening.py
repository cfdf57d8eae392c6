"""Address at which OTLP is taken, and the server there."""

from __future__ import annotations

import socket
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_commands.serving.numbers import MAX_PORT
from pellucid_commands.serving.options import authentication
from pellucid_commands.serving.sockets import listen_at, reason_of, url_of

if TYPE_CHECKING:
    from pellucid_commands.receiving.target import ReceivedStore

ADDRESS: Final = "127.0.0.1:4320"
"""Address unless another one is named: OTLP's own ports are those of a Collector."""
RECEIVED: Final = ".pellucid/received.db"
"""Store unless another one is named."""

_NEEDED: Final = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port; port 0 is any that is free."""

    host: str
    port: int


def address(text: str) -> Address:
    """Parse `HOST:PORT`.

    Raises:
        ArgumentTypeError: it has another form.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port[:6]) > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not an address such as {ADDRESS}")
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. Attributes: url: its base URL."""

    address: Address
    socket: socket.socket

    @property
    def url(self) -> str:
        """The base URL."""
        return url_of(self.socket.getsockname()[0], self.socket)

    async def serve(self, store: ReceivedStore) -> None:
        """Write what arrives into a store, until SIGINT or SIGTERM."""
        from pellucid.server import loopback_only
        from pellucid.server.pages import LOCAL_NAMES, PageGuard
        from pellucid_commands.receiving.app import intake_app
        from pellucid_commands.serving.http_server import listen

        authenticate = authentication(self.address.host)
        hosts = LOCAL_NAMES if authenticate is loopback_only else None
        app = PageGuard(intake_app(store, authenticate), origins=(), hosts=hosts)
        await listen(
            app,
            self.address.host,
            self.address.port,
            sockets=[self.socket],
            log_level="warning",
            access_log=False,
            lifespan="off",
        )


@contextmanager
def listening(at: Address) -> Iterator[Listener]:
    """Listen at an address.

    Raises:
        ConfigError: it is taken or not allowed, is for other machines and there is no bearer token, or an extra is not
            installed; the message names the remedy.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not installed; run: pip install 'pellucid[server]'")
    authentication(at.host)
    try:
        server = listen_at(at.host, at.port)
    except OSError as error:
        problem = f"--listen {at.host}:{at.port}: {reason_of(error)}; name another address, or port 0"
        raise ConfigError(problem) from error
    with closing(server):
        yield Listener(at, server)
