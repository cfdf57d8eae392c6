"""Sessions of readers who have shown the token, and may act on the pages."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from starlette.requests import Request

COOKIE: Final = "pellucid_view"


@dataclass(frozen=True, slots=True)
class Actions:
    """Actions of one reader, who has shown the token.

    Attributes:
        token: Token that `/sign-in?token=` asks for.
        name: Name under which readers decide and score.
    """

    token: str
    name: str

    def form_token(self, request: Request) -> str | None:
        """Return what the forms of a page send; None if its reader has not signed in."""
        given = request.cookies.get(COOKIE, "")
        return self._derived(b"form") if hmac.compare_digest(given.encode(), self.session.encode()) else None

    @property
    def session(self) -> str:
        """Value of the cookie of a reader that has signed in."""
        return self._derived(b"session")

    def _derived(self, purpose: bytes) -> str:
        return hmac.new(self.token.encode(), purpose, sha256).hexdigest()
