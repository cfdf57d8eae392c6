"""Callback URLs: which ones a server calls, so that no caller makes it call another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from pellucid.errors import CallbackRefused, ConfigError
from pellucid.text import shown_url

MAX_URL: Final = 2048
"""Characters of a URL."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORTS: Final = {"https": 443, "http": 80}
_CHARACTER: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    rf"(?P<path>(?:/{_CHARACTER}*)*)(?:\?(?P<query>(?:{_CHARACTER}|[/?])*))?",
    re.IGNORECASE,
)
"""RFC 3986, without user information and fragment."""

_HIDDEN: Final = re.compile(r"%(?:2e|2f|5c|25|3b|[01][0-9a-f]|7f)", re.IGNORECASE)
"""Dot, slash, backslash, percent sign, semicolon and control characters, which servers decode at different times."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL in its parts.

    Attributes:
        scheme, host, port: The origin.
        target: Path and query, as they were given; they may contain secrets.
        segments: Segments of the path, decoded, without empty ones at the end.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    segments: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address of a URL.

        Raises:
            CallbackRefused: the URL is not one that every HTTP client and server reads in the same way.
        """
        match = _URL.fullmatch(url) if len(url) <= MAX_URL else None
        if match is None:
            raise CallbackRefused(
                f"it must be an absolute URL such as https://host/path, of at most {MAX_URL} characters, without user "
                f"information, fragment, backslashes and characters that must be encoded"
            )
        scheme, host, path = match["scheme"].lower(), match["host"].lower(), match["path"]
        if scheme == "http" and host not in _LOOPBACK:
            raise CallbackRefused("it must start with https://, unless it is on this machine")
        segments = path.split("/")[1:]
        if _HIDDEN.search(path) or any(segment.partition(";")[0] in {".", ".."} for segment in segments):
            raise CallbackRefused("its path has a dot segment, or an encoded dot, slash, backslash or the like")
        while segments and not segments[-1]:
            segments.pop()
        port = int(match["port"]) if match["port"] else _PORTS[scheme]
        target = (path or "/") + (f"?{match['query']}" if match["query"] is not None else "")
        return cls(scheme, host, port, target, tuple(map(unquote, segments)))

    @property
    def origin(self) -> str:
        """URL of the origin."""
        return f"{self.scheme}://{self.host}:{self.port}"

    def contains(self, other: Address) -> bool:
        """Return whether another address has the same origin, and is below this one."""
        return self.origin == other.origin and other.segments[: len(self.segments)] == self.segments


class Allowed:
    """URLs below prefixes.

    Args:
        prefixes: URLs without queries.

    Raises:
        ConfigError: there is none, or one is not a URL.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        if isinstance(prefixes, str):
            raise ConfigError("Callbacks(allow=): give a list of URLs, not one text")
        self._prefixes = [_prefix(prefix) for prefix in prefixes]
        if not self._prefixes:
            raise ConfigError("Callbacks(allow=): give the URLs below which callbacks may be, https://host/hooks/")

    def check(self, url: str) -> Address:
        """Return the address of a URL that is allowed.

        Raises:
            CallbackRefused: it is not.
        """
        address = Address.of(url)
        if not any(prefix.contains(address) for prefix in self._prefixes):
            raise CallbackRefused("it is not below a URL that the operator allows")
        return address


def _prefix(url: str) -> Address:
    try:
        address = Address.of(url)
    except CallbackRefused as error:
        raise ConfigError(f"Callbacks(allow=): {shown_url(url)!r}: {error}") from error
    if "?" in address.target:
        raise ConfigError(f"Callbacks(allow=): {shown_url(url)!r} has a query; give the part before it")
    return address
