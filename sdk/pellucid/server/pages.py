"""Web pages: which ones may send requests, and under which names a server answers.

A page of any site can send requests to a server on its reader's machine, and read the answers if the name of its own
host points there. Browsers name the page's origin, and the host that was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from pellucid.errors import ConfigError
from pellucid.server.problems import Problem, answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_NAMES: Final = frozenset({"127.0.0.1", "::1", "localhost", "testserver"})
"""Names under which programs on this machine reach the server; the last one is that of Starlette's test client."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that answer under any name, and say nothing."""


class PageGuard:
    """Middleware that refuses requests of web pages of other origins, and requests for other host names.

    A page of the server's own host and port is allowed; others are by `origins`.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str], hosts: Collection[str] | None) -> None:
        """Guard an application.

        Args:
            app: The application.
            origins: Origins whose pages may send requests, such as `https://app.example.org`.
            hosts: Names under which the server answers, besides addresses; None for any.
        """
        self._app = app
        self._origins = origins
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with 403, or pass it on."""
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await answer(Request(scope), problem)(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        is_own = origin is None or (host != "" and _split(origin).netloc.lower() == host.lower())
        if not is_own and origin not in self._origins:
            return Problem(403, "requests of this web page are refused; its origin is not in origins=")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._hosts is None or path in PROBES or (name := host_of(f"//{host}")) in self._hosts or _is_address(name):
            return None
        return Problem(403, "requests for this host name are refused; it is not in hosts=")


def page_guard(origins: Iterable[str], hosts: Iterable[str] | None, *, is_local: bool) -> list[Middleware]:
    """Return the middleware of a server: what pages of other origins need, and what refuses the others.

    Args:
        origins: As of `PageGuard`.
        hosts: As of `PageGuard`; None for `LOCAL_NAMES` on a server for this machine only, otherwise for any.
        is_local: Whether it is such a server.

    Raises:
        ConfigError: an origin is not a scheme, host and maybe port, as browsers write it.
    """
    allowed = [origins] if isinstance(origins, str) else list(origins)
    for origin in allowed:
        parts = _split(origin)
        if not parts.netloc or f"{parts.scheme}://{parts.netloc.lower()}" != origin:
            raise ConfigError(f"origins: {origin!r} is no origin; give one such as 'https://app.example.org'")
    names = frozenset(map(str.lower, hosts)) | LOCAL_NAMES if hosts is not None else LOCAL_NAMES if is_local else None
    guards: list[Middleware] = [Middleware(PageGuard, origins=allowed, hosts=names)]
    if allowed:
        guards.append(
            Middleware(
                CORSMiddleware,
                allow_origins=allowed,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Location", "Retry-After"],
            )
        )
    return guards


@lru_cache(256)
def host_of(address: str) -> str | None:
    """Return the host of a URL, in lower case; None if it has none."""
    return _split(address).hostname


def _is_address(host: str | None) -> bool:
    """Return whether a host is an IP address, which nobody can let point elsewhere."""
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; empty ones if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
