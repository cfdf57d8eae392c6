"""Tokens with which other processes return the results of calls."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json

from pellucid.errors import ConfigError
from pellucid.module_names import renamed
from pellucid.text import shown_url
from pellucid.types import JSONValue

PREFIX: Final = "pct1"
"""Beginning of each token: Pellucid call token, version 1."""

MIN_KEY: Final = 32
"""Bytes of a key, at least; RFC 2104 recommends no less than the length of the hash."""

_MAX_TOKEN: Final = 2048


@dataclass(frozen=True, slots=True)
class CallGrant:
    """Grant of a token: to return the result of one call, until it expires.

    Attributes:
        result_id: Id of the call.
        run_id: Id of its run.
        expires_at: Seconds since the epoch.
    """

    result_id: str
    run_id: str
    expires_at: int


class CallTokens:
    """Maker and checker of tokens, each for one call.

    A token is signed by HMAC-SHA256 (RFC 2104). It has the ids of call and run and the time of its expiry, readable to
    its holder, so that it is checked without a look-up.

    Args:
        *keys: Secrets of at least 32 bytes, as text or bytes. The first one signs; all are accepted. To rotate, put a
            new key first, and remove the old one when its tokens have expired.
        lifetime: Seconds for which the token of a call that never expires is valid.
        grace: Seconds after the expiry of a call in which its holder still learns that the result is late.

    Raises:
        ConfigError: there is no key, or one is too short.
    """

    def __init__(self, *keys: str | bytes, lifetime: float = 30 * 86400.0, grace: float = 86400.0) -> None:
        encoded = [key.encode() if isinstance(key, str) else key for key in keys]
        if not encoded or any(len(key) < MIN_KEY for key in encoded):
            raise ConfigError(
                f"CallTokens needs one or more keys of at least {MIN_KEY} bytes; "
                f"make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        # Copied for each signature: to begin with the key takes longer than all else. `hmac.digest` would release the
        # interpreter's lock, for which the thread would then wait.
        self._keyed = [hmac.new(key, digestmod=hashlib.sha256) for key in encoded]
        self._lifetime = lifetime
        self._grace = grace

    @renamed(deadline="expires_at")
    def issue(self, result_id: str, run_id: str, expires_at: float | None = None, *, now: float | None = None) -> str:
        """Return the token of a call.

        Args:
            result_id: Id of the call.
            run_id: Id of its run.
            expires_at: When the call expires, in seconds since the epoch by the store's clock; None for never.
            now: The time by that clock; by default by this process's.
        """
        return self.sign(PREFIX, [result_id, run_id, self.expiry(expires_at, now)])

    def expiry(self, expires_at: float | None, now: float | None = None) -> int:
        """Return when the token of a call expires that is issued now; arguments as of `issue`."""
        if expires_at is not None:
            return int(expires_at + self._grace)
        return int((now if now is not None else time.time()) + self._lifetime)

    def check(self, token: str, *, now: float | None = None) -> CallGrant | None:
        """Return what a token allows; None if it is not one of ours, was changed, or has expired.

        `now` is the time in seconds since the epoch by the store's clock; by default by this process's.
        """
        grant = self.signed(token)
        return grant if grant is not None and (now if now is not None else time.time()) < grant.expires_at else None

    def signed(self, token: str) -> CallGrant | None:
        """Return what a token allows, or has allowed until it expired; None if it is not ours, or was changed."""
        claims = self.claims(PREFIX, token)
        # A `match` by class raises and drops an error for each type without `__match_args__`, which takes longer.
        if isinstance(claims, list) and [type(claim) for claim in claims] == [str, str, int]:
            return CallGrant(*claims)
        return None

    def sign(self, prefix: str, claims: JSONValue) -> str:
        """Return a token of a kind, which its prefix names, with what it says."""
        content = _encoded(json.dumps(claims, separators=(",", ":")).encode())
        return f"{prefix}.{content}.{_signature(self._keyed[0], prefix, content)}"

    def claims(self, prefix: str, token: str) -> JSONValue:
        """Return what a token of a kind says; None if it is not ours, or was changed."""
        kind, _, rest = token.partition(".")
        content, _, signature = rest.partition(".")
        if kind != prefix or len(token) > _MAX_TOKEN or not token.isascii():
            return None
        # The text is compared, not the bytes: several texts stand for the same bytes in base64.
        matches = [hmac.compare_digest(_signature(keyed, prefix, content), signature) for keyed in self._keyed]
        if not any(matches):
            return None
        try:
            # A fifth of the instructions of `json.loads`.
            found: JSONValue = from_json(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
        except ValueError:  # signed by another program with the same key
            return None
        return found


@dataclass(frozen=True, slots=True)
class Completion:
    """Address to which other processes return results, and the tokens that they need.

    Attributes:
        url: Address of the server that has `pellucid.server`'s application, as these processes reach it.
        tokens: Maker of the tokens.
    """

    url: str
    tokens: CallTokens

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"Completion(url={shown_url(self.url)!r}): give the address of the server, such as https://host/agents"
            )

    @renamed(deadline="expires_at")
    def address(
        self, result_id: str, run_id: str, expires_at: float | None, *, now: float | None = None
    ) -> tuple[str, str]:
        """Return the address that receives the result of a call, and the token of that call; see `CallTokens.issue`."""
        url = f"{self.url.rstrip('/')}/async-tools/{result_id}/complete"
        return url, self.tokens.issue(result_id, run_id, expires_at, now=now)


def _signature(keyed: hmac.HMAC, prefix: str, content: str) -> str:
    signing = keyed.copy()
    signing.update(f"{prefix}.{content}".encode())
    return _encoded(signing.digest())


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
