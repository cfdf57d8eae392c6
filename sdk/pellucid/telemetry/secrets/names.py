"""Names of secrets: `password`, `api_key`, `accessToken`, `DB_PASS`.

A name is split into words at any separator. To recognise another name, add its word to one of the sets below.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

WORDS: Final = ("pass", "pwd", "secret", "token", "key", "authorization", "bearer", "cookie", "cred")
"""Substrings of which every name of a secret contains at least one."""

_SECRETS: Final = (
    "password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "pwd", "secret", "secrets",
    "authorization", "credential", "credentials", "creds", "cookie", "cookies",
    "apikey", "apikeys", "accesskey", "accesskeys", "privatekey", "privatekeys", "signingkey", "secretkey",
    "accountkey",
)  # fmt: skip
"""Words that name a secret, also at the end of a longer word (`dbpassword`)."""

_KEYS: Final = (
    "access", "account", "api", "app", "auth", "client", "consumer", "deploy", "decryption", "encryption", "hmac",
    "jwt", "license", "master", "private", "root", "rsa", "secret", "service", "session", "shared", "signing", "ssh",
    "storage", "subscription", "webhook",
)  # fmt: skip
"""Words before a `key` that names a secret. After others, such as `primary` and `cache`, it is not."""

_TOKENS: Final = frozenset({"access", "api", "auth", "bearer", "bot", "id", "oauth", "personal", "refresh", "secret"})
"""Words before a final `tokens` that names secrets; on its own, `tokens` is a unit of text."""

_NOT_TOKENS: Final = frozenset(
    {"bos", "cancel", "continuation", "eos", "mask", "next", "pad", "page", "per", "sep", "special", "stop", "unk"}
)
"""Words before a final `token` that does not name a secret but a cursor, a price or a piece of text."""

_PASSES: Final = frozenset(
    {"admin", "database", "db", "ftp", "ldap", "login", "mail", "mysql", "pg", "postgres", "proxy", "redis", "root"}
    | {"smtp", "ssh", "ssl", "sudo", "user"}
)
"""Words before a final `pass` that names a password."""

_ABOUT: Final = frozenset(
    {
        "arn",
        "at",
        "banner",
        "budget",
        "consent",
        "count",
        "counts",
        "domain",
        "enabled",
        "endpoint",
        "expired",
        "expires",
    }
    | {"expiry", "file", "hint", "length", "limit", "name", "names", "path", "policy", "required", "rotation", "stdin"}
    | {"strength", "type", "types", "uri", "url", "version"}
)
"""Final words of names of facts about a secret, which are not secrets."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

LONGEST: Final = 256
"""Maximum characters of a name that are examined, from its end."""


def has_word(lower: str) -> bool:
    """Return whether a text in lower case contains one of `WORDS`."""
    for word in WORDS:  # noqa: SIM110  (`any` takes three times as long, for each text that is recorded)
        if word in lower:
            return True
    return False


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Return whether a name is that of a secret."""
    if not has_word(name.lower()):
        return False
    words = [word.lower() for word in _WORD.findall(name[-LONGEST:])]
    if not words or words[-1] in _ABOUT:
        return False
    if any(word.endswith(_SECRETS) for word in words) or "".join(words[-2:]).endswith(_SECRETS):
        return True
    *others, last = words
    before = others[-1] if others else ""
    if last == "pass":
        return before in _PASSES
    if last.endswith(("token", "tokens", "bearer")):
        return before in _TOKENS if last == "tokens" else before not in _NOT_TOKENS
    return any(word in ("key", "keys") and words[n].endswith(_KEYS) for n, word in enumerate(words[1:]))


def ends_secret(fragment: str) -> bool:
    """Return whether the fragment can be the end of the name of a secret."""
    return any(name.endswith(fragment.lower()) for name in (*_SECRETS, "token", "key", "bearer"))
