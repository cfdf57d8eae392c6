"""Sockets of the commands that listen, their URLs, and why there is none."""

from __future__ import annotations

import os
import socket


def listen_at(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises: OSError: the port is taken, or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def reason_of(error: OSError) -> str:
    """Return why there is none, without the number of the error and the address."""
    return os.strerror(error.errno) if error.errno is not None else str(error)


def url_of(host: str, listener: socket.socket) -> str:
    """Return the base URL of a socket that listens at a host, without a slash at its end."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
