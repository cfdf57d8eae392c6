"""Validation of URLs."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """Return whether this is a valid HTTP URL: it has a host, and any port in it is valid."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port beyond 65535
        return False
