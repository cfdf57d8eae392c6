"""Address at which OTLP is taken, and the server there."""

from __future__ import annotations

import os
import socket
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_commands.serving.options import authentication

if TYPE_CHECKING:
    from pellucid_commands.receiving.target import ReceivedStore

ADDRESS: Final = "127.0.0.1:4320"
"""Address unless another one is named: OTLP's own ports are those of a Collector."""
RECEIVED: Final = ".pellucid/received.db"
"""Store unless another one is named."""

_NEEDED: Final = ("starlette", "uvicorn")
_LARGEST_PORT: Final = 65_535


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
    if not host or not port.isdecimal() or int(port[:6]) > _LARGEST_PORT:
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
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    try:
        server = socket.create_server((at.host, at.port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
        raise ConfigError(f"--listen {at.host}:{at.port}: {reason}; name another address, or port 0") from error
    with closing(server):
        yield Listener(at, server)
