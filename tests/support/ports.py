"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import secrets
import socket
from typing import Final

import pytest

FIRST: Final = 10_000
CONNECTIONS: Final = 32_768
"""First port that Linux gives to connections and to servers that ask for any one, at any time."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Return a row of ports that nobody listens on."""
    for _ in range(100):
        first = FIRST + secrets.randbelow(CONNECTIONS - FIRST - count)
        ports = range(first, first + count)
        if all(is_free(port) for port in ports):
            return ports
    pytest.fail("no free ports")


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
