"""Whether what somebody wrote as an address is one."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """Return whether HTTP can be spoken to this: it has a host, and a port that there is if it names one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port beyond 65535
        return False
