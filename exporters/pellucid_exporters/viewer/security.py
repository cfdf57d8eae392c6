"""Protection of the pages: loopback names only, nothing for other origins, a strict content security policy."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names by which the pages may be requested; others are what DNS rebinding sends."""

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Protection:
    """ASGI middleware that answers only requests of this machine's own pages, and adds the headers to all answers.

    Args:
        app: The application.
        forms: Starts of the paths to which forms may be sent; none if the pages are read-only.
        images: Whether pages may load images of other hosts.
    """

    def __init__(self, app: ASGIApp, forms: tuple[str, ...] = (), *, images: bool = False) -> None:
        self._app = app
        self._forms = forms
        policy = CONTENT_SECURITY_POLICY
        if images:
            policy = policy.replace("img-src 'self'", "img-src 'self' https: http:")
        self._headers = {**HEADERS, "content-security-policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        is_form = scope["method"] == "POST" and scope["path"].startswith(self._forms)
        refusal = _refusal("GET" if is_form else scope["method"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_protected)


def _refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    """Return the answer to a request that is not for the pages' own reader."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in LOOPBACK:
        return PlainTextResponse("This page is available as 127.0.0.1 or localhost only.\n", 421)
    if method not in {"GET", "HEAD"}:
        return PlainTextResponse("This page is read-only.\n", 405, {"allow": "GET, HEAD"})
    is_foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    if is_foreign and headers.get("sec-fetch-mode") != "navigate":
        return PlainTextResponse("This page cannot be read by other sites.\n", 403)
    return None
