"""Validation of URLs, and what may be shown of them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def is_url(text: str) -> bool:
    """Return whether this is a valid HTTP URL: it has a host, and any port in it is valid."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port beyond 65535
        return False


def shown(url: str) -> str:
    """Return a URL without credentials, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]
    if not parts.scheme or not parts.netloc:
        # Of "localhost:4318", `localhost` is taken for the scheme.
        return url.partition("?")[0].partition("#")[0].rpartition("@")[2]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
