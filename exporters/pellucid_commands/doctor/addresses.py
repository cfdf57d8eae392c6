"""Place of an address: this machine, this network, or elsewhere."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_INSIDE: Final = (".local", ".internal", ".svc", ".lan", ".home.arpa")
"""Ends of names that only a private network has (RFC 6762, RFC 8375, and those of Kubernetes and clouds)."""


def is_far(url: str) -> bool:
    """Return whether an address may belong to another machine."""
    host = _host(url)
    try:
        return host != "localhost" and not ip_address(host).is_loopback
    except ValueError:
        return True


def is_outside(url: str) -> bool:
    """Return whether an address may be outside of the private network of this machine, such as that of containers."""
    host = _host(url)
    try:
        return ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_INSIDE)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
