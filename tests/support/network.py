"""Hosts of their own, as network namespaces of Linux whose links can be cut."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Host:
    """A host with one link, to this one.

    Attributes:
        name: Name of its namespace.
        link: Name of this end of the link.
        peer: Address of this host, as the other one reaches it.
    """

    name: str
    link: str
    peer: str

    def command(self, *words: str) -> list[str]:
        """Return the command that runs a command there; the process is that of the command."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Cut the link: packets are lost in both directions, without a word to either side."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Mend the link."""
        _ip("link", "set", self.link, "up")


@contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """Make hosts until the end of the block; without the permission, the test is skipped."""
    if shutil.which("ip") is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain("the program 'ip' is not installed (Debian: apt-get install iproute2)")
    with ExitStack() as stack:
        yield [_host(stack) for _ in range(number)]


def _host(stack: ExitStack) -> Host:
    token, octets = secrets.token_hex(4), secrets.token_bytes(2)
    name, link = f"pellucid-{token}", f"pl{token}"
    network = f"10.{octets[0]}.{octets[1]}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    stack.callback(_ip, "netns", "delete", name)
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("address", "add", f"{network}.1/30", "dev", link)
    _ip("link", "set", link, "up")
    _ip("-n", name, "address", "add", f"{network}.2/30", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    return Host(name, link, f"{network}.1")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
